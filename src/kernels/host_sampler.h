// HostSampler: Kernels::Sample of logits that the host reads.
#ifndef HEADWAY_KERNELS_HOST_SAMPLER_H_
#define HEADWAY_KERNELS_HOST_SAMPLER_H_

#include <cstdint>
#include <span>
#include <vector>

#include "base/types.h"
#include "kernels/logits.h"

namespace headway {

// Keeps its memory from call to call.
class HostSampler {
 public:
  Sampled Sample(const SampleItem& item);

 private:
  struct Candidate {
    float logit;
    TokenId token;
    uint64_t weight;
  };

  void KeepTopK(std::span<const float> logits, int top_k);
  void KeepTopP(std::span<const float> logits, float top_p);
  TokenId Draw(uint64_t draw) const;

  std::vector<uint64_t> weights_;  // [vocab], 0 when dropped
  std::vector<float> largest_;     // a heap of the top_k largest logits
  std::vector<Candidate> candidates_;
};

}  // namespace headway

#endif  // HEADWAY_KERNELS_HOST_SAMPLER_H_
