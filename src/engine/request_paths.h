// What settings ask of a plan's paths, and of the order in which prompts pass through the model.
#ifndef HEADWAY_ENGINE_REQUEST_PATHS_H_
#define HEADWAY_ENGINE_REQUEST_PATHS_H_

#include "base/types.h"
#include "engine/blueprint.h"
#include "engine/settings.h"
#include "headway/status.h"
#include "plan/plan.h"

namespace headway {

// What a policy fixes. HeadInfer's Algorithm 1 fetches the KV cache of the next head while the one
// before is attended to; offloading by layers, the paper's baseline, does that with all heads.
// KVPR recomputes the share of each layer's keys that its closed form says, and copies the rest.
void ApplyPolicy(Policy policy, plan::PlanRequest* request);

// The settings' policy and share: what the plan must recompute, or may.
Status ApplyRecompute(const BlueprintInputs& inputs, Encoding encoding, plan::PlanRequest* request);

// Behind it: the order of prompts that was asked for, or those that the plan may choose from.
Status ApplyPromptOrder(const BlueprintInputs& inputs, plan::PlanRequest* request);

}  // namespace headway

#endif  // HEADWAY_ENGINE_REQUEST_PATHS_H_
