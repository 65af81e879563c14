// Fit: what a cut of the cache takes of each tier, and whether that is there.
#ifndef HEADWAY_PLAN_FIT_H_
#define HEADWAY_PLAN_FIT_H_

#include <cstdint>
#include <limits>

#include "plan/plan.h"

namespace headway::plan {

inline constexpr int64_t kUnbounded = std::numeric_limits<int64_t>::max();

// Of all sequences at their full lengths.
int64_t TotalTokens(const PlanRequest& request);

// KV heads that have slabs, of a layer and of all.
int SlabHeads(const PlanRequest& request, int layer);
int64_t SlabHeads(const PlanRequest& request);

// Weights with the matrices of so many layers on the device, and of so many others on disk.
struct WeightSplit {
  int64_t resident = 0;
  int64_t buffers = 0;  // on the device
  int64_t host = 0;
  int64_t bounce = 0;  // in host memory, for those on disk
  int64_t disk = 0;
  int64_t streamed() const { return host + disk; }
};
WeightSplit SplitWeights(const PlanRequest& request, int resident, int on_disk);

struct Fit {
  bool ok = false;
  int weight_layers = 0;
  int disk_layers = 0;
  int64_t room = 0;  // that cache, and layers where not all are resident, may take of the fast tier
  int64_t slabs[kTierCount] = {};
  int64_t x_slabs = 0;
  int64_t bounce = 0;         // in host memory, between disk and device
  int64_t page_cache = 0;     // on the device
  int64_t listed_slabs = 0;   // in host memory
  double listed_steps = 0.0;  // by CacheBytes::listed_slabs
  int64_t page_tables = 0;    // on the device, for host memory
  // Slabs are on disk that host memory has room for, and the device not for its page tables.
  bool few_on_host = false;
};

// Weights come before keys and values where not both fit: a byte that stays saves a byte of the bus
// in each step, but one of the cache only from when it is filled, and cores of the host can attend
// to what stays there. In host memory they come first, too: what it does not hold is read from
// disk.
Fit TryFit(const PlanRequest& request, const CacheChoice& choice);

// Steps whose chosen keys the page cache of a fit holds.
double PageCacheSteps(const PlanRequest& request, const Fit& fit);

}  // namespace headway::plan

#endif  // HEADWAY_PLAN_FIT_H_
