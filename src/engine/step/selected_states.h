// How a decode's attention to selected keys is cut into partial states.
#ifndef HEADWAY_ENGINE_STEP_SELECTED_STATES_H_
#define HEADWAY_ENGINE_STEP_SELECTED_STATES_H_

#include <cstdint>

#include "base/bytes.h"
#include "base/types.h"
#include "engine/step/limits.h"
#include "kernels/sizes.h"

namespace headway {

struct StateCut {
  int64_t split = 0;  // listed keys of a state, whole blocks
  int parts = 0;      // states of a head, for the longest list; 0 where nothing is selected
};

// Heads that share a budget list about as many keys each; a state is cut for those, so that a
// longer list only has more states.
inline StateCut SelectedStates(const ModelShape& shape, const ExecutorLimits& limits,
                               const KernelSizes& kernels) {
  const kv::SelectionPolicy& policy = limits.selection;
  if (!policy.selects()) return {};
  const int64_t typical = policy.sink + policy.keys + policy.recent;
  StateCut cut;
  cut.split = RoundUp(kernels.ListedSplit(shape.kv_heads, typical), limits.page_slots);
  const kv::SelectionBounds bounds = BoundsOf(policy, limits.length, shape.kv_heads);
  cut.parts = static_cast<int>(CeilDiv(bounds.capacity * policy.summary.block_slots, cut.split));
  return cut;
}

// The same of what heads read of demoted tokens.
inline StateCut DemotedStates(const ModelShape& shape, const ExecutorLimits& limits,
                              const KernelSizes& kernels) {
  const kv::DemotionPolicy& policy = limits.demotion;
  if (!policy.demotes()) return {};
  StateCut cut;
  cut.split = RoundUp(kernels.ListedSplit(shape.kv_heads, policy.keys), limits.page_slots);
  cut.parts = static_cast<int>(
      CeilDiv(policy.blocks() * kv::DemotionPolicy::kSummary.block_slots, cut.split));
  return cut;
}

}  // namespace headway

#endif  // HEADWAY_ENGINE_STEP_SELECTED_STATES_H_
