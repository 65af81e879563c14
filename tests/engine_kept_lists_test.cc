// What steps of the path `selection` read of what earlier ones listed: lists, candidates and what
// survives stages serve as long as they should, and no other text.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "support/forwarding_kernels.h"
#include "support/grid.h"
#include "support/selection_policies.h"
#include "support/step_harness.h"

namespace headway::testing {
namespace {

class KeptLists : public ::testing::TestWithParam<DType> {};

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
TEST_P(KeptLists, AChoiceServesSomeSteps) {
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
TEST_P(KeptLists, CandidatesServeSomeSteps) {
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

// Notes the first stage that each choice of the first layer renews, and where far blocks end then.
class NotesStages : public ForwardingKernels {
 public:
  NotesStages(std::unique_ptr<Kernels> inner, int64_t layers, std::vector<int>* stages,
              std::vector<int64_t>* far_ends = nullptr)
      : ForwardingKernels(std::move(inner)),
        layers_(layers),
        stages_(stages),
        far_ends_(far_ends) {}
  void SelectBlocks(Stream& stream, const PageFormat& format, const SummaryFormat& summary,
                    int group, float scale, std::span<const SelectItem> items) override {
    if (calls_++ % layers_ == 0) {
      stages_->push_back(items[0].first_stage);
      if (far_ends_ != nullptr) far_ends_->push_back(items[0].budget.far_end);
    }
    ForwardingKernels::SelectBlocks(stream, format, summary, group, scale, items);
  }

 private:
  const int64_t layers_;
  std::vector<int>* const stages_;
  std::vector<int64_t>* const far_ends_;  // null: they are not noted
  int64_t calls_ = 0;
};

// Each stage is renewed in its own time, and all of them when a page closes.
TEST_P(KeptLists, StagesAreRenewedInTheirOwnTime) {
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

// Until the first stage is renewed, choices are among the keys that were far then.
TEST_P(KeptLists, KeysThatWereRecentStaySoUntilTheFirstStageIsRenewed) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(GetParam()));
  HarnessConfig config = HarnessConfig::Default();
  std::vector<int> stages;
  std::vector<int64_t> far_ends;
  config.wrap_kernels = [&](std::unique_ptr<Kernels> kernels) {
    return std::make_unique<NotesStages>(std::move(kernels), model->shape().layers, &stages,
                                         &far_ends);
  };
  config.selection = KeepsSurvivors(24, 8, 4, 2);
  RunTokens(*model, config, RandomTokens(330, 96, 16), 22);
  ASSERT_EQ(far_ends.size(), 11u);  // from position 308 on, every second one chooses
  int64_t older = 0;                // that another budget would have moved on
  for (size_t i = 0; i < far_ends.size(); ++i) {
    const auto position = 308 + 2 * static_cast<int64_t>(i);
    const int64_t own = (position + 1 - config.selection.recent) / 8;
    EXPECT_EQ(far_ends[i], stages[i] == 0 ? own : far_ends[i - 1]) << "at " << position;
    older += far_ends[i] < own ? 1 : 0;
  }
  EXPECT_GT(older, 0);
}

// Where all chunks survive, a stage that is not renewed misses none.
TEST_P(KeptLists, SurvivorsAreThoseOfTheSameKeys) {
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
TEST_P(KeptLists, CandidatesAreThereBeforeTheyServe) {
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

TEST_P(KeptLists, AChoiceServesNoOtherText) {
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

TEST_P(KeptLists, ForksAndCutsKeepTheirSummaries) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(GetParam()));
  kv::SelectionPolicy candidates = TwoLooks(24);
  candidates.candidates_refresh = 3;
  kv::SelectionPolicy rarely = TwoLooks(24);
  rarely.refresh = 5;
  rarely.candidates_refresh = 15;
  for (const kv::SelectionPolicy& policy :
       {candidates, rarely, SearchesPages(24, 4), KeepsSurvivors(24, 8, 4, 2)}) {
    for (const int64_t page_cache : {0, 1 << 20}) {
      HarnessConfig config = HarnessConfig::Default();
      config.selection = policy;
      if (page_cache > 0) config.placement = kv::PlacementKind::kHostOnly;
      config.page_cache_bytes = page_cache;
      ExpectForksAndCutsKeep(*model, config);
      if (!policy.summary.sketched()) continue;
      config.sketches = Tier::kHost;
      config.poison_freed = true;
      ExpectForksAndCutsKeep(*model, config);
    }
  }
}

// Beyond the trained window: what is summarised there are keys without their rotation.
TEST_P(KeptLists, ForksAndCutsReachBeyondTheWindow) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(GetParam()));
  kv::SelectionPolicy once = PolicyOf(24);
  once.refresh = 3;
  kv::SelectionPolicy together = PolicyOf(24, SummaryKind::kBoxes);
  together.far_positions = kv::SelectionPolicy::FarPositions::kTogether;
  kv::SelectionPolicy branches = KeepsSurvivors(24, 8, 4, 2);
  branches.first_positions = KeyPositions::kChunks;
  branches.positions = KeyPositions::kBranches;
  for (kv::SelectionPolicy policy : {once, together, KeepsCandidates(24, 5), branches}) {
    policy.share = BudgetShare::kHead;
    policy.prompts = kv::SelectionPolicy::Prompts::kSelected;
    policy.distance = 40;
    for (const int64_t device_slabs : {1 << 20, 7, 0}) {
      HarnessConfig config = HarnessConfig::Default();
      config.selection = policy;
      config.poison_freed = true;
      config.device_slabs = device_slabs;
      ExpectForksAndCutsKeep(*model, config);
    }
    HarnessConfig config = HarnessConfig::Default();
    config.selection = policy;
    ExpectNoListForAnotherText(*model, config);
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, KeptLists, ::testing::Values(DType::kF32, DType::kBF16),
                         [](const auto& instance) {
                           return std::string(DTypeName(instance.param));
                         });

}  // namespace
}  // namespace headway::testing
