#include "plan/draft_cost.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "plan/plan_testing.h"
#include "support/test_machines.h"

namespace headway::plan {
namespace {

// Llama-3-8B's shape at 131,072 tokens on an H200, of whose cache `resident` is on the device, and
// cores take `by_cores` of the rest.
struct Drafting {
  Drafting(double resident, double by_cores) {
    constexpr int64_t kSlabs = 100;
    request.shape = {32, 4096, 32, 8, 128, 14336, 128256, DType::kBF16};
    request.lengths = {131072};
    request.costs.cache = CacheCosts(request.shape);
    request.machine = &h200;
    request.drafts.most = 7;
    plan.cache.chunk = 8192;
    plan.cache.group_heads = 8;
    plan.cache.segment_tokens = 65536;
    plan.cache.staging_slabs = 2;
    plan.slabs[0] = static_cast<int64_t>(resident * kSlabs);
    plan.slabs[1] = kSlabs - plan.slabs[0];
    plan.host_share = by_cores;
  }
  DraftSpeed At(double accepted) const {
    return PredictDrafts(request, plan, request.lengths, accepted);
  }
  double TokensPerSecond(double accepted) const { return 1.0 / At(accepted).seconds; }

  MachineProfile h200 = Shipped("h200");
  PlanRequest request;
  Plan plan;
};

// docs/BENCHMARKS.md, "Drafts": a drafter that takes no time, one repetition of each.
TEST(DraftCost, IsNearWhatWasMeasured) {
  constexpr double kNear = 0.15;
  const Drafting below(0.0, 0.64), some(0.45, 0.64);
  EXPECT_NEAR(below.TokensPerSecond(0.7), 17.4, kNear * 17.4);
  EXPECT_NEAR(below.TokensPerSecond(0.9), 32.2, kNear * 32.2);
  EXPECT_NEAR(some.TokensPerSecond(0.9), 52.7, kNear * 52.7);
  // Since then steps without drafts have become 128 tokens a second from 113.7.
  const Drafting resident(1.0, 0.0);
  EXPECT_NEAR(resident.TokensPerSecond(0.5), 140.4 * 128.0 / 113.7, kNear * 158.0);
  EXPECT_NEAR(resident.TokensPerSecond(0.7), 189.2 * 128.0 / 113.7, kNear * 213.0);
  EXPECT_NEAR(resident.TokensPerSecond(0.9), 244.9 * 128.0 / 113.7, kNear * 276.0);
}

TEST(DraftCost, AsManyDraftsAsPay) {
  Drafting drafting(0.0, 0.64);
  const double plain = DecodeAt(drafting.h200, drafting.request, drafting.plan, {131072}).seconds;
  EXPECT_EQ(drafting.At(0.0).drafts, 0);
  EXPECT_EQ(drafting.At(0.0).seconds, plain);
  EXPECT_EQ(drafting.At(1.0).drafts, 7);
  double last = plain;
  for (const double accepted : {0.3, 0.5, 0.7, 0.9, 1.0}) {
    const DraftSpeed speed = drafting.At(accepted);
    EXPECT_LT(speed.seconds, last);
    last = speed.seconds;
  }
  // What makes them takes time: another model, or steps over chosen keys.
  Drafting slow = drafting;
  slow.request.machine = &slow.h200;
  slow.request.drafts.seconds = 0.01;
  EXPECT_LE(slow.At(0.7).drafts, drafting.At(0.7).drafts);
  EXPECT_GT(slow.At(0.7).seconds, drafting.At(0.7).seconds);
  slow.request.drafts.seconds = 2.0 * plain;
  EXPECT_EQ(slow.At(0.9).drafts, 0);
  Drafting chosen = drafting;
  chosen.request.machine = &chosen.h200;
  chosen.request.drafts.chosen = {.keys = 3328.0, .summary_bytes = 16.5};
  EXPECT_GT(chosen.At(0.9).seconds, drafting.At(0.9).seconds);
  EXPECT_LT(chosen.At(0.9).seconds, plain);
}

}  // namespace
}  // namespace headway::plan
