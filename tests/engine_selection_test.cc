// The path `selection`: keys that are all listed are attended to exactly; where pages lie, forks
// and cuts never change a bit; short contexts are read whole.
#include <gtest/gtest.h>

#include <algorithm>
#include <list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "support/forwarding_kernels.h"
#include "support/grid.h"
#include "support/step_harness.h"

namespace headway::testing {
namespace {

kv::SelectionPolicy PolicyOf(int64_t keys, SummaryKind kind = SummaryKind::kMoments) {
  kv::SelectionPolicy policy;
  policy.summary = {kind, 8};
  policy.keys = keys;
  policy.sink = 6;
  policy.recent = 20;
  const bool layer = kind == SummaryKind::kMoments || kind == SummaryKind::kMasses;
  policy.share = layer ? BudgetShare::kLayer : BudgetShare::kHead;
  if (kind == SummaryKind::kStages) policy.stages = {{{64, 128}, {16, 64}}};
  return policy;
}

// The same in two looks.
kv::SelectionPolicy TwoLooks(int64_t keys) {
  kv::SelectionPolicy policy = PolicyOf(keys);
  policy.summary.sketch = SketchKind::kTwoBits;
  policy.breadth = 3;
  return policy;
}

// One look in which a step chooses among candidates of an earlier one.
kv::SelectionPolicy KeepsCandidates(int64_t keys, int64_t refresh) {
  kv::SelectionPolicy policy = PolicyOf(keys);
  policy.breadth = 3;
  policy.candidates_refresh = refresh;
  return policy;
}

// Stages that are renewed in their own time.
kv::SelectionPolicy KeepsSurvivors(int64_t keys, int64_t first, int64_t second, int64_t last) {
  kv::SelectionPolicy policy = PolicyOf(keys, SummaryKind::kStages);
  policy.stages[0].refresh = first;
  policy.stages[1].refresh = second;
  policy.refresh = last;
  return policy;
}

// Lists all blocks, whatever they score.
class ListsAll : public ForwardingKernels {
 public:
  ListsAll(std::unique_ptr<Kernels> inner, int64_t* calls)
      : ForwardingKernels(std::move(inner)), calls_(calls) {}

  void SelectBlocks(Stream& stream, const PageFormat&, const SummaryFormat&, int, float,
                    std::span<const SelectItem> items) override {
    for (const SelectItem& item : items) {
      ASSERT_LE(item.keys.blocks, item.capacity);
      ASSERT_LT(item.budget.far_blocks, item.budget.far_end - item.budget.far_begin);
      std::vector<int32_t>& lists = kept_.emplace_back();
      for (int head = 0; head < item.keys.heads; ++head) {
        for (int64_t i = 0; i < item.capacity; ++i) lists.push_back(static_cast<int32_t>(i));
      }
      std::vector<int32_t>& counts = kept_.emplace_back(static_cast<size_t>(item.keys.heads),
                                                        static_cast<int32_t>(item.keys.blocks));
      stream.Copy(reinterpret_cast<std::byte*>(item.blocks),
                  reinterpret_cast<const std::byte*>(lists.data()), lists.size() * sizeof(int32_t));
      stream.Copy(reinterpret_cast<std::byte*>(item.counts),
                  reinterpret_cast<const std::byte*>(counts.data()),
                  counts.size() * sizeof(int32_t));
      ++*calls_;
    }
  }

 private:
  int64_t* const calls_;
  std::list<std::vector<int32_t>> kept_;  // until the stream has passed the copies
};

HarnessConfig ListingAll(HarnessConfig config, int64_t keys, int64_t* calls) {
  config.selection = PolicyOf(keys);
  config.wrap_kernels = [calls](std::unique_ptr<Kernels> kernels) {
    return std::make_unique<ListsAll>(std::move(kernels), calls);
  };
  return config;
}

class Selection : public ::testing::TestWithParam<DType> {};

TEST_P(Selection, KeysThatAreAllListedAreAttendedToExactly) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(GetParam()));
  const std::vector<TokenId> tokens = RandomTokens(300, 96, 7);
  constexpr int64_t kDecode = 24;
  for (const Encoding encoding : {Encoding::kNone, Encoding::kInt8, Encoding::kInt4}) {
    HarnessConfig config = HarnessConfig::Default();
    config.encoding = encoding;
    const LogitRows expected = RunTokens(*model, config, tokens, kDecode);
    for (const int group_heads : {0, 1, 2}) {
      for (const int64_t device_slabs : {1 << 20, 5}) {
        int64_t calls = 0;
        HarnessConfig selecting = ListingAll(config, 160, &calls);
        selecting.group_heads = group_heads;
        selecting.device_slabs = device_slabs;
        ExpectNear(*model, expected, RunTokens(*model, selecting, tokens, kDecode),
                   "groups of " + std::to_string(group_heads));
        EXPECT_EQ(calls, kDecode * model->shape().layers);
      }
    }
  }
}

// Segments on disk are read whole.
TEST_P(Selection, WhatIsOnDiskIsAttendedToExactly) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(GetParam()));
  const std::vector<TokenId> tokens = RandomTokens(400, 96, 8);
  HarnessConfig config = HarnessConfig::Default();
  const LogitRows expected = RunTokens(*model, config, tokens, 10);
  int64_t calls = 0;
  HarnessConfig selecting = ListingAll(config, 120, &calls);
  selecting.group_heads = 1;
  selecting.device_slabs = 20;
  selecting.host_slabs = 50;
  ExpectNear(*model, expected, RunTokens(*model, selecting, tokens, 10), "partly on disk");
  EXPECT_GT(calls, 0);
}

TEST_P(Selection, BatchesLiveAsExactOnes) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(GetParam()));
  const HarnessConfig exact = HarnessConfig::Default();
  int64_t calls = 0;
  HarnessConfig selecting = ListingAll(exact, 44, &calls);
  HarnessConfig away = selecting;
  away.placement = kv::PlacementKind::kHostOnly;
  away.device_slabs = 0;
  ExpectBatchesNear(*model, {exact, selecting, away});
  EXPECT_GT(calls, 0);
}

TEST_P(Selection, WherePagesLieNeverChangesABit) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(GetParam()));
  const std::vector<TokenId> tokens = RandomTokens(330, 96, 9);
  for (const kv::SelectionPolicy& policy :
       {PolicyOf(40), PolicyOf(40, SummaryKind::kBoxes), PolicyOf(40, SummaryKind::kMasses),
        PolicyOf(40, SummaryKind::kStages), KeepsSurvivors(40, 6, 3, 1), TwoLooks(40),
        KeepsCandidates(40, 5)}) {
    HarnessConfig config = HarnessConfig::Default();
    config.selection = policy;
    const LogitRows expected = RunTokens(*model, config, tokens, 40);
    for (const kv::PlacementKind placement :
         {kv::PlacementKind::kFirstFit, kv::PlacementKind::kLru, kv::PlacementKind::kHostOnly,
          kv::PlacementKind::kRecent}) {
      for (const int group_heads : {0, 1, 2}) {
        HarnessConfig other = config;
        other.placement = placement;
        other.group_heads = group_heads;
        other.device_slabs = placement == kv::PlacementKind::kHostOnly ? 0 : 7;
        ExpectSameBits(expected, RunTokens(*model, other, tokens, 40),
                       "placement " + std::to_string(static_cast<int>(placement)) + ", groups of " +
                           std::to_string(group_heads));
      }
    }
  }
}

// Where there is a bus; elsewhere kernels do not use it.
TEST_P(Selection, NoPageCacheChangesABit) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(GetParam()));
  const std::vector<TokenId> tokens = RandomTokens(400, 96, 17);
  for (const Encoding encoding : {Encoding::kNone, Encoding::kInt8}) {
    HarnessConfig config = HarnessConfig::Default();
    config.encoding = encoding;
    config.selection = PolicyOf(48);
    const LogitRows expected = RunTokens(*model, config, tokens, 90);
    for (const int64_t bytes : {20 << 10, 200 << 10, 8 << 20}) {
      HarnessConfig other = config;
      other.placement = kv::PlacementKind::kRecent;
      other.device_slabs = 6;
      other.group_heads = 1;
      other.page_cache_bytes = bytes;
      ExpectSameBits(expected, RunTokens(*model, other, tokens, 90),
                     std::to_string(bytes) + " bytes");
      other.placement = kv::PlacementKind::kHostOnly;
      other.device_slabs = 0;
      ExpectSameBits(expected, RunTokens(*model, other, tokens, 90),
                     std::to_string(bytes) + " bytes, all slabs on the host");
    }
  }
}

// A choice for all steps is brought in the first one, and found in the others.
TEST_P(Selection, APageCacheServesTheStepsBehindTheFirst) {
  if (TestDevice() == "cpu") GTEST_SKIP() << "there is no bus";
  const std::unique_ptr<Model> model = Tiny(TinyConfig(GetParam()));
  const std::vector<TokenId> tokens = RandomTokens(290, 96, 23);
  const RopeFrequencies rope = RopeOf(*model, 400);
  HarnessConfig config = HarnessConfig::Default();
  config.selection = PolicyOf(48);
  config.selection.refresh = 400;
  config.placement = kv::PlacementKind::kHostOnly;
  config.device_slabs = 0;
  config.page_cache_bytes = 8 << 20;
  Result<std::unique_ptr<StepHarness>> h = StepHarness::Create(*model, config, 1, 400);
  ASSERT_TRUE(h.ok()) << h.status().message();
  const kv::SequenceId sequence = *(*h)->NewSequence();
  ASSERT_TRUE((*h)->Append(sequence, tokens, rope).ok());
  const auto reads = [&] { return (*h)->store().PageCacheReads(); };
  EXPECT_EQ(reads()[BlockCache::kBrought], 0);  // the prompt is exact
  constexpr int kSteps = 5;                     // no page closes between them
  ASSERT_LT(290 % config.page_slots + kSteps, config.page_slots);
  for (int i = 0; i < kSteps; ++i) {
    ASSERT_TRUE((*h)->Append(sequence, std::span(tokens).first(1), rope).ok());
    EXPECT_GT(reads()[BlockCache::kBrought], 0);
    EXPECT_EQ(reads()[BlockCache::kFound], i * reads()[BlockCache::kBrought]);
    EXPECT_EQ(reads()[BlockCache::kPassed], 0);
  }
}

// Few keys are not exact, or the path does nothing.
TEST_P(Selection, LeavesOutWhatTheBudgetDoesNotHold) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(GetParam()));
  HarnessConfig config = HarnessConfig::Default();
  const std::vector<TokenId> tokens = RandomTokens(330, 96, 10);
  const LogitRows exact = RunTokens(*model, config, tokens, 10);
  config.selection = PolicyOf(8);
  const LogitRows chosen = RunTokens(*model, config, tokens, 10);
  ASSERT_EQ(exact.size(), chosen.size());
  ExpectSameBits(LogitRows(exact.begin(), exact.end() - 10),
                 LogitRows(chosen.begin(), chosen.end() - 10), "prefill");
  EXPECT_NE(exact.back(), chosen.back());
  // All keys fit: the same bits as without a selection.
  config.selection = PolicyOf(4096);
  ExpectSameBits(exact, RunTokens(*model, config, tokens, 10), "a budget for all");
}

// A second look chooses other keys; where all are candidates, it is the only one that counts.
TEST_P(Selection, ASecondLookChooses) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(GetParam()));
  HarnessConfig config = HarnessConfig::Default();
  const std::vector<TokenId> tokens = RandomTokens(330, 96, 14);
  config.selection = PolicyOf(24);
  const LogitRows once = RunTokens(*model, config, tokens, 10);
  config.selection = TwoLooks(24);
  const LogitRows twice = RunTokens(*model, config, tokens, 10);
  EXPECT_NE(once.back(), twice.back());
  config.selection.breadth = 1 << 20;
  const LogitRows all = RunTokens(*model, config, tokens, 10);
  config.selection.breadth = 14;
  ExpectSameBits(all, RunTokens(*model, config, tokens, 10), "all keys are candidates");
  // As many candidates as keys are chosen: one look.
  config.selection.breadth = 1;
  ExpectSameBits(once, RunTokens(*model, config, tokens, 10), "one look");
}

// A share of the keys grows from step to step, beyond the fixed number.
TEST_P(Selection, ABudgetMayGrowWithTheSequence) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(GetParam()));
  HarnessConfig config = HarnessConfig::Default();
  const std::vector<TokenId> tokens = RandomTokens(330, 96, 15);
  config.selection = PolicyOf(64);
  const LogitRows fixed = RunTokens(*model, config, tokens, 1);
  config.selection = PolicyOf(8);
  config.selection.growth = 64.0 / 330.0;
  ExpectSameBits(fixed, RunTokens(*model, config, tokens, 1), "64 keys of 330");
  config.selection.growth = 1.0;
  const LogitRows all = RunTokens(*model, config, tokens, 10);
  config.selection = {};
  ExpectSameBits(all, RunTokens(*model, config, tokens, 10), "all keys");
}

// Counts choices, and those that list their own candidates.
class CountsChoices : public ForwardingKernels {
 public:
  CountsChoices(std::unique_ptr<Kernels> inner, int64_t* choices, int64_t* searches = nullptr)
      : ForwardingKernels(std::move(inner)), choices_(choices), searches_(searches) {}
  void SelectBlocks(Stream& stream, const PageFormat& format, const SummaryFormat& summary,
                    int group, float scale, std::span<const SelectItem> items) override {
    *choices_ += std::ssize(items);
    if (searches_ != nullptr) {
      *searches_ += std::count_if(items.begin(), items.end(),
                                  [](const SelectItem& item) { return !item.candidates_listed; });
    }
    ForwardingKernels::SelectBlocks(stream, format, summary, group, scale, items);
  }

 private:
  int64_t* const choices_;
  int64_t* const searches_;
};

// One choice serves some steps, unless a page closes between them.
TEST_P(Selection, AChoiceServesSomeSteps) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(GetParam()));
  HarnessConfig config = HarnessConfig::Default();
  const std::vector<TokenId> tokens = RandomTokens(330, 96, 16);
  int64_t choices = 0;
  config.wrap_kernels = [&](std::unique_ptr<Kernels> kernels) {
    return std::make_unique<CountsChoices>(std::move(kernels), &choices);
  };
  const auto run = [&](int64_t refresh, int64_t decode) {
    config.selection = PolicyOf(24);
    config.selection.refresh = refresh;
    choices = 0;
    return RunTokens(*model, config, tokens, decode);
  };
  const int64_t layers = model->shape().layers;
  const LogitRows anew = run(1, 40);
  EXPECT_EQ(choices, 40 * layers);
  const LogitRows every_third = run(3, 40);
  EXPECT_LE(choices, (14 + 40 / config.page_slots + 1) * layers);
  EXPECT_GE(choices, 14 * layers);
  EXPECT_NE(anew.back(), every_third.back());
  // The first of them is chosen for.
  ExpectSameBits(run(1, 1), run(1000, 1), "one step");
  const int64_t until_a_page_closes = config.page_slots - 290 % config.page_slots;
  run(1000, 40);
  EXPECT_EQ(choices, (1 + CeilDiv(40 - until_a_page_closes, config.page_slots)) * layers);
}

// Candidates serve some steps, each of which chooses among them, unless a page closes between.
TEST_P(Selection, CandidatesServeSomeSteps) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(GetParam()));
  HarnessConfig config = HarnessConfig::Default();
  const std::vector<TokenId> tokens = RandomTokens(330, 96, 16);
  int64_t choices = 0;
  int64_t searches = 0;
  config.wrap_kernels = [&](std::unique_ptr<Kernels> kernels) {
    return std::make_unique<CountsChoices>(std::move(kernels), &choices, &searches);
  };
  const auto run = [&](const kv::SelectionPolicy& policy, int64_t decode) {
    config.selection = policy;
    choices = searches = 0;
    return RunTokens(*model, config, tokens, decode);
  };
  const int64_t layers = model->shape().layers;
  const LogitRows anew = run(KeepsCandidates(24, 1), 40);
  EXPECT_EQ(searches, 40 * layers);
  const LogitRows every_third = run(KeepsCandidates(24, 3), 40);
  EXPECT_EQ(choices, 40 * layers);
  EXPECT_GE(searches, 14 * layers);
  EXPECT_LE(searches, (14 + 40 / config.page_slots + 1) * layers);
  EXPECT_NE(anew.back(), every_third.back());
  // Each step chooses for itself.
  kv::SelectionPolicy kept = KeepsCandidates(24, 1000);
  const LogitRows chosen = run(kept, 40);
  EXPECT_EQ(choices, 40 * layers);
  const int64_t until_a_page_closes = config.page_slots - 290 % config.page_slots;
  EXPECT_EQ(searches, (1 + CeilDiv(40 - until_a_page_closes, config.page_slots)) * layers);
  kept.refresh = 3;
  EXPECT_NE(chosen.back(), run(kept, 40).back());
  EXPECT_LT(choices, 20 * layers);
  EXPECT_EQ(searches, (1 + CeilDiv(40 - until_a_page_closes, config.page_slots)) * layers);
  // Where all far keys are candidates, no step misses one.
  kept = KeepsCandidates(24, 1000);
  kept.breadth = 1 << 20;
  const LogitRows all = run(kept, 40);
  kept.candidates_refresh = 1;
  ExpectSameBits(all, run(kept, 40), "all keys are candidates");
}

// Notes the first stage that each choice of the first layer renews.
class NotesStages : public ForwardingKernels {
 public:
  NotesStages(std::unique_ptr<Kernels> inner, int64_t layers, std::vector<int>* stages)
      : ForwardingKernels(std::move(inner)), layers_(layers), stages_(stages) {}
  void SelectBlocks(Stream& stream, const PageFormat& format, const SummaryFormat& summary,
                    int group, float scale, std::span<const SelectItem> items) override {
    if (calls_++ % layers_ == 0) stages_->push_back(items[0].first_stage);
    ForwardingKernels::SelectBlocks(stream, format, summary, group, scale, items);
  }

 private:
  const int64_t layers_;
  std::vector<int>* const stages_;
  int64_t calls_ = 0;
};

// Each stage is renewed in its own time, and all of them when a page closes.
TEST_P(Selection, StagesAreRenewedInTheirOwnTime) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(GetParam()));
  HarnessConfig config = HarnessConfig::Default();
  ASSERT_EQ(config.page_slots, 16);
  const std::vector<TokenId> tokens = RandomTokens(330, 96, 16);
  std::vector<int> stages;
  config.wrap_kernels = [&](std::unique_ptr<Kernels> kernels) {
    return std::make_unique<NotesStages>(std::move(kernels), model->shape().layers, &stages);
  };
  const auto run = [&](const kv::SelectionPolicy& policy, int64_t decode = 22) {
    config.selection = policy;
    stages.clear();
    return RunTokens(*model, config, tokens, decode);
  };
  const LogitRows anew = run(KeepsSurvivors(24, 1, 1, 1));
  EXPECT_EQ(stages, std::vector<int>(22, 0));
  // From position 308 on; pages close in front of 320.
  const LogitRows kept = run(KeepsSurvivors(24, 8, 4, 2));
  EXPECT_EQ(stages, (std::vector<int>{0, 2, 1, 2, 0, 2, 0, 2, 1, 2, 0}));
  EXPECT_NE(anew.back(), kept.back());
  run(KeepsSurvivors(24, 6, 2, 1));
  EXPECT_EQ(stages, (std::vector<int>{0, 2, 1, 2, 1, 2, 0, 2, 1, 2, 1, 2,  //
                                      0, 2, 1, 2, 1, 2, 0, 2, 1, 2}));
  // The first step of all chooses for itself.
  ExpectSameBits(run(KeepsSurvivors(24, 1, 1, 1), 1), run(KeepsSurvivors(24, 8, 4, 2), 1), "one");
}

// Where all chunks survive, a stage that is not renewed misses none.
TEST_P(Selection, SurvivorsAreThoseOfTheSameKeys) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(GetParam()));
  HarnessConfig config = HarnessConfig::Default();
  const std::vector<TokenId> tokens = RandomTokens(330, 96, 16);
  config.selection = KeepsSurvivors(24, 8, 8, 1);
  config.selection.recent = 1;  // no key is far before its page closes
  for (auto& stage : config.selection.stages) stage.keys = 1 << 20;
  const LogitRows kept = RunTokens(*model, config, tokens, 40);
  for (auto& stage : config.selection.stages) stage.refresh = 1;
  ExpectSameBits(RunTokens(*model, config, tokens, 40), kept, "all chunks survive");
}

// A step that reads all far keys lists no candidates, and another behind it may choose.
TEST_P(Selection, CandidatesAreThereBeforeTheyServe) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(GetParam()));
  HarnessConfig config = HarnessConfig::Default();
  const std::vector<TokenId> tokens = RandomTokens(303, 96, 16);
  // 33 blocks; at position 299, with no page closing, the 34th is far.
  config.selection = KeepsCandidates(264, 1000);
  config.selection.share = BudgetShare::kHead;
  config.selection.prompts = kv::SelectionPolicy::Prompts::kSelected;
  config.selection.distance = 40;
  config.selection.breadth = 1 << 20;
  const LogitRows kept = RunTokens(*model, config, tokens, 12);
  config.selection.candidates_refresh = 1;
  ExpectSameBits(RunTokens(*model, config, tokens, 12), kept, "all keys are candidates");
}

// The summaries of a sequence that was forked and cut back are those of one that never was, and
// what was chosen before serves neither.
void ExpectForksAndCutsKeep(Model& model, const HarnessConfig& config) {
  constexpr int64_t kLength = 320;
  const RopeFrequencies rope = RopeOf(model, kLength);
  const std::vector<TokenId> first = RandomTokens(256, 96, 11);
  std::vector<TokenId> second(first.begin(), first.begin() + 144);  // cut within a segment
  for (const TokenId token : RandomTokens(64, 96, 12)) second.push_back(token);
  const std::vector<TokenId> last = RandomTokens(12, 96, 13);

  const auto decode = [&](StepHarness& h, kv::SequenceId sequence) {
    LogitRows rows;
    for (const TokenId token : last) {
      Result<LogitRows> row = h.Append(sequence, {&token, 1}, rope);
      EXPECT_TRUE(row.ok()) << row.status().message();
      if (row.ok()) rows.push_back((*row)[0]);
    }
    return rows;
  };
  const auto append = [&](StepHarness& h, kv::SequenceId sequence, std::span<const TokenId> some) {
    ASSERT_TRUE(h.Append(sequence, some, rope).ok());
  };
  LogitRows expected;
  {
    Result<std::unique_ptr<StepHarness>> h = StepHarness::Create(model, config, 3, kLength);
    ASSERT_TRUE(h.ok()) << h.status().message();
    const kv::SequenceId whole = *(*h)->NewSequence();
    append(**h, whole, std::span(second).first(144));
    append(**h, whole, std::span(second).subspan(144));
    expected = decode(**h, whole);
  }
  Result<std::unique_ptr<StepHarness>> h = StepHarness::Create(model, config, 3, kLength);
  ASSERT_TRUE(h.ok()) << h.status().message();
  const kv::SequenceId begun = *(*h)->NewSequence();
  append(**h, begun, std::span(first).first(144));
  const kv::SequenceId fork = *(*h)->store().Fork(begun);
  append(**h, begun, std::span(first).subspan(144));
  append(**h, fork, std::span(second).subspan(144));
  ExpectSameBits(expected, decode(**h, fork), "a fork");
  (*h)->store().Drop(fork);
  ASSERT_EQ(*(*h)->store().Truncate(begun, 144), 144);
  append(**h, begun, std::span(second).subspan(144));
  ExpectSameBits(expected, decode(**h, begun), "cut back");
}

// What was chosen before a sequence was cut back serves no other text, also where that is as long.
void ExpectNoListForAnotherText(Model& model, const HarnessConfig& config) {
  constexpr int64_t kLength = 320;
  const RopeFrequencies rope = RopeOf(model, kLength);
  const std::vector<TokenId> first = RandomTokens(300, 96, 18);
  std::vector<TokenId> second(first.begin(), first.begin() + 144);
  for (const TokenId token : RandomTokens(158, 96, 19)) second.push_back(token);
  const auto decode = [&](StepHarness& h, kv::SequenceId sequence, TokenId token) {
    Result<LogitRows> row = h.Append(sequence, {&token, 1}, rope);
    EXPECT_TRUE(row.ok()) << row.status().message();
    return *row;
  };
  const auto append = [&](StepHarness& h, kv::SequenceId sequence, std::span<const TokenId> some) {
    ASSERT_TRUE(h.Append(sequence, some, rope).ok());
  };
  Result<std::unique_ptr<StepHarness>> h = StepHarness::Create(model, config, 3, kLength);
  ASSERT_TRUE(h.ok()) << h.status().message();
  const kv::SequenceId whole = *(*h)->NewSequence();
  append(**h, whole, std::span(second).first(144));
  append(**h, whole, std::span(second).subspan(144));
  const LogitRows expected = decode(**h, whole, 5);
  (*h)->store().Drop(whole);
  const kv::SequenceId cut = *(*h)->NewSequence();
  append(**h, cut, std::span(first).first(144));
  append(**h, cut, std::span(first).subspan(144));
  decode(**h, cut, 3);
  decode(**h, cut, 4);  // at 301: the next position is that of the other text's first token
  ASSERT_EQ(*(*h)->store().Truncate(cut, 144), 144);
  append(**h, cut, std::span(second).subspan(144));
  ExpectSameBits(expected, decode(**h, cut, 5), "another text of the same length");
}

TEST_P(Selection, AChoiceServesNoOtherText) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(GetParam()));
  HarnessConfig config = HarnessConfig::Default();
  config.selection = PolicyOf(24);
  config.selection.refresh = 1000;
  ExpectNoListForAnotherText(*model, config);
  config.selection = KeepsCandidates(24, 1000);
  ExpectNoListForAnotherText(*model, config);
  config.selection = KeepsSurvivors(24, 1000, 1000, 1);
  ExpectNoListForAnotherText(*model, config);
}

TEST_P(Selection, ForksAndCutsKeepTheirSummaries) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(GetParam()));
  kv::SelectionPolicy candidates = TwoLooks(24);
  candidates.candidates_refresh = 3;
  kv::SelectionPolicy rarely = TwoLooks(24);
  rarely.refresh = 5;
  rarely.candidates_refresh = 15;
  for (const kv::SelectionPolicy& policy : {candidates, rarely, KeepsSurvivors(24, 8, 4, 2)}) {
    for (const int64_t page_cache : {0, 1 << 20}) {
      HarnessConfig config = HarnessConfig::Default();
      config.selection = policy;
      if (page_cache > 0) config.placement = kv::PlacementKind::kHostOnly;
      config.page_cache_bytes = page_cache;
      ExpectForksAndCutsKeep(*model, config);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, Selection, ::testing::Values(DType::kF32, DType::kBF16),
                         [](const auto& instance) {
                           return std::string(DTypeName(instance.param));
                         });

}  // namespace
}  // namespace headway::testing
