#include "engine/eval/perplexity.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

namespace headway::eval {
namespace {

using Windows = std::vector<std::vector<TokenId>>;

std::vector<TokenId> Count(int n) {
  std::vector<TokenId> tokens(static_cast<size_t>(n));
  std::iota(tokens.begin(), tokens.end(), 1);
  return tokens;
}

TEST(CutWindows, BeginsEachWithBos) {
  EXPECT_EQ(CutWindows(Count(7), 0, 4, 0), (Windows{{0, 1, 2, 3}, {0, 4, 5, 6}, {0, 7}}));
}

TEST(CutWindows, CutsAloneWithoutBos) {
  EXPECT_EQ(CutWindows(Count(7), std::nullopt, 4, 0), (Windows{{1, 2, 3, 4}, {5, 6, 7}}));
  // A last window of one token would predict nothing.
  EXPECT_EQ(CutWindows(Count(5), std::nullopt, 4, 0), (Windows{{1, 2, 3, 4}}));
}

TEST(CutWindows, StopsAtTheMost) {
  EXPECT_EQ(CutWindows(Count(100), 0, 3, 2), (Windows{{0, 1, 2}, {0, 3, 4}}));
  EXPECT_EQ(CutWindows(Count(2), 0, 3, 5), (Windows{{0, 1, 2}}));
  EXPECT_TRUE(CutWindows({}, 0, 3, 0).empty());
  EXPECT_TRUE(CutWindows(Count(1), std::nullopt, 8, 0).empty());
}

TEST(KlDivergence, IsThatOfTheDistributions) {
  const std::vector<float> even = {1.0f, 1.0f};           // 1/2, 1/2
  const std::vector<float> odd = {std::log(3.0f), 0.0f};  // 3/4, 1/4
  EXPECT_NEAR(KlDivergence(even, odd), 0.5 * std::log(2.0 / 3.0) + 0.5 * std::log(2.0), 1e-6);
  EXPECT_NEAR(KlDivergence(odd, even), 0.75 * std::log(1.5) + 0.25 * std::log(0.5), 1e-6);
  // What is added to all logits changes nothing, and large ones do not overflow.
  const std::vector<float> far = {1000.0f + std::log(3.0f), 1000.0f};
  EXPECT_NEAR(KlDivergence(even, far), KlDivergence(even, odd), 1e-4);
  EXPECT_EQ(KlDivergence(odd, odd), 0.0);
}

TEST(KlDivergence, OfOneTokenThatIsCertain) {
  const float never = -std::numeric_limits<float>::infinity();
  const std::vector<float> certain = {never, 3.0f, never, never};
  const std::vector<float> even(4, -2.0f);
  EXPECT_EQ(KlDivergence(certain, certain), 0.0);
  EXPECT_NEAR(KlDivergence(certain, even), std::log(4.0), 1e-12);
  EXPECT_EQ(KlDivergence(even, certain), std::numeric_limits<double>::infinity());
  // Logits so far apart that all but one probability round to 0.
  EXPECT_NEAR(KlDivergence(std::vector<float>{1e30f, 0.0f}, std::vector<float>{0.0f, 0.0f}),
              std::log(2.0), 1e-12);
}

TEST(KlDivergence, KeepsWhatLargeVocabulariesAddUp) {
  std::vector<float> exact(100'000), other(exact.size());
  for (size_t i = 0; i < exact.size(); ++i) {
    exact[i] = 10.0f * static_cast<float>(std::sin(static_cast<double>(i)));
    other[i] = exact[i] + 1e-3f * static_cast<float>(i % 2);
  }
  EXPECT_EQ(KlDivergence(exact, exact), 0.0);
  // Half of the mass moves by a logit of d: d^2 / 8 to the leading order.
  EXPECT_NEAR(KlDivergence(exact, other), 1.25e-7, 2e-9);
}

TEST(TopOf, IsTheFirstOfEqualOnes) { EXPECT_EQ(TopOf(std::vector<float>{1.0f, 2.0f, 2.0f}), 1u); }

}  // namespace
}  // namespace headway::eval
