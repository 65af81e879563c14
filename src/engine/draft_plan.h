// The model that drafts, as far as plans know it: it stays on the device, its cache as well, beside
// what the model that verifies takes of the same budgets.
#ifndef HEADWAY_ENGINE_DRAFT_PLAN_H_
#define HEADWAY_ENGINE_DRAFT_PLAN_H_

#include "engine/blueprint.h"
#include "engine/settings.h"
#include "headway/status.h"
#include "model/config.h"
#include "model/model.h"

namespace headway {

struct DraftBasis {
  Settings settings;  // its own
  ModelConfig config;
  WeightBytes weights;
};

// Of a model of this configuration that drafts under `settings`, which are the other's.
DraftBasis DraftBasisOf(const Settings& settings, const ModelConfig& config,
                        const WeightBytes& weights);

// MakeBlueprint with all that is left to plans, and with one of the model that drafts; `draft` may
// be null.
Result<Blueprint> MakeBlueprints(const BlueprintInputs& inputs, const DraftBasis* draft,
                                 const Workload& workload);

// An error of the model that drafts.
Status OfDraft(const Status& error);

}  // namespace headway

#endif  // HEADWAY_ENGINE_DRAFT_PLAN_H_
