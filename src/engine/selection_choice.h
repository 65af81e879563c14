// The fastest of the selections that the settings leave to the planner.
#ifndef HEADWAY_ENGINE_SELECTION_CHOICE_H_
#define HEADWAY_ENGINE_SELECTION_CHOICE_H_

#include "engine/blueprint.h"
#include "headway/status.h"

namespace headway {

// MakeBlueprint, and on a GPU whose speeds are known with levels and blocks of summaries by which a
// decode step is fastest, where the settings do not say which. Levels cost nothing in KL, so any
// gain is taken; coarser blocks do within the trained window (docs/decisions/selection.md,
// "Blocks"), and must be worth it.
Result<Blueprint> MakeFastestBlueprint(const BlueprintInputs& inputs, const Workload& workload);

}  // namespace headway

#endif  // HEADWAY_ENGINE_SELECTION_CHOICE_H_
