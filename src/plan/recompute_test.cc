#include <gtest/gtest.h>

#include <numeric>

#include "base/bytes.h"
#include "base/random.h"
#include "plan/choose.h"
#include "plan/optimize.h"
#include "support/test_machines.h"

namespace headway::plan {
namespace {

TEST(Recompute, ASharePicksWholeSegmentsOfTheBatch) {
  using Segments = std::vector<int>;
  EXPECT_EQ(XSegments(0.0, {640, 640}, 1024), (Segments{0, 0}));
  EXPECT_EQ(XSegments(1.0, {640, 2000, 1024}, 1024), (Segments{1, 2, 1}));
  EXPECT_EQ(XSegments(0.5, {640, 640, 640, 640}, 1024), (Segments{1, 0, 1, 0}));
  EXPECT_EQ(XSegments(0.25, {100'000}, 1024), (Segments{25}));  // of 98
  Random random(1);
  for (int i = 0; i < 200; ++i) {
    const double share = static_cast<double>(random.Uniform());
    std::vector<int64_t> lengths(static_cast<size_t>(1 + random.Below(70)));
    for (int64_t& length : lengths) length = 1 + random.Below(5000);
    const std::vector<int> segments = XSegments(share, lengths, 256);
    int64_t all = 0;
    for (size_t s = 0; s < lengths.size(); ++s) {
      EXPECT_GE(segments[s], 0);
      EXPECT_LE(segments[s], CeilDiv(lengths[s], 256));
      all += CeilDiv(lengths[s], 256);
    }
    EXPECT_NEAR(std::accumulate(segments.begin(), segments.end(), 0.0),
                share * static_cast<double>(all), 0.5 + 1e-9);
  }
}

TEST(Recompute, AShareOfOneSequenceIsOneOfSixteenSegments) {
  PlanRequest request;
  request.lengths = {40'000};
  request.segment = 131072;
  EXPECT_EQ(AutoSegment(request), 20'480);
  request.fixed.recompute = 0.3;
  EXPECT_EQ(AutoSegment(request), 2560);
  request.lengths = {1000};  // 256 tokens at least
  EXPECT_EQ(AutoSegment(request), 256);
  request.fixed.recompute = 1.0;
  EXPECT_EQ(AutoSegment(request), 1024);
}

TEST(Recompute, AGatherIsAnEfficientProductOrASegment) {
  CacheChoice choice;
  choice.segment_tokens = 256;
  EXPECT_EQ(GatherTokens(choice, {5000}), 0);
  choice.recompute = 1.0;
  EXPECT_EQ(GatherTokens(choice, {5000}), 2048);
  EXPECT_EQ(GatherTokens(choice, {300}), 512);
  choice.segment_tokens = 4096;
  EXPECT_EQ(GatherTokens(choice, {5000}), 4096);
}

// KVPR's batch of 64 sequences, of a prompt of 512 and 128 new tokens.
PlanRequest Batch(const ModelShape& shape, const MachineProfile* machine) {
  PlanRequest request;
  request.shape = shape;
  request.lengths.assign(64, 640);
  request.machine = machine;
  request.costs.cache = CacheCosts(shape);
  request.costs.activations = [](const CacheChoice&) { return kMiB; };
  request.costs.workspace = [](const CacheChoice&) { return kMiB; };
  request.budgets = {16 * kGiB, 256 * kGiB, 0};
  request.keep_on_device = false;
  return request;
}

int64_t RowOf(const Plan& plan, const std::string& tag) {
  for (const MemoryRow& row : plan.memory) {
    if (row.tag == tag) return row.bytes;
  }
  return 0;
}

// Segments that recompute are halved as far as whole pages go.
TEST(Recompute, TakesPagesOfAnySize) {
  const MachineProfile machine = Shipped("h200");
  for (const int page : {48, 300, 512, 4096}) {
    PlanRequest request = Batch(kOpt67B, &machine);
    request.page_slots = page;
    request.recompute = true;
    const Result<Plan> plan = MakePlan(request);
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    EXPECT_EQ(plan->cache.segment_tokens % page, 0) << page;
  }
}

TEST(Recompute, XTakesItsOwnRoom) {
  PlanRequest request = Batch(kOpt67B, nullptr);
  request.fixed.group_heads = 32;
  request.fixed.segment_tokens = 1024;
  request.fixed.recompute = 0.5;
  Result<Plan> plan = MakePlan(request);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(plan->x_slabs, 32 * 32);
  EXPECT_EQ(plan->slabs[1], 32 * 32);
  EXPECT_EQ(RowOf(*plan, "KV: host slabs"), 32 * 32 * 16 * kMiB);
  EXPECT_EQ(RowOf(*plan, "KV: host slabs of X"), 32 * 32 * 8 * kMiB);
  EXPECT_EQ(plan->kv_bytes, int64_t{32} * 640 * 32 * (2 + 1) * 4096 * 2);
  // The smallest budget is what both take.
  request.budgets.host = 32 * 32 * 24 * kMiB;
  EXPECT_TRUE(MakePlan(request).ok());
  request.budgets.host -= 1;
  EXPECT_EQ(MakePlan(request).status().code(), StatusCode::kOutOfBudget);
  EXPECT_EQ(FindSmallestBudgets(request).host, 32 * 32 * 24 * kMiB);
  // Also where nothing else is in host memory.
  request.fixed.recompute = 1.0;
  EXPECT_EQ(FindSmallestBudgets(request).host, 64 * 32 * 8 * kMiB);
}

TEST(Recompute, PaysForKvprsBatchesAndNeverForGroupedQueries) {
  const MachineProfile h200 = Shipped("h200");
  for (const ModelShape& shape : {kOpt67B, kOpt13B, kOpt30B}) {
    PlanRequest request = Batch(shape, &h200);
    const Result<Plan> without = MakePlan(request);
    request.recompute = true;
    const Result<Plan> plan = MakePlan(request);
    ASSERT_TRUE(plan.ok() && without.ok());
    EXPECT_GT(plan->x_slabs, 0);
    EXPECT_GT(without->decode.seconds / plan->decode.seconds, 1.45);
    request.host_attention = true;
    const Result<Plan> mixed = MakePlan(request);
    ASSERT_TRUE(mixed.ok());
    EXPECT_LT(mixed->decode.seconds, plan->decode.seconds);
  }
  Random random(2);
  for (int i = 0; i < 20; ++i) {
    const MachineProfile machine = i == 0 ? h200 : RandomMachine(random);
    PlanRequest request = Batch(kLlama8B, &machine);
    request.recompute = true;
    const Result<Plan> plan = MakePlan(request);
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    EXPECT_EQ(plan->x_slabs, 0);
    EXPECT_NE(plan->reasons.back().find("so that it never pays"), std::string::npos)
        << plan->reasons.back();
  }
}

// On any machine the plan that may recompute is as fast as the one that may not, and as KVPR's.
TEST(Recompute, IsNeverSlowerThanKvpr) {
  Random random(3);
  int recomputed = 0;
  for (int i = 0; i < 24; ++i) {
    const MachineProfile machine = RandomMachine(random);
    PlanRequest request = Batch(i % 2 == 0 ? kOpt67B : kOpt13B, &machine);
    for (int64_t& length : request.lengths) length = 128 + random.Below(1000);
    const auto seconds = [&](const PlanRequest& asked, const Plan& plan) {
      return WorkloadSeconds(machine, SubjectOf(asked, plan.cache),
                             ExecutionOf(plan, asked.lengths), asked.lengths);
    };
    const Result<Plan> without = MakePlan(request);
    PlanRequest kvpr = request;
    kvpr.fixed.group_heads = kvpr.shape.kv_heads;
    kvpr.fixed.staging_slabs = 2;
    kvpr.fixed.recompute =
        RecomputeSplit(kvpr.shape, 1.0, machine.host_to_device.Peak(), machine.gemm.Peak());
    const Result<Plan> paper = MakePlan(kvpr);
    request.recompute = true;
    const Result<Plan> plan = MakePlan(request);
    ASSERT_TRUE(plan.ok() && without.ok() && paper.ok());
    recomputed += plan->x_slabs > 0;
    // What is not clearly faster is not taken; shares are whole segments.
    const double chosen = seconds(request, *plan);
    EXPECT_LE(chosen, seconds(request, *without) * (1 + 1e-3));
    EXPECT_LE(chosen, seconds(kvpr, *paper) / 0.95 * (1 + 1e-2));
  }
  EXPECT_GT(recomputed, 3);
}

}  // namespace
}  // namespace headway::plan
