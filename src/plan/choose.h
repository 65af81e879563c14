// Choose: which cuts of the cache there are to choose from, and which of those that fit to take.
#ifndef HEADWAY_PLAN_CHOOSE_H_
#define HEADWAY_PLAN_CHOOSE_H_

#include <cstdint>
#include <vector>

#include "plan/fit.h"
#include "plan/plan.h"

namespace headway::plan {

inline constexpr int kStaging = 2;  // slabs: one is attended while the next is filled

// A slab longer than every sequence would be room that nothing fills, and of the last slab of a
// long one too much would stay empty.
int64_t AutoSegment(const PlanRequest& request);
// One segment that holds the longest sequence, as HeadInfer has it.
int64_t WholeSegment(const PlanRequest& request);

// Candidates from the largest buffers to the smallest. The segment shrinks last: with the same
// segment and chunk, runs under different budgets agree to the last bit.
std::vector<CacheChoice> Candidates(const PlanRequest& request);

// Of the plans that fit, the one to take: the first whose fixed buffers leave at least half of a
// limited budget to resident slabs, or else the first that fits.
// Null where none fits; with all_weights, none with all weights on the device.
const CacheChoice* Choose(const PlanRequest& request, const std::vector<CacheChoice>& candidates,
                          bool all_weights);

// Where most of the cache is read from disk, more buffers are worth more than resident slabs.
CacheChoice WithReadAhead(const PlanRequest& request, const CacheChoice& choice);

// The shares of the layers whose weights stream, and that come from disk.
struct WeightShares {
  double streamed = 0.0;
  double on_disk = 0.0;
};
WeightShares SharesOf(const PlanRequest& request, const Fit& fit);

// What the cost model takes of a cut.
Execution ExecutionFor(const CacheChoice& choice, const int64_t (&slabs)[kTierCount],
                       int64_t x_slabs, double host_share, const WeightShares& weights,
                       const std::vector<int64_t>& lengths);

// A cut that fits, with what the machine would do with it.
struct Scored {
  CacheChoice choice;
  double host_share = 0.0;
  double seconds = 0.0;  // WorkloadSeconds
};

// The fastest on the request's machine, which is not null: of `candidates` and others, beside
// `rule`, which fits.
Scored FastestCut(const PlanRequest& request, const std::vector<CacheChoice>& candidates,
                  const CacheChoice& rule);

}  // namespace headway::plan

#endif  // HEADWAY_PLAN_CHOOSE_H_
