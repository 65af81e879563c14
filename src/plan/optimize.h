// Optimiser: of the cuts of a cache that fit, and of the ways to share work between lanes, the
// fastest by the cost model. Deterministic, and small: a handful of candidates, each predicted.
#ifndef HEADWAY_PLAN_OPTIMIZE_H_
#define HEADWAY_PLAN_OPTIMIZE_H_

#include <cstdint>
#include <span>
#include <vector>

#include "plan/cost.h"

namespace headway::plan {

struct SplitOptions {
  bool host = false;       // cores may attend
  bool recompute = false;  // keys and values may come from X
};

// The execution with the split that decodes sequences of these lengths fastest.
// What is resident, on disk, and recomputed unless the options let that be chosen, stays as it is;
// what is in host memory is shared between stream, host and recompute as the options allow. Every
// single path, KVPR's closed form and the balance of bus and cores are among the candidates, so
// that none of them is faster.
Execution BestSplit(const MachineProfile& machine, const Subject& subject,
                    const Execution& execution, std::span<const int64_t> lengths,
                    const SplitOptions& options);

// What candidates are compared by: reading all sequences, and kScoredSteps decode steps behind.
inline constexpr double kScoredSteps = 256.0;
double WorkloadSeconds(const MachineProfile& machine, const Subject& subject,
                       const Execution& execution, std::span<const int64_t> lengths);

}  // namespace headway::plan

#endif  // HEADWAY_PLAN_OPTIMIZE_H_
