// DemotionPolicy: what becomes of the tokens that a head lets go of when a prompt has been read
// (EvictionPolicy). They are dropped, or they stay in host memory, one behind the other in the
// order of positions, cut into blocks, of which a decode step reads those that score best by their
// summaries. What a head keeps is in none of its blocks, so that nothing is attended to twice.
#ifndef HEADWAY_KV_POLICY_DEMOTION_H_
#define HEADWAY_KV_POLICY_DEMOTION_H_

#include <cstdint>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "kernels/selection.h"

namespace headway::kv {

struct DemotionPolicy {
  static constexpr SummaryFormat kSummary = {SummaryKind::kMoments, 16};

  int64_t keys = 0;     // that a head reads in a decode step, at most; 0: tokens are dropped
  int64_t refresh = 1;  // decode steps of a sequence, one after the other, that one choice serves

  bool demotes() const { return keys > 0; }
  // Of a token of a head.
  static double SummaryBytes(int head_dim) {
    return static_cast<double>(kSummary.bytes(head_dim)) / kSummary.block_slots;
  }
  // That a head reads in a step, at most.
  int64_t blocks() const { return CeilDiv(keys, int64_t{kSummary.block_slots}); }
};

// Of the first `closed` tokens those that are not among `kept`; both ascend.
std::vector<int32_t> LetGoOf(std::span<const int32_t> kept, int64_t closed);

}  // namespace headway::kv

#endif  // HEADWAY_KV_POLICY_DEMOTION_H_
