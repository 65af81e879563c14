#include "plan/plan.h"

#include <gtest/gtest.h>

#include <string>

#include "base/bytes.h"
#include "base/random.h"
#include "plan/choose.h"
#include "plan/plan_testing.h"
#include "support/test_machines.h"

namespace headway::plan {
namespace {

TEST(Plan, ResidentWhenItFits) {
  Result<Plan> plan = MakePlan(Demo(16384));
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  // 8 layers × 16 segments of 1024 tokens, all heads in one group.
  EXPECT_EQ(plan->slabs[0], 128);
  EXPECT_EQ(plan->slabs[1] + plan->slabs[2], 0);
  EXPECT_EQ(plan->slab_bytes, kMiB);
  EXPECT_EQ(plan->kv_bytes, 128 * kMiB);
}

TEST(Plan, StaysInsideASmallBudgetAndKeepsChunkAndSegment) {
  PlanRequest request = Demo(16384);
  request.budgets = {8 * kMiB, 48 * kMiB, kGiB};
  Result<Plan> plan = MakePlan(request);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(plan->cache.chunk, 1024);
  EXPECT_EQ(plan->cache.segment_tokens, 1024);
  int64_t kv = 0, host = 0;
  for (const MemoryRow& row : plan->memory) {
    if (row.tag.starts_with("KV") && row.tier == Tier::kDevice) kv += row.bytes;
    if (row.tag.starts_with("KV") && row.tier == Tier::kHost) host += row.bytes;
  }
  EXPECT_LE(kv, 8 * kMiB);
  EXPECT_LE(host, 48 * kMiB);
  EXPECT_GT(plan->slabs[0], 0);
  EXPECT_GT(plan->slabs[1], 0);
  EXPECT_GT(plan->slabs[2], 0);
}

TEST(Plan, KeepsTheChunkWhereBuffersTakeMoreThanHalf) {
  PlanRequest request = Demo(16384);
  // 2.25 MiB of append buffer and 0.5 of open pages; staging takes 0.5 a head of the group.
  request.budgets = {4 * kMiB, kGiB, 0};
  const Result<Plan> plan = MakePlan(request);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(plan->cache.chunk, 1024);
  EXPECT_EQ(plan->cache.group_heads, 2);
}

TEST(Plan, SmallestBudgetsAreExactlySmallest) {
  PlanRequest request = Demo(16384);
  request.budgets = {kMiB / 4, kGiB, 0};
  Result<Plan> plan = MakePlan(request);
  ASSERT_FALSE(plan.ok());
  EXPECT_EQ(plan.status().code(), StatusCode::kOutOfBudget);
  EXPECT_NE(plan.status().message().find("kv_memory"), std::string::npos);
  const int64_t smallest = FindSmallestBudgets(request).kv;
  ASSERT_GT(smallest, 0);
  request.budgets.kv = smallest;
  EXPECT_TRUE(MakePlan(request).ok());
  request.budgets.kv = smallest - 4096;
  EXPECT_FALSE(MakePlan(request).ok());
}

TEST(Plan, ManyShortSequencesLeaveNoRoomEmpty) {
  PlanRequest request = Demo(290);
  EXPECT_EQ(MakePlan(request)->cache.segment_tokens, 1024);
  request.lengths.assign(64, 290);
  EXPECT_EQ(MakePlan(request)->cache.segment_tokens, 320);
  request.lengths[3] = 16384;
  EXPECT_EQ(MakePlan(request)->cache.segment_tokens, 1024);
}

// Of long segments, as GPUs have them, a last one that takes what is left would be mostly empty.
TEST(Plan, LeavesLittleOfTheSlabsEmpty) {
  Random random(3);
  for (int i = 0; i < 200; ++i) {
    const auto tokens = static_cast<int64_t>(1024 + random.Below(i % 2 == 0 ? 40'000 : 600'000));
    PlanRequest request = Demo(tokens);
    request.segment = 131072;
    const int64_t segment = AutoSegment(request);
    EXPECT_EQ(segment % request.page_slots, 0);
    EXPECT_LE(segment, request.segment);
    const int64_t segments = CeilDiv(tokens, segment);
    EXPECT_LE(segments * segment, tokens + tokens / 8 + 1024) << tokens << " by " << segment;
    EXPECT_LE(segments, CeilDiv(tokens, 32768) + 1) << tokens;
  }
}

// By hand: as many segments as preferred ones would be, each an eighth of a power of two longer at
// most than an equal share.
TEST(Plan, SegmentsOfAContextAreEquallyLong) {
  const auto segment = [](std::vector<int64_t> lengths) {
    PlanRequest request = Demo(1);
    request.segment = 131072;
    request.lengths = std::move(lengths);
    return AutoSegment(request);
  };
  EXPECT_EQ(segment({100}), 1024);
  EXPECT_EQ(segment({5000}), 5120);
  EXPECT_EQ(segment({32'768}), 32'768);
  EXPECT_EQ(segment({33'000}), 18'432);      // 2 of 16,500
  EXPECT_EQ(segment({65'536}), 32'768);      // 2
  EXPECT_EQ(segment({100'000}), 26'624);     // 4 of 25,000
  EXPECT_EQ(segment({131'098}), 45'056);     // 3 of 43,700
  EXPECT_EQ(segment({262'144}), 131'072);    // 2
  EXPECT_EQ(segment({1'000'000}), 131'072);  // 8 of 125,000
  // A quarter of the slabs may stay empty, no more.
  EXPECT_EQ(segment({16'384, 16'384, 8192}), 16'384);
  EXPECT_EQ(segment({16'384, 16'384, 6000}), 8192);
  EXPECT_EQ(segment({16'384, 8192, 4096}), 8192);
  EXPECT_EQ(segment({8192, 4096, 100}), 2048);
  EXPECT_EQ(segment({4096, 100, 100}), 1024);
  // The longest has eight at most for that.
  EXPECT_EQ(segment({32'768, 100, 100}), 4096);
  EXPECT_EQ(segment({1'000'000, 100, 100}), 131'072);
}

// A last page alone in a slab would take prefill on a GPU a launch of its own.
TEST(Plan, AWholeSegmentLeavesNoPageOver) {
  for (const int64_t tokens : {1, 64, 65, 4096, 32'800, 32'896}) {
    const int64_t segment = WholeSegment(Demo(tokens));
    EXPECT_EQ(segment % 128, 0) << tokens;
    EXPECT_GE(segment, tokens);
    EXPECT_LT(segment, tokens + 128);
  }
}

// Half of a page is a page: what is halved must stop there, and stay whole pages.
TEST(Plan, SegmentsAreWholePagesOfAnySize) {
  Random random(4);
  for (const int page : {1, 16, 48, 100, 300, 512, 1000, 1500, 2048, 3000, 4096}) {
    for (const int64_t preferred : {1024, 131072}) {
      for (const double share : {0.0, 0.5}) {
        for (int i = 0; i < 30; ++i) {
          PlanRequest request = Demo(1 + random.Below(i % 2 == 0 ? 3000 : 300'000));
          if (i % 3 == 0) request.lengths.push_back(1 + random.Below(3000));
          request.page_slots = page;
          request.segment = preferred;
          request.fixed.recompute = share;
          const int64_t segment = AutoSegment(request);
          EXPECT_GE(segment, page);
          EXPECT_EQ(segment % page, 0) << segment << " of pages of " << page;
        }
      }
    }
  }
}

TEST(Plan, SaysWhichTierWouldHelp) {
  PlanRequest request = Demo(16384);
  request.budgets = {8 * kMiB, 8 * kMiB, 0};
  Result<Plan> plan = MakePlan(request);
  ASSERT_FALSE(plan.ok());
  for (const char* option : {"kv_memory", "host_memory", "disk_memory"}) {
    EXPECT_NE(plan.status().message().find(option), std::string::npos) << plan.status().message();
  }
  // And as data: what would do, and what there is.
  ASSERT_NE(plan.status().refusal(), nullptr);
  const SmallestBudgets smallest = FindSmallestBudgets(request);
  int offers = 0;
  for (const Remedy& remedy : plan.status().refusal()->remedies) {
    const bool kv = remedy.budget == Option::kKvMemory, host = remedy.budget == Option::kHostMemory;
    EXPECT_EQ(remedy.need, kv ? smallest.kv : host ? smallest.host : smallest.disk);
    EXPECT_EQ(remedy.have, kv || host ? 8 * kMiB : 0);
    ++offers;
  }
  EXPECT_EQ(offers, 3);
}

TEST(Plan, WindowsNeedFewerSlabs) {
  PlanRequest request = Demo(16384);
  request.window.assign(8, 1024);
  Result<Plan> plan = MakePlan(request);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->slabs[0], 8 * 3);  // a window and a chunk of 1024, and one for the misfit
}

TEST(Plan, RefusesNonsense) {
  PlanRequest request = Demo(100);
  request.fixed.segment_tokens = 100;
  EXPECT_EQ(MakePlan(request).status().code(), StatusCode::kInvalidArgument);
  request = Demo(0);
  EXPECT_EQ(MakePlan(request).status().code(), StatusCode::kInvalidArgument);
  request = Demo(100);
  request.fixed.staging_slabs = -1;
  EXPECT_EQ(MakePlan(request).status().code(), StatusCode::kInvalidArgument);
}

TEST(Plan, ReadsFurtherAheadOfADisk) {
  PlanRequest request = Demo(16384);
  request.budgets = {16 * kMiB, 100 * kMiB, kGiB};  // most on the host
  EXPECT_EQ(MakePlan(request)->cache.staging_slabs, 2);
  request.budgets.host = 10 * kMiB;
  EXPECT_EQ(MakePlan(request)->cache.staging_slabs, 6);
  EXPECT_EQ(MakePlan(request)->cache.bounce_slabs, 6);
  request.budgets.host = 4 * kMiB;  // room for fewer
  EXPECT_EQ(MakePlan(request)->cache.staging_slabs, 4);
  request.fixed.staging_slabs = 2;
  EXPECT_EQ(MakePlan(request)->cache.staging_slabs, 2);
}

TEST(Plan, StreamingHeadsHaveNoSlabsAndARowOfTheirOwn) {
  PlanRequest request = Demo(16384);
  const int64_t exact = MakePlan(request)->kv_bytes;
  request.slab_heads = {4, 3, 2, 1, 0, 0, 2, 4};  // 16 of 32
  const auto exact_costs = request.costs.cache;
  request.costs.cache = [exact_costs](const CacheChoice& c) {
    CacheBytes bytes = exact_costs(c);
    bytes.streaming_heads = 100 * kKiB;
    return bytes;
  };
  Result<Plan> plan = MakePlan(request);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(plan->kv_bytes, exact / 2 + 100 * kKiB);
  // In groups of 4 heads the slabs would have room for 24; in groups of 2 it is 18.
  EXPECT_EQ(plan->cache.group_heads, 2);
  EXPECT_EQ(plan->slabs[0], 9 * 16);
  int64_t streaming = 0;
  for (const MemoryRow& row : plan->memory) {
    if (row.tag == "KV: streaming heads") streaming += row.bytes;
  }
  EXPECT_EQ(streaming, 100 * kKiB);
  // It is part of the fast tier's budget.
  const int64_t smallest = FindSmallestBudgets(request).kv;
  request.slab_heads.assign(8, 0);
  request.budgets = {smallest, 0, 0};
  plan = MakePlan(request);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(plan->slabs[0] + plan->slabs[1] + plan->slabs[2], 0);
  request.budgets.kv = 90 * kKiB;
  EXPECT_EQ(MakePlan(request).status().code(), StatusCode::kOutOfBudget);
}

TEST(Plan, ADiskNeedsNoHostTier) {
  PlanRequest request = Demo(16384);
  request.budgets = {8 * kMiB, 0, kGiB};
  const Result<Plan> plan = MakePlan(request);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(plan->slabs[1], 0);
  EXPECT_GT(plan->slabs[2], 0);
  EXPECT_GT(BytesOf(*plan, Tier::kHost, "KV: bounce buffers"), 0);  // shown, and beside the budget
  request.budgets.host = 1;
  const Status little = MakePlan(request).status();
  EXPECT_EQ(little.code(), StatusCode::kOutOfBudget);
  EXPECT_NE(little.message().find("host_memory 0KiB"), std::string::npos) << little.message();
}

// Pages that decode lists on disk stay in host memory: those of two steps, or as far as there is
// room, of which slabs have the other half if they lie there.
TEST(Plan, ListedPagesStayInHostMemory) {
  PlanRequest request = Demo(16384);
  const auto costs = request.costs.cache;
  int64_t of_step = 4;
  request.costs.cache = [costs, &of_step](const CacheChoice& c) {
    CacheBytes bytes = costs(c);
    bytes.listed_slabs = of_step;
    return bytes;
  };
  const auto listed = [&](Budgets budgets) {
    request.budgets = budgets;
    const Result<Plan> plan = MakePlan(request);
    EXPECT_TRUE(plan.ok()) << plan.status().message();
    EXPECT_EQ(plan->listed_steps,
              static_cast<double>(plan->listed_slabs) / static_cast<double>(of_step));
    EXPECT_EQ(BytesOf(*plan, Tier::kHost, "KV: pages from disk"),
              plan->listed_slabs * plan->slab_bytes);
    return *plan;
  };
  EXPECT_EQ(listed({16 * kMiB, 40 * kMiB, kGiB}).listed_slabs, 8);
  EXPECT_EQ(listed({16 * kMiB, kGiB, kGiB}).listed_slabs, 0);  // nothing is on disk
  const Plan half = listed({16 * kMiB, 16 * kMiB, kGiB});
  EXPECT_GT(half.listed_slabs, 0);
  EXPECT_LT(half.listed_slabs, 8);
  EXPECT_LE(half.listed_slabs, half.slabs[1]);
  EXPECT_LE(half.slabs[1], half.listed_slabs + 1);
  of_step = 100;  // which would be gone when they are listed again
  EXPECT_EQ(listed({16 * kMiB, 16 * kMiB, kGiB}).listed_slabs, 0);
  of_step = 4;
  request.keep_on_host = false;
  EXPECT_EQ(listed({16 * kMiB, 16 * kMiB, kGiB}).listed_slabs, 8);
  EXPECT_EQ(listed({16 * kMiB, 0, kGiB}).listed_slabs, 0);
}

// Memory, bus and times follow the bytes that slabs have, of whatever encoding.
TEST(Plan, EncodedPagesAreCountedAsTheyMove) {
  const MachineProfile machine = Simple();
  PlanRequest request = Demo(16384);
  request.machine = &machine;
  request.budgets = {8 * kMiB, kGiB, 0};
  request.keep_on_device = false;
  request.fixed = {1024, 4, 1024, 2, 0};
  const Plan plain = *MakePlan(request);
  const auto costs = request.costs.cache;
  request.costs.cache = [costs](const CacheChoice& choice) {
    CacheBytes bytes = costs(choice);
    bytes.slab /= 4;
    bytes.staging /= 4;
    return bytes;
  };
  const Plan encoded = *MakePlan(request);
  EXPECT_EQ(encoded.kv_bytes, plain.kv_bytes / 4);
  EXPECT_EQ(encoded.Bytes(Tier::kHost), plain.Bytes(Tier::kHost) / 4);
  const auto bus = static_cast<size_t>(CostLane::kHostToDevice);
  const auto down = static_cast<size_t>(CostLane::kDeviceToHost);
  EXPECT_NEAR(encoded.prefill.busy[down], plain.prefill.busy[down] / 4,
              1e-9 * plain.prefill.busy[down]);
  EXPECT_LT(encoded.decode.busy[bus], plain.decode.busy[bus] / 3);
  EXPECT_LE(encoded.decode.attention, plain.decode.attention);
  EXPECT_LT(encoded.decode.seconds, plain.decode.seconds);
}

TEST(Plan, RandomRequestsFitTheirBudgetsOrSayNo) {
  Random random(20240521);
  for (int i = 0; i < 300; ++i) {
    PlanRequest request = Demo(1 + random.Below(40000));
    request.budgets = {random.Below(20 * kMiB), random.Below(80 * kMiB),
                       random.Below(2) == 0 ? 0 : random.Below(300 * kMiB)};
    request.keep_on_device = random.Below(4) != 0;
    request.costs.cache = [costs = request.costs.cache,
                           slabs = random.Below(20)](const CacheChoice& choice) {
      CacheBytes bytes = costs(choice);
      bytes.listed_slabs = slabs;
      return bytes;
    };
    Result<Plan> plan = MakePlan(request);
    if (!plan.ok()) {
      EXPECT_EQ(plan.status().code(), StatusCode::kOutOfBudget);
      continue;
    }
    int64_t kv[kTierCount] = {};
    for (const MemoryRow& row : plan->memory) {
      if (row.tag.starts_with("KV")) kv[static_cast<int>(row.tier)] += row.bytes;
    }
    EXPECT_LE(kv[0], request.budgets.kv);
    EXPECT_TRUE(kv[1] <= request.budgets.host || request.budgets.host == 0);
    EXPECT_LE(kv[2], request.budgets.disk);
    const int64_t groups = CeilDiv(4, plan->cache.group_heads);
    EXPECT_EQ(plan->slabs[0] + plan->slabs[1] + plan->slabs[2],
              8 * groups * CeilDiv(request.lengths[0], plan->cache.segment_tokens));
  }
}

}  // namespace
}  // namespace headway::plan
