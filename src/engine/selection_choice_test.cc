#include "engine/selection_choice.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/blueprint_testing.h"
#include "engine/report.h"
#include "kv/policy/selection.h"

namespace headway {
namespace {

// Under `--sparse --kv-encoding int8`, on an H200 or a CPU like its host.
struct Choosing : LlamaOnH200 {
  Choosing() {
    settings.selection.summary = {SummaryKind::kMoments, 16};
    settings.selection.keys = 2048;
    settings.selection.sink = 256;
    settings.selection.recent = 1024;
    settings.encoding = Encoding::kInt8;
    settings.placement = kv::PlacementKind::kRecent;
    settings.levels_by_plan = settings.blocks_by_plan = true;
  }
  Blueprint Made() const {
    Result<Blueprint> blueprint = OnGpu();
    EXPECT_TRUE(blueprint.ok()) << blueprint.status().message();
    return blueprint.ok() ? *std::move(blueprint) : Blueprint{};
  }
  kv::SelectionPolicy Chosen() const { return Made().layout.executor.selection; }
};

// Where all summaries have room, pages are searched first if reading those of blocks takes longer.
TEST(SelectionChoice, PagesAreSearchedFirstWhereThatIsFaster) {
  Choosing subject;
  subject.settings.blocks_by_plan = false;
  subject.length = 1'000'000;
  EXPECT_TRUE(subject.Chosen().searches_pages());
  EXPECT_EQ(subject.Chosen().candidates_refresh, 1);
  EXPECT_EQ(subject.Chosen().CandidatesAt(1'000'000), 8 * 2048);
  Choosing shorter = subject;
  shorter.length = 500'000;
  EXPECT_FALSE(shorter.Chosen().searches_pages());
  for (const auto& change : std::vector<std::function<void(Choosing&)>>{
           [](Choosing& s) { s.settings.levels_by_plan = false; },
           [](Choosing& s) { s.machine = nullptr; },
           [](Choosing& s) { s.settings.selection.refresh = 4; },
           [](Choosing& s) { s.settings.selection.breadth = 3; },
           [](Choosing& s) { s.settings.selection.summary.kind = SummaryKind::kMasses; },
           [](Choosing& s) {
             s.settings.selection.summary.block_slots = s.settings.cut.page_slots;
           }}) {
    Choosing other = subject;
    change(other);
    EXPECT_FALSE(other.Chosen().searches_pages());
  }
}

// Those of long contexts are most of what a choice reads. Finer ones may even take the room of
// weights, which then stream.
TEST(SelectionChoice, BlocksAreCoarserWhereThatIsMuchFaster) {
  Choosing subject;
  subject.length = 3'000'000;
  subject.settings.encoding = Encoding::kInt4;
  subject.gpu_memory = int64_t{24} << 30;
  const Blueprint chosen = subject.Made();
  EXPECT_EQ(chosen.layout.executor.selection.summary.block_slots, 64);
  EXPECT_EQ(chosen.plan.streamed_weight_bytes, 0);
  for (const auto& [tokens, block] : {std::pair{128 << 10, 16}, {1 << 20, 64}}) {
    Choosing other;
    other.length = tokens;
    other.gpu_memory = subject.gpu_memory;
    EXPECT_EQ(other.Chosen().summary.block_slots, block) << tokens;
    other.settings.blocks_by_plan = false;
    EXPECT_EQ(other.Chosen().summary.block_slots, 16);
  }
  subject.settings.blocks_by_plan = false;
  const Blueprint fine = subject.Made();
  EXPECT_EQ(fine.layout.executor.selection.summary.block_slots, 16);
  EXPECT_GT(fine.plan.streamed_weight_bytes, 0);
  EXPECT_GT(fine.plan.decode.seconds, 1.5 * chosen.plan.decode.seconds);
}

// Pages that are searched have some blocks each, whoever says how long these are.
TEST(SelectionChoice, BlocksOfPagesThatAreSearchedAreSmallerThanThese) {
  Choosing subject;
  subject.length = 3'000'000;
  subject.gpu_memory = int64_t{24} << 30;
  subject.settings.encoding = Encoding::kInt4;
  subject.settings.selection.breadth = kv::SelectionPolicy::kTwoLooks;
  subject.settings.selection.search_slots = subject.settings.cut.page_slots;
  const kv::SelectionPolicy chosen = subject.Chosen();
  EXPECT_TRUE(chosen.searches_pages());
  EXPECT_LT(chosen.summary.block_slots, subject.settings.cut.page_slots);
}

// What the plan says of a step that reads all keys and of one that chooses.
TEST(SelectionChoice, SequencesAreReadWholeAsLongAsThatIsAsFast) {
  Choosing subject;
  subject.length = 200'000;
  const PlannedBackend gpu = PlanGpuBackend(subject.gpu_memory);  // which costs ask
  const Blueprint blueprint = *subject.Draw(gpu.info, *gpu.sizes);
  const int64_t from = blueprint.layout.executor.selection.from;
  EXPECT_GT(from, 8'000);
  EXPECT_LT(from, 64'000);
  const auto seconds = [&](int64_t length, bool chooses) {
    plan::PlanRequest request = blueprint.request;
    request.selection.from = 0;
    if (!chooses) request.selection = {};
    return plan::DecodeAt(subject.h200, request, blueprint.plan, {length}).seconds;
  };
  EXPECT_LE(seconds(from - 1, false), seconds(from - 1, true));
  EXPECT_GT(seconds(from, false), seconds(from, true));
  // One that is shorter is never chosen of.
  subject.length = from / 2;
  EXPECT_EQ(subject.Made().layout.executor.selection.from, from / 2 + 1);
  EXPECT_EQ(subject.Made().plan.decode.seconds, seconds(from / 2, false));
}

TEST(SelectionChoice, ItServesNoMoreTokensThanAPageHas) {
  Choosing subject;
  subject.length = 100'000;
  subject.settings.sparse_from = 0;
  const PlannedBackend gpu = PlanGpuBackend(subject.gpu_memory);  // which reports ask
  const auto made = [&] { return *subject.Draw(gpu.info, *gpu.sizes); };
  const std::string renewed =
      "what is chosen for 96 tokens serves at most until a page of 64 closes, which renews it";
  for (const int64_t refresh : {64, 96}) {
    subject.settings.selection.refresh = refresh;
    const Blueprint blueprint = made();
    EXPECT_EQ(blueprint.request.selection.refresh, 64.0);
    const PlanReport report = ReportOf(blueprint);
    EXPECT_EQ(report.selection->refresh, 64);
    EXPECT_EQ(std::count(report.reasons.begin(), report.reasons.end(), renewed), refresh / 96);
  }
  subject.length = 1000;  // all of which is read
  const PlanReport whole = ReportOf(made());
  EXPECT_EQ(std::count(whole.reasons.begin(), whole.reasons.end(), renewed), 0);
}

TEST(SelectionChoice, WhatIsReadWholeMayBeAskedForAndIsForPagesAlone) {
  const auto from = [](const Result<Blueprint>& blueprint) {
    return blueprint->layout.executor.selection.from;
  };
  Choosing subject;
  subject.machine = nullptr;
  EXPECT_EQ(from(subject.OnGpu()), 32768);
  EXPECT_EQ(from(subject.OnCpu()), 4096);
  Choosing quest = subject;
  quest.settings.selection.summary.kind = SummaryKind::kBoxes;
  EXPECT_EQ(from(quest.OnGpu()), 0);
  EXPECT_EQ(from(quest.OnCpu()), 0);
  subject.settings.sparse_from = 500;
  EXPECT_EQ(from(subject.OnGpu()), 500);
  EXPECT_EQ(from(subject.OnCpu()), 500);
}

}  // namespace
}  // namespace headway
