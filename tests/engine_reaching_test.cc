// Sessions beyond the trained window: what is saved are rotated keys, of which those who go on make
// summaries without the rotation, whoever they are.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/test_dir.h"
#include "support/grid.h"
#include "support/selection_policies.h"
#include "support/step_harness.h"

namespace headway::testing {
namespace {

constexpr int64_t kSaved = 320, kRest = 40, kDecoded = 12;
constexpr int64_t kLength = kSaved + kRest + kDecoded;

kv::SelectionPolicy Reaching(kv::SelectionPolicy policy) {
  policy.share = BudgetShare::kHead;
  policy.prompts = kv::SelectionPolicy::Prompts::kSelected;
  policy.distance = 40;
  return policy;
}

// A text that is read up to kSaved, and two ways to go on behind it.
class ReachingSession : public ::testing::TestWithParam<DType> {
 protected:
  std::unique_ptr<StepHarness> Make(const HarnessConfig& config) {
    Result<std::unique_ptr<StepHarness>> h = StepHarness::Create(*model_, config, 2, kLength);
    EXPECT_TRUE(h.ok()) << h.status().message();
    return h.ok() ? std::move(*h) : nullptr;
  }
  void Read(StepHarness& h, kv::SequenceId sequence) {
    const Result<LogitRows> rows = h.Append(sequence, text_, rope_);
    EXPECT_TRUE(rows.ok()) << rows.status().message();
  }
  // Of the rest of a prompt, and of each token behind it.
  LogitRows GoOn(StepHarness& h, kv::SequenceId sequence, std::span<const TokenId> tokens) {
    Result<LogitRows> rows = h.Append(sequence, tokens.first(kRest), rope_);
    for (size_t i = kRest; rows.ok() && i < tokens.size(); ++i) {
      Result<LogitRows> one = h.Append(sequence, tokens.subspan(i, 1), rope_);
      if (!one.ok()) rows = one.status();
      if (one.ok()) rows->push_back(std::move((*one)[0]));
    }
    EXPECT_TRUE(rows.ok()) << rows.status().message();
    return rows.ok() ? std::move(*rows) : LogitRows();
  }

  const std::unique_ptr<Model> model_ = Tiny(TinyConfig(GetParam()));
  const RopeFrequencies rope_ = RopeOf(*model_, kLength);
  const std::vector<TokenId> text_ = RandomTokens(kSaved, 96, 31);
  const std::vector<TokenId> one_ = RandomTokens(kRest + kDecoded, 96, 32);
  const std::vector<TokenId> other_ = RandomTokens(kRest + kDecoded, 96, 33);
  const TestDir dir_;
};

TEST_P(ReachingSession, WhatIsRestoredForksAndGoesOn) {
  kv::SelectionPolicy together = PolicyOf(40);
  together.far_positions = kv::SelectionPolicy::FarPositions::kTogether;
  kv::SelectionPolicy rarely = KeepsCandidates(40, 6);
  rarely.refresh = 3;
  int file = 0;
  for (const kv::SelectionPolicy& policy :
       {Reaching(PolicyOf(40)), Reaching(PolicyOf(40, SummaryKind::kBoxes)), Reaching(together),
        Reaching(rarely), StagedInPrompts(40, 40)}) {
    HarnessConfig config = HarnessConfig::Default();
    config.selection = policy;
    LogitRows one, other;
    {
      const std::unique_ptr<StepHarness> h = Make(config);
      const kv::SequenceId sequence = *h->NewSequence();
      Read(*h, sequence);
      const kv::SequenceId fork = *h->store().Fork(sequence);
      one = GoOn(*h, sequence, one_);
      other = GoOn(*h, fork, other_);
    }
    EXPECT_NE(one.back(), other.back());
    config.session = dir_.File(std::to_string(++file));
    {
      const std::unique_ptr<StepHarness> h = Make(config);
      const kv::SequenceId sequence = *h->store().Restore();
      Read(*h, sequence);
      const Status saved = h->store().Save(sequence, text_, {});
      ASSERT_TRUE(saved.ok()) << saved.message();
    }
    for (const int64_t device_slabs : {1 << 20, 7, 0}) {
      HarnessConfig again = config;
      again.device_slabs = device_slabs;
      again.poison_freed = true;
      const std::unique_ptr<StepHarness> h = Make(again);
      const kv::SequenceId sequence = *h->store().Restore();
      const Status up =
          h->executor().BringUp(sequence, rope_, [](int64_t, int64_t) { return true; });
      ASSERT_TRUE(up.ok()) << up.message();
      const std::string what = "policy " + std::to_string(file) + ", " +
                               std::to_string(device_slabs) + " slabs on the device";
      const kv::SequenceId fork = *h->store().Fork(sequence);
      ExpectSameBits(other, GoOn(*h, fork, other_), "the fork, " + what);
      ExpectSameBits(one, GoOn(*h, sequence, one_), "the text itself, " + what);
      ASSERT_EQ(*h->store().Truncate(sequence, kSaved), kSaved);
      ExpectSameBits(other, GoOn(*h, sequence, other_), "the other way, " + what);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, ReachingSession, ::testing::Values(DType::kF32, DType::kBF16),
                         [](const auto& run) { return DTypeName(run.param); });

}  // namespace
}  // namespace headway::testing
