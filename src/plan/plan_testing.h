// What the planner's own tests plan for: the demo model, with and without a device.
#ifndef HEADWAY_PLAN_PLAN_TESTING_H_
#define HEADWAY_PLAN_PLAN_TESTING_H_

#include <limits>
#include <string>

#include "base/bytes.h"
#include "plan/cost.h"
#include "plan/plan.h"
#include "support/test_machines.h"

namespace headway::plan {

// The demo model's shape with byte counts simple enough to check by hand.
inline PlanRequest Demo(int64_t tokens) {
  PlanRequest request;
  request.shape = {8, 384, 8, 4, 64, 1024, 8192, DType::kBF16};
  request.lengths = {tokens};
  request.weight_bytes = 34 * kMiB;
  request.budgets = {kGiB, kGiB, 0};
  request.costs.cache = CacheCosts(request.shape);
  request.costs.activations = [](const CacheChoice& c) { return c.chunk * 17 * kKiB; };
  request.costs.workspace = [](const CacheChoice&) { return kMiB; };
  return request;
}

// The demo model on a device with its own memory: 8 layers of 3 MiB, 10 MiB of other weights.
inline PlanRequest OnDevice(int64_t tokens, int64_t device) {
  PlanRequest request = Demo(tokens);
  request.layer_weight_bytes = 3 * kMiB;
  request.budgets = {std::numeric_limits<int64_t>::max(), kGiB, 0, device};
  request.chunk = 256;
  return request;
}

// One layer, one KV head of 100 elements and two query heads, two bytes an element: 400 bytes of K
// and V a token.
inline Subject Choosing() {
  Subject subject{{1, 1000, 2, 1, 100, 2000, 5000, DType::kBF16}, {}, 1.0};
  subject.selection = {.keys = 1000.0, .summary_bytes = 10.0};
  subject.selection.pool_tokens = 8.0;
  subject.selection.list_tokens = 64.0;
  subject.selection.block_keys = 16.0;
  return subject;
}

inline int64_t BytesOf(const Plan& plan, Tier tier, const std::string& tag) {
  int64_t bytes = 0;
  for (const MemoryRow& row : plan.memory) {
    if (row.tier == tier && row.tag == tag) bytes += row.bytes;
  }
  return bytes;
}

}  // namespace headway::plan

#endif  // HEADWAY_PLAN_PLAN_TESTING_H_
