#include "plan/optimize.h"

#include <gtest/gtest.h>

#include "base/bytes.h"
#include "plan/plan.h"
#include "support/test_machines.h"

namespace headway::plan {
namespace {

ModelShape RandomShape(Random& random) {
  ModelShape shape;
  shape.layers = static_cast<int>(1 + random.Below(48));
  shape.kv_heads = static_cast<int>(1 + random.Below(16));
  shape.query_heads = shape.kv_heads * static_cast<int>(1 + random.Below(8));
  shape.head_dim = 64 << random.Below(2);
  shape.d_model = static_cast<int>(512 * (1 + random.Below(16)));
  shape.d_ff = 3 * shape.d_model;
  shape.vocab = 32000;
  return shape;
}

TEST(Optimize, NoNamedPolicyIsFaster) {
  Random random(11);
  for (int i = 0; i < 20; ++i) {
    const MachineProfile machine = RandomMachine(random);
    const Subject subject{RandomShape(random), {}, 1.0};
    const std::vector<int64_t> lengths(1 + random.Below(16),
                                       1 + static_cast<int64_t>(random.Below(200'000)));
    Execution run;
    run.segment_tokens = 1024 << random.Below(6);
    run.group_heads = subject.shape.kv_heads;
    const double resident = 0.1 * static_cast<double>(random.Below(8));
    run.weights_streamed = random.Below(2) == 0 ? 0.0 : 1.0;
    run.weights_on_disk = run.weights_streamed * static_cast<double>(random.Below(3)) / 4.0;
    const auto seconds = [&](const CacheSplit& split) {
      Execution policy = run;
      policy.split = split;
      return PredictDecode(machine, subject, policy, lengths).seconds;
    };
    run.split = {.resident = resident, .stream = 1.0 - resident};
    SplitOptions options;
    options.host = options.recompute = true;
    const Execution best = BestSplit(machine, subject, run, lengths, options);
    const double latency = seconds(best.split);
    const double rest = 1.0 - resident;
    const double kvpr = rest * RecomputeSplit(subject.shape, 1.0, machine.host_to_device.Peak(),
                                              machine.gemm.Peak());
    const CacheSplit named[] = {
        {.resident = resident, .stream = rest},             // HeadInfer, layerwise
        {.resident = resident, .stream = 0, .host = rest},  // HGCA without its mask
        {.resident = resident, .stream = 0, .recompute = rest},
        {.resident = resident, .stream = rest - kvpr, .recompute = kvpr}};  // KVPR
    for (const CacheSplit& split : named) {
      // Shares are whole 256ths: KVPR's split may lie between two.
      EXPECT_LE(latency, seconds(split) * (1 + 1.0 / 128));
    }
    EXPECT_DOUBLE_EQ(best.split.resident, resident);
    EXPECT_NEAR(best.split.stream + best.split.host + best.split.recompute, rest, 1e-12);
    // What is not allowed is not done.
    const Execution only = BestSplit(machine, subject, run, lengths, {});
    EXPECT_EQ(only.split.host + only.split.recompute, 0.0);
  }
}

TEST(Optimize, LanesEndTogether) {
  const MachineProfile h200 = Shipped("h200");
  const Subject subject{kLlama8B, {}, 1.0};
  Execution run;
  run.chunk = 8192;
  run.group_heads = 8;
  run.segment_tokens = 32768;
  run.split = {.resident = 0, .stream = 1};
  const int64_t length = 131072;
  SplitOptions options;
  options.host = true;
  const double stream = PredictDecode(h200, subject, run, {&length, 1}).seconds;
  const Execution best = BestSplit(h200, subject, run, {&length, 1}, options);
  const StepTime time = PredictDecode(h200, subject, best, {&length, 1});
  EXPECT_GT(stream / time.seconds, 2.3);
  const double bus = time.busy[static_cast<int>(CostLane::kHostToDevice)];
  const double cpu = time.busy[static_cast<int>(CostLane::kHost)];
  EXPECT_NEAR(bus / cpu, 1.0, 0.1);
}

TEST(Optimize, RecomputesWhereXIsSmall) {
  const MachineProfile a100 = Shipped("a100-40-pcie");
  SplitOptions options;
  options.recompute = true;
  Execution run;
  run.segment_tokens = 1024;
  run.group_heads = 32;
  run.staging_slabs = 64;
  run.split = {.resident = 0, .stream = 1};
  const std::vector<int64_t> lengths(64, 512);
  const Execution opt = BestSplit(a100, {kOpt67B, {}, 1.0}, run, lengths, options);
  EXPECT_GT(opt.split.recompute, 0.3);
  EXPECT_LT(opt.split.recompute, 1.0);
  const Execution llama = BestSplit(a100, {kLlama8B, {}, 1.0}, run, lengths, options);
  EXPECT_EQ(llama.split.recompute, 0.0);
}

// --- In the planner

PlanRequest Request(Random& random, const ModelShape& shape, const MachineProfile* machine) {
  PlanRequest request;
  request.shape = shape;
  request.lengths = {1 + static_cast<int64_t>(random.Below(100'000))};
  request.machine = machine;
  request.costs.cache = CacheCosts(shape);
  request.costs.activations = [](const CacheChoice&) { return kMiB; };
  request.costs.workspace = [](const CacheChoice&) { return kMiB; };
  const int64_t cache = request.lengths[0] * shape.KvBytesPerToken();
  request.budgets.kv =
      cache / 8 + static_cast<int64_t>(random.Below(static_cast<uint64_t>(cache) + kMiB));
  request.budgets.host = random.Below(3) == 0 ? cache / 2 : 4 * cache + kGiB;
  request.budgets.disk = random.Below(3) == 0 ? 4 * cache + kGiB : 0;
  return request;
}

TEST(Optimize, ThePlanIsAsFastAsEveryCutThatFits) {
  Random random(12);
  int planned = 0;
  for (int i = 0; i < 60; ++i) {
    const MachineProfile machine = RandomMachine(random);
    const ModelShape shape = RandomShape(random);
    PlanRequest request = Request(random, shape, &machine);
    request.host_attention = random.Below(2) == 0;
    const Result<Plan> plan = MakePlan(request);
    if (!plan.ok()) continue;
    ++planned;
    const double chosen = WorkloadSeconds(machine, SubjectOf(request, plan->cache),
                                          ExecutionOf(*plan, request.lengths), request.lengths);
    // HeadInfer's and the layerwise policy, with the plan's segment and with one for all.
    for (int group : {1, shape.kv_heads}) {
      for (int64_t segment : {plan->cache.segment_tokens, RoundUp(request.lengths[0], 64)}) {
        PlanRequest fixed = request;
        fixed.fixed.chunk = plan->cache.chunk;
        fixed.fixed.group_heads = group;
        fixed.fixed.segment_tokens = segment;
        fixed.fixed.staging_slabs = 2;
        fixed.keep_on_device = random.Below(2) == 0;
        const Result<Plan> policy = MakePlan(fixed);
        if (!policy.ok()) continue;
        const double seconds = WorkloadSeconds(machine, SubjectOf(fixed, policy->cache),
                                               ExecutionOf(*policy, fixed.lengths), fixed.lengths);
        // Another segment must be clearly faster to be taken.
        EXPECT_LE(chosen, seconds / 0.95 * (1 + 2e-3)) << group << " " << segment;
      }
    }
    // Deterministic.
    const Result<Plan> again = MakePlan(request);
    ASSERT_TRUE(again.ok());
    EXPECT_EQ(again->cache.group_heads, plan->cache.group_heads);
    EXPECT_EQ(again->host_share, plan->host_share);
    if (i % 8 != 0) continue;
    for (const std::string& sentence : ExplainSpeed(request, *plan)) EXPECT_NE(sentence, "");
  }
  EXPECT_GT(planned, 30);
}

// Runs under different budgets should agree to the last bit, so that the rule's segment stays
// unless another is clearly faster than the fastest cut with it.
TEST(Optimize, AnotherSegmentIsClearlyFaster) {
  Random random(14);
  int others = 0;
  for (int i = 0; i < 150; ++i) {
    const MachineProfile machine = RandomMachine(random);
    const ModelShape shape = RandomShape(random);
    PlanRequest request = Request(random, shape, &machine);
    PlanRequest rule = request;
    rule.machine = nullptr;
    const Result<Plan> plan = MakePlan(request);
    const Result<Plan> by_rule = MakePlan(rule);
    ASSERT_EQ(plan.ok(), by_rule.ok());
    if (!plan.ok()) continue;
    EXPECT_EQ(plan->cache.chunk, by_rule->cache.chunk);
    if (plan->cache.segment_tokens == by_rule->cache.segment_tokens) continue;
    ++others;
    const auto seconds = [&](const Plan& of) {
      return WorkloadSeconds(machine, SubjectOf(request, of.cache),
                             ExecutionOf(of, request.lengths), request.lengths);
    };
    PlanRequest same = request;
    same.fixed.chunk = by_rule->cache.chunk;
    same.fixed.segment_tokens = by_rule->cache.segment_tokens;
    EXPECT_LT(seconds(*plan), 0.951 * seconds(*MakePlan(same)));
  }
  EXPECT_GT(others, 3);
}

TEST(Optimize, WithoutAMachineTheRuleDecides) {
  Random random(13);
  for (int i = 0; i < 50; ++i) {
    PlanRequest request = Request(random, RandomShape(random), nullptr);
    const Result<Plan> plan = MakePlan(request);
    if (!plan.ok()) continue;
    EXPECT_EQ(plan->decode.seconds, 0.0);
    EXPECT_EQ(plan->host_share, 0.0);
    EXPECT_TRUE(ExplainSpeed(request, *plan).empty());
    // With one, chunk and segment stay unless another cut is clearly faster.
    const MachineProfile machine = RandomMachine(random);
    request.machine = &machine;
    const Result<Plan> timed = MakePlan(request);
    ASSERT_TRUE(timed.ok());
    EXPECT_EQ(timed->cache.chunk, plan->cache.chunk);
    EXPECT_GT(timed->decode.seconds, 0.0);
    EXPECT_GT(timed->prefill.seconds, 0.0);
  }
}

TEST(Optimize, WhatDoesNotFitSaysTheCheapestChange) {
  Random random(14);
  PlanRequest request = Request(random, kLlama8B, nullptr);
  request.lengths = {100'000};
  request.budgets = {2 * kGiB, kGiB, 0};
  const Status refused = MakePlan(request).status();
  const std::string& message = refused.message();
  // Disk is cheaper than RAM.
  const size_t disk = message.find("disk_memory"), host = message.find("host_memory");
  ASSERT_NE(disk, std::string::npos) << message;
  ASSERT_NE(host, std::string::npos) << message;
  EXPECT_LT(disk, host);
  const size_t at = message.find("a context of at most ");
  ASSERT_NE(at, std::string::npos) << message;
  request.lengths = {std::stoll(message.substr(at + 21))};
  EXPECT_EQ(refused.refusal()->longest, request.lengths[0]);
  EXPECT_TRUE(MakePlan(request).ok());
  request.lengths[0] += 64;
  EXPECT_FALSE(MakePlan(request).ok());
}

}  // namespace
}  // namespace headway::plan
