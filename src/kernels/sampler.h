// Sampler: what the next tokens of one sequence are picked by: its options, its random numbers, and
// how often it has which token. Kernels::Sample does the picking.
//
// The steps and their order are those of Transformers and vLLM:
//   1. repetition penalty over the tokens of prompt and answer (Keskar et al., CTRL, 2019): a
//      positive logit is divided by it, a negative one multiplied;
//   2. presence and frequency penalties over the tokens of the answer, as OpenAI defines them:
//      logit -= presence + frequency * count;
//   3. temperature; 0 takes the largest logit, the lowest token of equals, and ends here;
//   4. top-k: tokens whose logit is below the k-th largest are dropped (equals of it stay);
//   5. top-p: the fewest most likely tokens whose probabilities sum to top_p stay (of equal logits,
//      the lower tokens);
//   6. min-p: tokens less likely than min_p times the likeliest are dropped;
//   7. one draw from what stays: the first token at which the sum of probabilities, in the order of
//      tokens, passes the drawn share of all. In that order the same draw means the same token
//      whatever was dropped behind it, and rounding in the logits cannot permute the answer.
// Probabilities are the integers of sampling.h.
#ifndef HEADWAY_KERNELS_SAMPLER_H_
#define HEADWAY_KERNELS_SAMPLER_H_

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/random.h"
#include "base/types.h"
#include "headway/status.h"
#include "headway/types.h"
#include "kernels/logits.h"

namespace headway {

// A copy continues as the original would.
class Sampler {
 public:
  // Requires params.Validate().ok().
  explicit Sampler(const SamplingOptions& params);

  // Tokens that only the repetition penalty counts.
  void AcceptPrompt(std::span<const TokenId> tokens);
  // A token of the answer: what Sample returned, or what a caller forced instead.
  void Accept(TokenId token);

  // What Kernels::Sample needs for the next token, but for logits, vocab and result. Draws one
  // random number, or none with temperature 0. The penalties are valid until the next call.
  SampleItem Next() { return Next({}).front(); }
  // The same, and behind it for the token behind each of `drafts`, as if these were tokens of the
  // answer so far: the items that Next would give if they were accepted one by one. Valid until the
  // next call.
  std::span<const SampleItem> Next(std::span<const TokenId> drafts);
  // The first `items` items of the last call, at least one, have picked tokens of the answer: the
  // next call draws as if there had been a call for each.
  void Keep(int64_t items) { random_ = behind_[static_cast<size_t>(items) - 1]; }
  // None has: the next call draws what the last one did.
  void PutBack() { random_ = before_; }

 private:
  std::vector<TokenPenalty> Penalties() const;

  SamplingOptions params_;
  Random random_;
  Random before_;  // the last Next
  std::unordered_map<TokenId, int64_t>
      counts_;  // in the answer, of each token seen; 0: prompt only
  // Of the last Next: items, their penalties, and the random numbers behind each.
  std::vector<SampleItem> items_;
  std::vector<std::vector<TokenPenalty>> penalties_;
  std::vector<Random> behind_;
};

// The token, or kCorrupt: a logit is NaN or +infinity, or none is finite.
Result<TokenId> TokenOf(const Sampled& sampled);

}  // namespace headway

#endif  // HEADWAY_KERNELS_SAMPLER_H_
