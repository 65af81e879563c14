// Whether a query head may leave out what it does not read of the keys before a dense window: the
// bound of selection (kernels/selection_bound.h; Desai et al., "vAttention", 2025) for heads that
// read salient keys and the window alone. Their core is what they read, and all else is the tail,
// of which nothing is read: with T for its mass and C for the core's, the bound is T - epsilon T <=
// epsilon C.
#ifndef HEADWAY_KV_POLICY_UNREAD_BOUND_H_
#define HEADWAY_KV_POLICY_UNREAD_BOUND_H_

#include <cstdint>
#include <numeric>
#include <span>

#include "kernels/selection.h"

namespace headway::kv {

// Slots of the blocks that are sampled: at most 16, so that a block lies in one page.
constexpr int kMostBoundSlots = 16;
constexpr int BoundSlots(int page_slots) { return std::gcd(kMostBoundSlots, page_slots); }

// A sampled block, of which something is not read.
struct UnreadBlock {
  int64_t stratum = 1;  // blocks that it stands for (selection::SampledBlock)
  float mass = 0.0f;    // the natural logarithm of the mass of its keys that are not read
};

// Whether the bound holds for a query head. There are `blocks` before the window, of which `sample`
// has those of selection::SampleOf that are not read whole; `read` is the natural logarithm of the
// mass of the keys that are read. What of it is not known counts as nothing, which is on the safe
// side: with it the head's mass would be larger.
bool BoundHolds(const MassBound& bound, int64_t blocks, float read,
                std::span<const UnreadBlock> sample);

}  // namespace headway::kv

#endif  // HEADWAY_KV_POLICY_UNREAD_BOUND_H_
