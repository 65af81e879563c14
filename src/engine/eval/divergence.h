// How far the decode steps of an approximation are from exact ones: both read the same beginnings
// of a text, then its next tokens as they are written, one a step, and the distributions that they
// predict are compared.
#ifndef HEADWAY_ENGINE_EVAL_DIVERGENCE_H_
#define HEADWAY_ENGINE_EVAL_DIVERGENCE_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "engine/eval/perplexity.h"
#include "engine/eval/window_hooks.h"
#include "headway/context.h"
#include "headway/status.h"

namespace headway::eval {

// Windows of one length, spread evenly over a text: the first begins with it, the last ends with
// it. They may share tokens, but none of the last `compared` ones of each.
class SpreadWindows {
 public:
  struct Shape {
    int64_t length = 0;    // tokens of a window, >= 2
    int64_t count = 1;     // of windows, >= 1
    int64_t compared = 1;  // last tokens of each, which are predicted: 1 to length - 1
  };
  // `text` outlives this. Each window begins with `bos` where there is one, which counts as one of
  // its tokens. kInvalidArgument where the text is too short.
  static Result<SpreadWindows> Over(std::span<const TokenId> text, std::optional<TokenId> bos,
                                    const Shape& shape);

  const Shape& shape() const { return shape_; }
  std::vector<TokenId> Window(int64_t index) const;

 private:
  SpreadWindows(std::span<const TokenId> text, std::optional<TokenId> bos, const Shape& shape)
      : text_(text), bos_(bos), shape_(shape) {}
  int64_t Piece() const;  // tokens of the text in a window

  std::span<const TokenId> text_;
  std::optional<TokenId> bos_;
  Shape shape_;
};

// One predicted token.
struct StepDistance {
  double kl_divergence = 0.0;  // KL(exact || approximate), nats
  bool same_top = false;       // the likeliest token is the same
};

struct Divergence {
  double mean = 0.0;  // of the KL divergence, over all steps
  // Of the mean, from the windows' means, which depend on one another less than steps do; none with
  // one window.
  std::optional<double> standard_error;
  double p95 = 0.0;  // the smallest that at least 95 % of the steps do not exceed
  double most = 0.0;
  double same_top = 0.0;   // share of the steps
  Perplexity exact;        // of the compared tokens
  Perplexity approximate;  // the same
};

// All but the perplexities. As many steps for each window, one window behind the other.
Divergence SummarizeSteps(std::span<const StepDistance> steps, int64_t windows);

// Runs one context, then the other: they need not be there at the same time.
class StepComparison {
 public:
  // Bytes that it keeps of the exact run: its logits, f32 [windows, compared, vocab].
  static int64_t Bytes(const SpreadWindows::Shape& shape, int64_t vocab);

  // Both outlive this. Progress counts the tokens that both runs read.
  StepComparison(const SpreadWindows& windows, const Hooks& hooks);

  // Each empties slot 0 of its context, which holds the windows' length. The exact one comes first.
  Status RunExact(Context& context);
  Result<Divergence> RunApproximate(Context& context);

 private:
  using StepLogits = std::function<void(std::span<const float> logits)>;
  Result<Perplexity> Run(Context& context, const StepLogits& logits);

  const SpreadWindows& windows_;
  WindowHooks hooks_;
  std::vector<float> kept_;  // the exact run's logits
  Perplexity exact_;
};

}  // namespace headway::eval

#endif  // HEADWAY_ENGINE_EVAL_DIVERGENCE_H_
