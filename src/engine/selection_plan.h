// What a selection is for a context: whether it reaches beyond the model's window and chooses keys
// in prompts, what a plan must know of it, and what is refused.
#ifndef HEADWAY_ENGINE_SELECTION_PLAN_H_
#define HEADWAY_ENGINE_SELECTION_PLAN_H_

#include <cstdint>

#include "engine/blueprint.h"
#include "engine/layout.h"
#include "headway/status.h"
#include "kv/policy/placement.h"
#include "kv/policy/selection.h"
#include "plan/plan.h"

namespace headway {

// The settings' selection, as it is for contexts of these lengths.
Result<kv::SelectionPolicy> SelectionFor(const BlueprintInputs& inputs, const Workload& workload);
// Whether the kernels know it.
Status CheckSelection(const LayoutBasis& basis);
// What reaches beyond the window needs every key in memory: from disk keys are read whole, and at
// their own distance.
Status CheckReach(const kv::SelectionPolicy& policy, const plan::Plan& plan);

// The longest chunk of prompts.
int64_t ChunkFor(const LayoutBasis& basis);
plan::KeySelection KeysChosen(const LayoutBasis& basis, kv::PlacementKind placement);
// What a page cache on a device that reads host memory over a bus is wanted to have; kUnsupported
// for one that has none.
Result<plan::PageCacheRequest> PageCacheFor(const BlueprintInputs& inputs,
                                            const LayoutBasis& basis);
// Sequences of up to so many tokens are read whole under this plan, since a step that reads them is
// as fast as one that chooses.
int64_t ReadWhole(const BlueprintInputs& inputs, const plan::PlanRequest& request,
                  const plan::Plan& plan);

}  // namespace headway

#endif  // HEADWAY_ENGINE_SELECTION_PLAN_H_
