// What is done to logits where they are: the next token is picked, the likelihood of a given one is
// measured. sampler.h says what the options mean; sampling.h and scoring.h have the arithmetic.
#ifndef HEADWAY_KERNELS_LOGITS_H_
#define HEADWAY_KERNELS_LOGITS_H_

#include <cstdint>
#include <span>

#include "base/types.h"
#include "device/device.h"

namespace headway {

// A token that penalties count: after the repetition penalty, `subtract` comes off its logit.
struct TokenPenalty {
  TokenId token = 0;
  float subtract = 0.0f;
};

// What was picked, and its logit after the penalties. A model that is broken shows in the logit:
// the first that is NaN or +infinity, with its token, or -infinity, where none is finite.
struct Sampled {
  TokenId token = 0;
  float logit = 0.0f;
};

// The next token of one sequence from its logits; Sampler (sampler.h) fills in the options and says
// what they do.
struct SampleItem {
  float* logits = nullptr;  // [vocab], changed by the penalties
  int64_t vocab = 0;
  float temperature = 0.0f;  // 0: greedy
  int top_k = 0;             // 0: off
  float top_p = 1.0f;
  float min_p = 0.0f;
  float repetition_penalty = 1.0f;
  std::span<const TokenPenalty> penalties;  // each token once; read before the call returns
  uint64_t draw = 0;                        // random bits
  Sampled* result = nullptr;
};

// What the negative log-likelihood of a token is made of (NegativeLogLikelihood in scoring.h). All
// 0 where a logit is NaN or +infinity, or none is finite.
struct Scored {
  float largest = 0.0f;  // logit
  float target = 0.0f;   // the token's
  uint64_t sum = 0;  // of ScoreWeight(largest - logit) over all tokens, which are fewer than 2^24
};

// A token whose likelihood is asked for.
struct ScoreItem {
  const float* logits = nullptr;  // [vocab]
  int64_t vocab = 0;
  TokenId target = 0;
  Scored* result = nullptr;
};

class LogitsKernels {
 public:
  virtual ~LogitsKernels() = default;
  // Picks tokens. Every implementation picks the same one from the same bits.
  virtual void Sample(Stream& stream, std::span<const SampleItem> items) = 0;
  // Every implementation finds the same bits.
  virtual void Score(Stream& stream, std::span<const ScoreItem> items) = 0;
};

}  // namespace headway

#endif  // HEADWAY_KERNELS_LOGITS_H_
