// Choose: which cuts of the cache there are to choose from, and which of those that fit to take.
#ifndef HEADWAY_PLAN_CHOOSE_H_
#define HEADWAY_PLAN_CHOOSE_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "plan/fit.h"
#include "plan/plan.h"

namespace headway::plan {

inline constexpr int kStaging = 2;  // slabs: one is attended while the next is filled

// The chunk that is preferred: a step has no more tokens than there are.
int64_t AutoChunk(const PlanRequest& request);
// A slab longer than every sequence would be room that nothing fills, and of the last slab of a
// long one too much would stay empty.
int64_t AutoSegment(const PlanRequest& request);
// One segment that holds the longest sequence, as HeadInfer has it.
int64_t WholeSegment(const PlanRequest& request);

// The shares of the layers whose weights stream, and that come from disk.
struct WeightShares {
  double streamed = 0.0;
  double on_disk = 0.0;
  double code = 1.0;  // of a layer's bytes, those in host memory
};
WeightShares SharesOf(const PlanRequest& request, const Fit& fit);

// What the cost model takes of a cut.
Execution ExecutionFor(const CacheChoice& choice, const int64_t (&slabs)[kTierCount],
                       int64_t x_slabs, double host_share, const WeightShares& weights,
                       const std::vector<int64_t>& lengths);

// A cut that fits, with what the machine would do with it.
struct ScoredCut {
  CacheChoice choice;
  double host_share = 0.0;
  double seconds = 0.0;  // WorkloadSeconds
};

// The cuts to choose from, from the largest buffers to the smallest. The segment shrinks last: with
// the same segment and chunk, runs under different budgets agree to the last bit.
std::vector<CacheChoice> Candidates(const PlanRequest& request);

// The cut to take: the first candidate that fits, or where the request has a machine the fastest
// beside it. Nothing where none fits.
std::optional<ScoredCut> ChooseCut(const PlanRequest& request);

// Whether two cuts give the same bits for the sequences of the request: their steps and slabs end
// at the same tokens.
bool SameCut(const PlanRequest& request, const CacheChoice& a, const CacheChoice& b);

}  // namespace headway::plan

#endif  // HEADWAY_PLAN_CHOOSE_H_
