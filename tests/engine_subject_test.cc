// A sudden change of subject: queries that want quite other blocks than those before them, while
// lists, candidates or survivors that are kept serve on. They are renewed in their time and never
// later, and what a query could have had from the first is what it has then.
//
// In a model of one layer keys and queries are of their tokens alone, whatever was listed before.
// So what a step would choose for itself is what a context lists that keeps nothing.
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
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

using Lists = std::vector<std::vector<int32_t>>;  // of each block of rows and head

// Notes the lists that attention is given, layer by layer, and the candidates that they are of.
class NotesLists : public ForwardingKernels {
 public:
  NotesLists(std::unique_ptr<Kernels> inner, std::vector<Lists>* noted,
             std::vector<Lists>* candidates)
      : ForwardingKernels(std::move(inner)), noted_(*noted), candidates_(candidates) {}

  void SelectBlocks(Stream& stream, const PageFormat& format, const SummaryFormat& summary,
                    int group, float scale, std::span<const SelectItem> items) override {
    ForwardingKernels::SelectBlocks(stream, format, summary, group, scale, items);
    for (const SelectItem& item : items) {
      if (candidates_ == nullptr || !item.looks_twice()) continue;
      const CandidateLists& lists = item.candidates;
      Note(stream, lists.blocks, lists.capacity, lists.counts, item.keys.heads, candidates_);
    }
  }
  void AttendBlocks(Stream& stream, const PageFormat& format, const SummaryFormat& summary,
                    int group, float scale, std::span<const AttendBlocksItem> items) override {
    for (const AttendBlocksItem& item : items) {
      Note(stream, item.blocks, item.capacity, item.counts,
           CeilDiv(item.rows, kSelectRows) * item.keys.heads, &noted_);
    }
    ForwardingKernels::AttendBlocks(stream, format, summary, group, scale, items);
  }

 private:
  static void Note(Stream& stream, const int32_t* from, int64_t capacity, const int32_t* of,
                   int64_t lists, std::vector<Lists>* to) {
    const std::vector<int32_t> counts = Copied(stream, of, static_cast<size_t>(lists));
    const std::vector<int32_t> blocks = Copied(stream, from, static_cast<size_t>(lists * capacity));
    Lists& noted = to->emplace_back();
    for (size_t i = 0; i < counts.size(); ++i) {
      const auto first = blocks.begin() + static_cast<int64_t>(i) * capacity;
      noted.emplace_back(first, first + counts[i]);
    }
  }
  static std::vector<int32_t> Copied(Stream& stream, const int32_t* from, size_t count) {
    std::vector<int32_t> to(count);
    stream.Copy(reinterpret_cast<std::byte*>(to.data()), reinterpret_cast<const std::byte*>(from),
                count * sizeof(int32_t));
    EXPECT_TRUE(stream.Synchronize().ok());
    return to;
  }

  std::vector<Lists>& noted_;
  std::vector<Lists>* const candidates_;  // null: they are not noted
};

// Of the blocks that `wanted` has, the share that is not in `listed`.
double MissedShare(const Lists& wanted, const Lists& listed) {
  size_t all = 0, missed = 0;
  for (size_t i = 0; i < wanted.size(); ++i) {
    std::vector<int32_t> without;
    std::set_difference(wanted[i].begin(), wanted[i].end(), listed[i].begin(), listed[i].end(),
                        std::back_inserter(without));
    all += wanted[i].size();
    missed += without.size();
  }
  return static_cast<double>(missed) / static_cast<double>(all);
}

constexpr int64_t kLength = 480;
constexpr int64_t kPrompt = 290, kDecoded = 40;
constexpr int64_t kChange = 306;            // where the subject changes, behind a page that closed
constexpr TokenId kBefore = 3, kThen = 60;  // what the tokens are
// The share of what is listed, sink and recent blocks among it, that another subject does not list:
// a third of what is chosen.
constexpr double kOther = 0.15;

class Subject : public ::testing::TestWithParam<DType> {
 protected:
  Subject() {
    ModelConfig config = TinyConfig(GetParam());
    config.shape.layers = 1;
    config.windows.assign(1, 0);
    model_ = Tiny(config);
    rope_ = RopeOf(*model_, kLength);
    std::fill_n(std::back_inserter(tokens_), kChange - kPrompt, kBefore);
    std::fill_n(std::back_inserter(tokens_), kPrompt + kDecoded - kChange, kThen);
  }
  std::unique_ptr<StepHarness> Make(const kv::SelectionPolicy& policy, std::vector<Lists>* noted,
                                    std::vector<Lists>* candidates = nullptr) {
    HarnessConfig config = HarnessConfig::Default();
    config.chunk = 128;
    config.selection = policy;
    config.wrap_kernels = [noted, candidates](std::unique_ptr<Kernels> kernels) {
      return std::make_unique<NotesLists>(std::move(kernels), noted, candidates);
    };
    Result<std::unique_ptr<StepHarness>> h = StepHarness::Create(*model_, config, 2, kLength);
    EXPECT_TRUE(h.ok()) << h.status().message();
    return std::move(*h);
  }
  // The lists of each step that reads one of the tokens behind the prompt.
  std::vector<Lists> ListsOf(const kv::SelectionPolicy& policy) {
    std::vector<Lists> noted;
    const std::unique_ptr<StepHarness> h = Make(policy, &noted);
    const kv::SequenceId sequence = *h->NewSequence();
    EXPECT_TRUE(h->Append(sequence, prompt_, rope_).ok());
    noted.clear();
    for (const TokenId token : tokens_) EXPECT_TRUE(h->Append(sequence, {&token, 1}, rope_).ok());
    EXPECT_EQ(std::ssize(noted), kDecoded);
    return noted;
  }

  const std::vector<TokenId> prompt_ = RandomTokens(kPrompt, 96, 51);
  std::unique_ptr<Model> model_;
  RopeFrequencies rope_;
  std::vector<TokenId> tokens_;
};

// All that is kept is renewed after so many steps, and when a page closes.
std::vector<int64_t> RenewedBy(int64_t steps) {
  std::vector<int64_t> renewed;  // [step]: the step that renewed what it reads
  for (int64_t step = 0; step < kDecoded; ++step) {
    const bool closed = (kPrompt + step) % HarnessConfig::Default().page_slots == 0;
    const bool due = renewed.empty() || closed || step >= renewed.back() + steps;
    renewed.push_back(due ? step : renewed.back());
  }
  return renewed;
}

TEST_P(Subject, WhatIsKeptIsRenewedInItsTime) {
  struct Case {
    kv::SelectionPolicy policy;
    int64_t steps;  // that what is kept serves at most
    bool lists;     // which is the lists themselves
  };
  const auto refreshed = [](int64_t steps) {
    kv::SelectionPolicy policy = PolicyOf(24);
    policy.refresh = steps;
    return Case{policy, steps, true};
  };
  for (const Case& kept :
       {refreshed(3), refreshed(7), refreshed(1000), Case{KeepsCandidates(24, 7), 7, false},
        Case{SearchesPages(24, 7), 7, false}, Case{KeepsSurvivors(24, 8, 4, 2), 8, false}}) {
    SCOPED_TRACE(std::to_string(kept.steps) + " steps of kind " +
                 std::to_string(static_cast<int>(kept.policy.summary.kind)));
    kv::SelectionPolicy anew = kept.policy;
    anew.refresh = anew.candidates_refresh = 1;
    for (kv::SelectionPolicy::Stage& stage : anew.stages) stage.refresh = 1;
    const std::vector<Lists> wanted = ListsOf(anew);
    const std::vector<Lists> listed = ListsOf(kept.policy);
    const std::vector<int64_t> renewed = RenewedBy(kept.steps);
    ASSERT_EQ(wanted.size(), listed.size());
    const size_t change = kChange - kPrompt;
    ASSERT_GT(MissedShare(wanted[change], wanted[change - 1]), kOther) << "another subject";
    ASSERT_LT(renewed[change], static_cast<int64_t>(change)) << "what is kept is of the old one";
    EXPECT_GT(MissedShare(wanted[change], listed[change]), 0.0);
    for (size_t step = 0; step < listed.size(); ++step) {
      const auto made = static_cast<size_t>(renewed[step]);
      if (kept.lists || made == step) {
        EXPECT_EQ(listed[step], wanted[made]) << "step " << step;
      }
      EXPECT_LT(static_cast<int64_t>(step - made), kept.steps);
    }
    const auto back = std::find_if(listed.begin() + change, listed.end(), [&](const Lists& lists) {
      return lists == wanted[static_cast<size_t>(&lists - listed.data())];
    });
    EXPECT_LT(back - listed.begin() - static_cast<int64_t>(change), kept.steps);
  }
}

// A prompt is another subject whatever it has: nothing that was kept before it serves behind it.
TEST_P(Subject, NothingThatIsKeptOutlivesAPrompt) {
  kv::SelectionPolicy lists = PolicyOf(24);
  lists.refresh = 1000;
  for (const kv::SelectionPolicy& kept :
       {lists, KeepsCandidates(24, 1000), KeepsSurvivors(24, 1000, 1000, 1)}) {
    const auto run = [&](int64_t decoded_before) {
      std::vector<Lists> noted;
      const std::unique_ptr<StepHarness> h = Make(kept, &noted);
      const kv::SequenceId sequence = *h->NewSequence();
      EXPECT_TRUE(h->Append(sequence, prompt_, rope_).ok());
      std::vector<TokenId> before(4, kBefore);
      for (int64_t i = 0; i < decoded_before; ++i) {
        EXPECT_TRUE(h->Append(sequence, std::span(before).subspan(0, 1), rope_).ok());
        before.pop_back();
      }
      before.resize(before.size() + 5, kThen);  // no page closes with them
      EXPECT_TRUE(h->Append(sequence, before, rope_).ok());
      EXPECT_TRUE(h->Append(sequence, {&kThen, 1}, rope_).ok());
      return noted;
    };
    const std::vector<Lists> whole = run(0), parts = run(4);
    ASSERT_EQ(whole.size(), 1u);
    ASSERT_EQ(parts.size(), 5u);
    EXPECT_GT(MissedShare(parts.back(), parts.front()), kOther) << "another subject";
    EXPECT_EQ(parts.back(), whole.back());
  }
}

// Of two sequences in one step, each has its own, and keeps it where they change places.
TEST_P(Subject, NothingThatIsKeptServesAnotherSequence) {
  kv::SelectionPolicy lists = PolicyOf(24);
  lists.refresh = 1000;
  const std::vector<TokenId> other = RandomTokens(kPrompt, 96, 52);
  for (const kv::SelectionPolicy& kept :
       {lists, KeepsCandidates(24, 1000), KeepsSurvivors(24, 1000, 1000, 1)}) {
    const auto run = [&](bool turns) {
      std::vector<Lists> noted;
      const std::unique_ptr<StepHarness> h = Make(kept, &noted);
      const kv::SequenceId one = *h->NewSequence(), two = *h->NewSequence();
      EXPECT_TRUE(h->Append(one, prompt_, rope_).ok());
      EXPECT_TRUE(h->Append(two, other, rope_).ok());
      for (const bool turned : {false, turns}) {
        const StepInput first = {one, {&kBefore, 1}, &rope_, LogitsMode::kAll};
        const StepInput second = {two, {&kThen, 1}, &rope_, LogitsMode::kAll};
        const StepInput inputs[] = {turned ? second : first, turned ? first : second};
        EXPECT_TRUE(h->Step(inputs).ok());
      }
      return noted;
    };
    const std::vector<Lists> noted = run(true), there = run(false);
    ASSERT_EQ(noted.size(), 4u);
    ASSERT_EQ(there.size(), 4u);
    EXPECT_NE(noted[0], noted[1]);
    EXPECT_NE(there[2], there[3]);
    EXPECT_EQ(noted[2], there[3]);
    EXPECT_EQ(noted[3], there[2]);
  }
}

// Who comes where another has gone finds nothing of the other's lists, though its first step is at
// the position behind the other's last one.
TEST_P(Subject, NothingThatIsKeptServesWhoComesLater) {
  kv::SelectionPolicy lists = PolicyOf(24);
  lists.refresh = 1000;
  std::vector<TokenId> later = RandomTokens(kPrompt, 96, 52);
  later.push_back(kThen);
  for (const kv::SelectionPolicy& kept :
       {lists, KeepsCandidates(24, 1000), KeepsSurvivors(24, 1000, 1000, 1)}) {
    const auto run = [&](bool behind_another) {
      std::vector<Lists> noted;
      const std::unique_ptr<StepHarness> h = Make(kept, &noted);
      for (int i = 0; behind_another && i < 2; ++i) {
        const kv::SequenceId gone = *h->NewSequence();
        EXPECT_TRUE(h->Append(gone, prompt_, rope_).ok());
        EXPECT_TRUE(h->Append(gone, {&kBefore, 1}, rope_).ok());
        h->store().Drop(gone);
      }
      const kv::SequenceId sequence = *h->NewSequence();
      EXPECT_TRUE(h->Append(sequence, later, rope_).ok());
      EXPECT_TRUE(h->Append(sequence, {&kThen, 1}, rope_).ok());
      return noted.back();
    };
    EXPECT_EQ(run(true), run(false));
  }
}

// Who is not in some steps keeps its own, whoever comes and goes meanwhile.
TEST_P(Subject, WhatIsKeptOutlivesStepsOfOthers) {
  kv::SelectionPolicy lists = PolicyOf(24);
  lists.refresh = 1000;
  const std::vector<TokenId> other = RandomTokens(kPrompt, 96, 52);
  for (const kv::SelectionPolicy& kept :
       {lists, KeepsCandidates(24, 1000), KeepsSurvivors(24, 1000, 1000, 1)}) {
    const auto run = [&](int others) {
      std::vector<Lists> noted;
      const std::unique_ptr<StepHarness> h = Make(kept, &noted);
      const kv::SequenceId sequence = *h->NewSequence();
      EXPECT_TRUE(h->Append(sequence, prompt_, rope_).ok());
      EXPECT_TRUE(h->Append(sequence, {&kBefore, 1}, rope_).ok());
      for (int i = 0; i < others; ++i) {
        const kv::SequenceId comes = *h->NewSequence();
        EXPECT_TRUE(h->Append(comes, other, rope_).ok());
        EXPECT_TRUE(h->Append(comes, {&kThen, 1}, rope_).ok());
        h->store().Drop(comes);
      }
      EXPECT_TRUE(h->Append(sequence, {&kThen, 1}, rope_).ok());
      return noted.back();
    };
    EXPECT_EQ(run(2), run(0));
  }
}

// Each layer has its own of each sequence of a step: the next step finds what was left there.
TEST_P(Subject, WhatIsKeptIsThatOfALayerAndASequence) {
  model_ = Tiny(TinyConfig(GetParam()));
  const auto layers = static_cast<size_t>(model_->shape().layers);
  ASSERT_GT(layers, 1u);
  kv::SelectionPolicy lists = PolicyOf(24);
  lists.refresh = 1000;
  const std::vector<TokenId> other = RandomTokens(kPrompt, 96, 52);
  for (const kv::SelectionPolicy& kept : {lists, KeepsCandidates(24, 1000)}) {
    std::vector<Lists> listed, candidates;
    const std::unique_ptr<StepHarness> h = Make(kept, &listed, &candidates);
    const kv::SequenceId one = *h->NewSequence(), two = *h->NewSequence();
    EXPECT_TRUE(h->Append(one, prompt_, rope_).ok());
    EXPECT_TRUE(h->Append(two, other, rope_).ok());
    for (const TokenId token : {kBefore, kThen}) {  // no page closes between them
      const StepInput inputs[] = {{one, {&token, 1}, &rope_, LogitsMode::kAll},
                                  {two, {&token, 1}, &rope_, LogitsMode::kAll}};
      EXPECT_TRUE(h->Step(inputs).ok());
    }
    const std::vector<Lists>& noted = kept.looks_twice() ? candidates : listed;
    ASSERT_EQ(noted.size(), 2 * 2 * layers);
    const auto second = noted.begin() + static_cast<int64_t>(2 * layers);
    EXPECT_EQ(std::vector<Lists>(noted.begin(), second), std::vector<Lists>(second, noted.end()));
    for (size_t i = 1; i < 2 * layers; ++i) EXPECT_NE(noted[i], noted[i - 1]);
  }
}

// Nor does it serve a token that stands where another one was cut off, with no page closed between.
TEST_P(Subject, NothingThatIsKeptServesATokenInThePlaceOfAnother) {
  kv::SelectionPolicy lists = PolicyOf(24);
  lists.refresh = 1000;
  constexpr int64_t kClosed = 288;
  ASSERT_EQ(kClosed % HarnessConfig::Default().page_slots, 0);
  for (const kv::SelectionPolicy& kept :
       {lists, KeepsCandidates(24, 1000), KeepsSurvivors(24, 1000, 1000, 1)}) {
    const auto run = [&](int64_t cut_off) {
      std::vector<Lists> noted;
      const std::unique_ptr<StepHarness> h = Make(kept, &noted);
      const kv::SequenceId sequence = *h->NewSequence();
      EXPECT_TRUE(h->Append(sequence, std::span(prompt_).first(kClosed), rope_).ok());
      for (int64_t i = 0; i < cut_off; ++i) {
        EXPECT_TRUE(h->Append(sequence, {&kBefore, 1}, rope_).ok());
      }
      EXPECT_EQ(*h->store().Truncate(sequence, kClosed), kClosed);
      EXPECT_TRUE(h->Append(sequence, {&kThen, 1}, rope_).ok());
      return noted;
    };
    const std::vector<Lists> whole = run(0);
    for (const int64_t cut_off : {1, 3}) {
      const std::vector<Lists> cut = run(cut_off);
      ASSERT_EQ(std::ssize(cut), cut_off + 1);
      EXPECT_GT(MissedShare(whole.back(), cut.front()), kOther) << "another subject";
      EXPECT_EQ(cut.back(), whole.back());
    }
  }
}

// Each block of a prompt's rows has what it wants itself, whatever the rows before it want.
TEST_P(Subject, RowsOfAPromptWantTheirOwn) {
  for (kv::SelectionPolicy policy :
       {PolicyOf(24), StagedInPrompts(24, 0), StagedInPrompts(24, 40)}) {
    policy.prompts = kv::SelectionPolicy::Prompts::kSelected;
    policy.share = BudgetShare::kHead;
    const auto run = [&](TokenId first) {
      std::vector<Lists> noted;
      const std::unique_ptr<StepHarness> h = Make(policy, &noted);
      const kv::SequenceId sequence = *h->NewSequence();
      EXPECT_TRUE(h->Append(sequence, prompt_, rope_).ok());
      noted.clear();
      std::vector<TokenId> chunk(kSelectRows, first);
      chunk.resize(2 * kSelectRows, kThen);
      EXPECT_TRUE(h->Append(sequence, chunk, rope_).ok());
      EXPECT_EQ(noted.size(), 1u);
      const int64_t heads = model_->shape().kv_heads;
      return std::pair(Lists(noted[0].begin(), noted[0].begin() + heads),
                       Lists(noted[0].begin() + heads, noted[0].end()));
    };
    const auto [before, then] = run(kBefore);
    EXPECT_GT(MissedShare(then, before), kOther) << "another subject";
    EXPECT_EQ(run(kThen).second, then);
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, Subject, ::testing::Values(DType::kF32, DType::kBF16),
                         [](const auto& run) { return DTypeName(run.param); });

}  // namespace
}  // namespace headway::testing
