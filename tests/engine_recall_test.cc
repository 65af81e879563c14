// How much of the far attention lists hold: of an oracle the most there is, wherever pages lie, and
// of a share that is asked for that share.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "support/forwarding_kernels.h"
#include "support/grid.h"
#include "support/step_harness.h"

namespace headway::testing {
namespace {

kv::SelectionPolicy PolicyOf(SummaryKind kind, int64_t keys) {
  kv::SelectionPolicy policy;
  policy.summary = {kind, 8};
  policy.keys = keys;
  policy.sink = 6;
  policy.recent = 20;
  return policy;
}

class Recall : public ::testing::TestWithParam<DType> {};

// What `policy` would list of the last 12 tokens' far attention.
SelectionRecall RecallOf(Model& model, HarnessConfig config, const kv::SelectionPolicy& policy,
                         std::span<const TokenId> tokens) {
  config.selection = policy;
  auto harness =
      std::move(*StepHarness::Create(model, config, 1, static_cast<int64_t>(tokens.size())));
  const RopeFrequencies rope = RopeOf(model, static_cast<int64_t>(tokens.size()));
  const kv::SequenceId sequence = *harness->NewSequence();
  const size_t prompt = tokens.size() - 12;
  SelectionRecall recall;
  recall.heads.resize(static_cast<size_t>(model.shape().layers * model.shape().kv_heads));
  EXPECT_TRUE(harness->Append(sequence, tokens.first(prompt), rope).ok());
  for (size_t at = prompt; at < tokens.size(); ++at) {
    const StepInput input{sequence, tokens.subspan(at, 1), &rope, LogitsMode::kNone};
    const Status status = harness->executor().StepWithRecall(input, &recall);
    EXPECT_TRUE(status.ok()) << status.message();
  }
  return recall;
}

// The blocks that an oracle lists are those that have most of the attention, wherever they lie.
TEST_P(Recall, OfAnOracleIsTheBestThereIs) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(GetParam()));
  const std::vector<TokenId> tokens = RandomTokens(330, 96, 12);
  const kv::SelectionPolicy oracle = PolicyOf(SummaryKind::kMasses, 40);
  const HarnessConfig config = HarnessConfig::Default();
  const SelectionRecall expected = RecallOf(*model, config, oracle, tokens);
  EXPECT_EQ(expected.steps, 12);
  SelectionRecall::Head sum;
  for (const SelectionRecall::Head& head : expected.heads) {
    EXPECT_GT(head.far, 0.0);
    EXPECT_LT(head.far, 12.0);
    EXPECT_LT(head.listed, head.far);
    sum.listed += head.listed;
    sum.best_of_layer += head.best_of_layer;
  }
  // Codes of worth are 2 % apart.
  EXPECT_LE(sum.listed, sum.best_of_layer * (1.0 + 1e-6));
  EXPECT_GT(sum.listed, sum.best_of_layer * 0.99);

  HarnessConfig away = config;
  away.device_slabs = 4;
  away.group_heads = 1;
  const SelectionRecall other = RecallOf(*model, away, oracle, tokens);
  const SelectionRecall pages = RecallOf(*model, away, PolicyOf(SummaryKind::kMoments, 40), tokens);
  for (size_t i = 0; i < expected.heads.size(); ++i) {
    EXPECT_DOUBLE_EQ(other.heads[i].far, expected.heads[i].far);
    EXPECT_DOUBLE_EQ(other.heads[i].listed, expected.heads[i].listed);
    EXPECT_DOUBLE_EQ(other.heads[i].best_of_head, expected.heads[i].best_of_head);
    EXPECT_DOUBLE_EQ(pages.heads[i].best_of_layer, expected.heads[i].best_of_layer);
  }
}

// A share of the attention takes as many blocks as have it, of all heads of a layer together.
TEST_P(Recall, OfABudgetThatIsAShareOfTheAttentionIsThatShare) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(GetParam()));
  const std::vector<TokenId> tokens = RandomTokens(330, 96, 12);
  const HarnessConfig config = HarnessConfig::Default();
  const auto listed = [&](double top_p, int64_t least) {
    kv::SelectionPolicy policy = PolicyOf(SummaryKind::kMasses, 160);
    policy.top_p = top_p;
    policy.least_keys = least;
    SelectionRecall::Head sum;
    for (const SelectionRecall::Head& head : RecallOf(*model, config, policy, tokens).heads) {
      sum.far += head.far;
      sum.listed += head.listed;
      sum.listed_blocks += head.listed_blocks;
      sum.best_of_layer += head.best_of_layer;
    }
    EXPECT_GE(sum.listed, 0.98 * sum.best_of_layer);
    return sum;
  };
  const SelectionRecall::Head fixed = listed(0.0, 0);
  const SelectionRecall::Head most = listed(1.0, 8), half = listed(0.5, 8), few = listed(0.01, 8);
  const int64_t lists = 12 * model->shape().layers * model->shape().kv_heads;
  EXPECT_EQ(fixed.listed_blocks, lists * 160 / 8);
  EXPECT_EQ(most.listed_blocks, fixed.listed_blocks);
  EXPECT_LT(half.listed_blocks, fixed.listed_blocks);
  EXPECT_NEAR(half.listed / half.far, 0.5, 0.05);
  EXPECT_EQ(few.listed_blocks, lists);
  EXPECT_EQ(listed(0.01, 24).listed_blocks, lists * 3);
}

// Counts what is chosen, and of that what is searched for.
class CountsChoices : public ForwardingKernels {
 public:
  CountsChoices(std::unique_ptr<Kernels> inner, int64_t* choices, int64_t* searches)
      : ForwardingKernels(std::move(inner)), choices_(*choices), searches_(*searches) {}

  void SelectBlocks(Stream& stream, const PageFormat& format, const SummaryFormat& summary,
                    int group, float scale, std::span<const SelectItem> items) override {
    for (const SelectItem& item : items) {
      ++choices_;
      searches_ += item.candidates_listed ? 0 : 1;
    }
    ForwardingKernels::SelectBlocks(stream, format, summary, group, scale, items);
  }

 private:
  int64_t& choices_;
  int64_t& searches_;
};

// Steps at 318 to 329: a page of 16 slots closes behind 319.
TEST_P(Recall, IsThatOfListsThatServeAsManyStepsAsTheyDoInDecode) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(GetParam()));
  const std::vector<TokenId> tokens = RandomTokens(330, 96, 12);
  const int64_t layers = model->shape().layers;
  struct Counts {
    int64_t choices = 0, searches = 0;
    double listed = 0.0, far = 0.0;
  };
  const auto of = [&](int64_t refresh, int64_t candidates_refresh) {
    Counts counts;
    HarnessConfig config = HarnessConfig::Default();
    config.page_slots = 16;
    config.wrap_kernels = [&](std::unique_ptr<Kernels> kernels) {
      return std::make_unique<CountsChoices>(std::move(kernels), &counts.choices, &counts.searches);
    };
    kv::SelectionPolicy policy = PolicyOf(SummaryKind::kMoments, 40);
    policy.refresh = refresh;
    policy.candidates_refresh = candidates_refresh;
    policy.breadth = candidates_refresh > 1 ? 4 : 1;
    for (const SelectionRecall::Head& head : RecallOf(*model, config, policy, tokens).heads) {
      counts.listed += head.listed;
      counts.far += head.far;
    }
    return counts;
  };
  const Counts each = of(1, 1), fourth = of(4, 1), searched = of(1, 4), both = of(2, 4);
  EXPECT_EQ(each.choices, 12 * layers);
  EXPECT_EQ(fourth.choices, 4 * layers) << "at 318, 320, 324 and 328";
  EXPECT_EQ(fourth.far, each.far) << "what is attended to is exact";
  EXPECT_NE(fourth.listed, each.listed);
  EXPECT_EQ(searched.choices, 12 * layers);
  EXPECT_EQ(searched.searches, 4 * layers);
  EXPECT_EQ(both.choices, 6 * layers);
  EXPECT_EQ(both.searches, 4 * layers);
}

INSTANTIATE_TEST_SUITE_P(DTypes, Recall, ::testing::Values(DType::kF32, DType::kBF16),
                         [](const auto& instance) {
                           return std::string(DTypeName(instance.param));
                         });

}  // namespace
}  // namespace headway::testing
