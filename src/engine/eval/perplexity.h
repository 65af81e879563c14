// Perplexity of a text: exp of the mean of -ln p over every predicted token.
#ifndef HEADWAY_ENGINE_EVAL_PERPLEXITY_H_
#define HEADWAY_ENGINE_EVAL_PERPLEXITY_H_

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "headway/engine.h"
#include "headway/status.h"

namespace headway::eval {

// The token that the tokenizer puts before a text, where it does.
Result<std::optional<TokenId>> TokenizerBos(const Engine& engine);

// The text in windows of `length` tokens that do not overlap, each begun with `bos` where there is
// one, which counts as one of the `length`. The last may be shorter; it is dropped when it predicts
// nothing. At most `most` windows; 0: all. Requires length >= 2.
std::vector<std::vector<TokenId>> CutWindows(std::span<const TokenId> text,
                                             std::optional<TokenId> bos, int64_t length,
                                             int64_t most);

struct Perplexity {
  double perplexity = 0.0;
  double negative_log_likelihood = 0.0;  // sum over the predictions
  int64_t tokens = 0;                    // predicted
  int64_t windows = 0;

  void Add(const Context::ScoreResult& score);
  // All is added that these windows predict, at least one token.
  void Finish(int64_t of_windows);
};

// Scores the windows one after the other in slot 0. Progress counts the tokens of all of them.
Result<Perplexity> MeasurePerplexity(Context& context,
                                     std::span<const std::vector<TokenId>> windows,
                                     const Hooks& hooks);

// How far two runs over the same windows are apart.
struct Comparison {
  Perplexity exact;
  Perplexity approximate;
  double kl_divergence = 0.0;  // of the approximate run's next token from the exact one's, mean
  double same_top = 0.0;       // share of predictions whose likeliest token is the same
};

// Scores the windows in slot 0 of both contexts, a few hundred tokens in turn, so that no more
// logits are kept. Progress counts the tokens of `approximate`.
Result<Comparison> ComparePerplexity(Context& exact, Context& approximate,
                                     std::span<const std::vector<TokenId>> windows,
                                     const Hooks& hooks);

// KL(exact || other) in nats of the distributions that logits stand for; not negative, and exactly
// 0 for equal logits. In double precision.
double KlDivergence(std::span<const float> exact, std::span<const float> other);
// The index of the greatest, of equal ones the first.
size_t TopOf(std::span<const float> logits);

}  // namespace headway::eval

#endif  // HEADWAY_ENGINE_EVAL_PERPLEXITY_H_
