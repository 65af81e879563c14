// What decode takes where steps verify drafts: as many as give the most tokens in the time.
#ifndef HEADWAY_PLAN_DRAFT_COST_H_
#define HEADWAY_PLAN_DRAFT_COST_H_

#include <cstdint>
#include <span>

#include "plan/plan.h"

namespace headway::plan {

struct DraftSpeed {
  double accepted = 0.0;  // the probability that a draft is right whose predecessors are
  int64_t drafts = 0;     // of a sequence in a step, on a whole page of tokens
  double seconds = 0.0;   // for a token of each sequence
};

// By the request's machine, of sequences that have these lengths, with request.drafts.most drafts
// at most: a step with drafts gives 1 + a + ... + a^g tokens. A page closes in steps without.
DraftSpeed PredictDrafts(const PlanRequest& request, const Plan& plan,
                         const std::vector<int64_t>& lengths, double accepted);

}  // namespace headway::plan

#endif  // HEADWAY_PLAN_DRAFT_COST_H_
