// Stretch: how many tokens of prompts pass through one layer before the next.
#ifndef HEADWAY_PLAN_STRETCH_H_
#define HEADWAY_PLAN_STRETCH_H_

#include <cstdint>
#include <vector>

#include "plan/plan.h"

namespace headway::plan {

// A stretch of one chunk is a step of all layers.
inline int64_t LeastStretch(int64_t chunk) { return 2 * chunk; }

// From the longest to the shortest, of whole chunks; none where prompts have no more than one.
std::vector<int64_t> Stretches(const PlanRequest& request, int64_t chunk);

// The same cut with the longest stretch that fits, if it has one.
CacheChoice WithLongestStretch(const PlanRequest& request, const CacheChoice& choice);

}  // namespace headway::plan

#endif  // HEADWAY_PLAN_STRETCH_H_
