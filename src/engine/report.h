// What a user is told of a blueprint.
#ifndef HEADWAY_ENGINE_REPORT_H_
#define HEADWAY_ENGINE_REPORT_H_

#include "engine/blueprint.h"
#include "hardware/profiles.h"
#include "headway/plan.h"

namespace headway {

// With the smallest budgets that would do; the prediction is left out.
PlanReport ReportOf(const Blueprint& blueprint);

// What the plan's times say, of all sequences of the workload.
Prediction PredictionOf(const Blueprint& blueprint, const hardware::ChosenProfile& profile);
// Of a phase under a plan that was made for sequences at least as long.
double PhaseSeconds(const MachineProfile& machine, const Blueprint& blueprint, const Phase& phase);

}  // namespace headway

#endif  // HEADWAY_ENGINE_REPORT_H_
