// Sampler: picks the next token of one sequence from its logits. Runs on the host.
//
// The steps and their order are those of Transformers and vLLM:
//   1. repetition penalty over the tokens of prompt and answer (Keskar et al., CTRL, 2019): a
//      positive logit is divided by it, a negative one multiplied;
//   2. presence and frequency penalties over the tokens of the answer, as OpenAI defines them:
//      logit -= presence + frequency * count;
//   3. temperature; 0 takes the largest logit, the lowest token of equals, and ends here;
//   4. top-k: tokens whose logit is below the k-th largest are dropped (equals of it stay);
//   5. top-p: the fewest most likely tokens whose probabilities sum to top_p stay (of equals, the
//      lower tokens);
//   6. min-p: tokens less likely than min_p times the likeliest are dropped;
//   7. one draw from what stays.
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

  // The next token; changes `logits` [vocab]. kCorrupt when a logit is NaN or +infinity, or all are
  // -infinity. Draws one random number, or none with temperature 0.
  Result<TokenId> Sample(std::span<float> logits);

 private:
  struct Candidate {
    float weight;
    TokenId token;
  };

  void ApplyPenalties(std::span<float> logits) const;
  void KeepTopK(std::span<const float> logits);
  void KeepTopP();
  TokenId Draw();

  SamplingOptions params_;
  Random random_;
  std::unordered_map<TokenId, int64_t>
      counts_;  // in the answer, of each token seen; 0: prompt only
  // Of the call in progress.
  std::vector<float> weights_;  // [vocab], exp((logit - largest) / temperature), 0 when dropped
  std::vector<float> largest_;  // a heap of the top_k largest logits
  std::vector<Candidate> candidates_;
};

}  // namespace headway

#endif  // HEADWAY_KERNELS_SAMPLER_H_
