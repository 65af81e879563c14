#include "engine/eval/divergence.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "headway/engine.h"

namespace headway::eval {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<TokenId> Count(int n) {
  std::vector<TokenId> tokens(static_cast<size_t>(n));
  std::iota(tokens.begin(), tokens.end(), 1);
  return tokens;
}

TEST(SpreadWindows, ReachFromTheFirstTokenToTheLast) {
  const std::vector<TokenId> text = Count(10);
  const Result<SpreadWindows> apart = SpreadWindows::Over(text, std::nullopt, {3, 3, 1});
  ASSERT_TRUE(apart.ok());
  EXPECT_THAT(apart->Window(0), ElementsAre(1, 2, 3));
  EXPECT_THAT(apart->Window(1), ElementsAre(4, 5, 6));
  EXPECT_THAT(apart->Window(2), ElementsAre(8, 9, 10));
  const Result<SpreadWindows> one = SpreadWindows::Over(text, 0, {5, 1, 2});
  ASSERT_TRUE(one.ok());
  EXPECT_THAT(one->Window(0), ElementsAre(0, 1, 2, 3, 4));
}

TEST(SpreadWindows, ShareNothingThatIsCompared) {
  const std::vector<TokenId> text = Count(12);
  // 6 tokens of the text and twice 3 more.
  const Result<SpreadWindows> most = SpreadWindows::Over(text, 0, {7, 3, 3});
  ASSERT_TRUE(most.ok());
  EXPECT_THAT(most->Window(0), ElementsAre(0, 1, 2, 3, 4, 5, 6));
  EXPECT_THAT(most->Window(1), ElementsAre(0, 4, 5, 6, 7, 8, 9));
  EXPECT_THAT(most->Window(2), ElementsAre(0, 7, 8, 9, 10, 11, 12));
  const Status more = SpreadWindows::Over(text, 0, {7, 4, 3}).status();
  EXPECT_EQ(more.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(more.message(), HasSubstr("has 12 tokens, and 4 windows of 7 tokens, of which 3 are "
                                        "compared, need 15"));
  EXPECT_TRUE(SpreadWindows::Over(text, std::nullopt, {12, 1, 11}).ok());
  EXPECT_THAT(SpreadWindows::Over(text, std::nullopt, {13, 1, 1}).status().message(),
              HasSubstr("1 window of 13 tokens, of which 1 are compared, needs 13"));
}

TEST(SummarizeSteps, CountsStepsAndTakesTheErrorFromWindows) {
  std::vector<StepDistance> steps(40);
  for (size_t i = 0; i < steps.size(); ++i) {
    steps[i] = {static_cast<double>(i + 1), i % 4 != 0};
  }
  // Windows' means 5.5, 15.5, 25.5, 35.5.
  const Divergence four = SummarizeSteps(steps, 4);
  EXPECT_DOUBLE_EQ(four.mean, 20.5);
  EXPECT_DOUBLE_EQ(four.p95, 38.0);
  EXPECT_DOUBLE_EQ(four.most, 40.0);
  EXPECT_DOUBLE_EQ(four.same_top, 0.75);
  ASSERT_TRUE(four.standard_error.has_value());
  EXPECT_NEAR(*four.standard_error, std::sqrt(2.0 * (225.0 + 25.0) / 3.0 / 4.0), 1e-12);
  EXPECT_FALSE(SummarizeSteps(steps, 1).standard_error.has_value());
  EXPECT_DOUBLE_EQ(SummarizeSteps({steps.data(), 1}, 1).p95, 1.0);
}

TEST(StepComparison, ReadsComparedTokensOneAStepAndComesToZeroForTheSame) {
  Result<std::unique_ptr<Engine>> engine = Engine::Open(HEADWAY_SOURCE_DIR "/models/demo", {});
  ASSERT_TRUE(engine.ok()) << engine.status().message();
  const std::vector<TokenId> text = Count(100);
  const Result<SpreadWindows> windows = SpreadWindows::Over(text, std::nullopt, {80, 2, 5});
  ASSERT_TRUE(windows.ok());
  std::vector<int64_t> done;
  Hooks hooks;
  hooks.on_progress = [&](const Progress& progress) {
    done.push_back(progress.done);
    EXPECT_EQ(progress.total, 4 * 79);
  };
  StepComparison comparison(*windows, hooks);
  const auto context = [&] {
    Result<std::unique_ptr<Context>> made = (*engine)->NewContext({{80}});
    EXPECT_TRUE(made.ok()) << made.status().message();
    return std::move(*made);
  };
  ASSERT_TRUE(comparison.RunExact(*context()).ok());
  EXPECT_THAT(done, ElementsAre(74, 75, 76, 77, 78, 79, 153, 154, 155, 156, 157, 158));
  const Result<Divergence> same = comparison.RunApproximate(*context());
  ASSERT_TRUE(same.ok()) << same.status().message();
  EXPECT_EQ(same->mean, 0.0);
  EXPECT_EQ(same->most, 0.0);
  EXPECT_EQ(same->same_top, 1.0);
  EXPECT_EQ(same->exact.tokens, 10);
  EXPECT_EQ(same->exact.negative_log_likelihood, same->approximate.negative_log_likelihood);
  // As one call scores these tokens, within what rounding to the model's bf16 changes in products
  // of many rows, at most 2^-8 nats a token; another token would change whole nats.
  double whole = 0.0;
  const std::unique_ptr<Context> scored = context();
  for (const int64_t w : {0, 1}) {
    const std::vector<TokenId> window = windows->Window(w);
    for (const int64_t end : {79, 74}) {
      const auto score = scored->Score(window, {0, end, {}}, {});
      ASSERT_TRUE(score.ok());
      whole += (end == 79 ? 1.0 : -1.0) * score->negative_log_likelihood;
    }
  }
  EXPECT_NEAR(same->exact.negative_log_likelihood, whole, 10.0 / 256);
}

TEST(StepComparison, KeepsFloatsOfEveryStep) {
  EXPECT_EQ(StepComparison::Bytes({4096, 4, 128}, 128'256), int64_t{4} * 128 * 128'256 * 4);
}

TEST(StepComparison, BeginsWithAStepWhereNothingLiesBefore) {
  Result<std::unique_ptr<Engine>> engine = Engine::Open(HEADWAY_SOURCE_DIR "/models/demo", {});
  ASSERT_TRUE(engine.ok());
  const std::vector<TokenId> text = Count(4);
  const Result<SpreadWindows> windows = SpreadWindows::Over(text, std::nullopt, {4, 1, 3});
  ASSERT_TRUE(windows.ok());
  const Hooks hooks;
  StepComparison comparison(*windows, hooks);
  Result<std::unique_ptr<Context>> context = (*engine)->NewContext({{4}});
  ASSERT_TRUE(context.ok());
  ASSERT_TRUE(comparison.RunExact(**context).ok());
  const Result<Divergence> same = comparison.RunApproximate(**context);
  ASSERT_TRUE(same.ok());
  EXPECT_EQ(same->exact.tokens, 3);
  EXPECT_EQ(same->most, 0.0);
}

}  // namespace
}  // namespace headway::eval
