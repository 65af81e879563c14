// What a plan says of itself, and why there is none.
#ifndef HEADWAY_PLAN_WORDS_H_
#define HEADWAY_PLAN_WORDS_H_

#include "headway/status.h"
#include "plan/fit.h"
#include "plan/plan.h"

namespace headway::plan {

// Fills Plan::reasons.
void GiveReasons(const PlanRequest& request, const Fit& fit, Plan* plan);

// Fills Plan::cut_notice: whether the plan cuts the cache as an all-resident run does, and what
// follows where it does not.
void CompareWithResident(const PlanRequest& request, Plan* plan);

// The error for a request of which no cut fits.
Status DoesNotFit(const PlanRequest& request);

}  // namespace headway::plan

#endif  // HEADWAY_PLAN_WORDS_H_
