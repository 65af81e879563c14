#include "engine/eval/perplexity.h"

#include <gtest/gtest.h>

#include <cmath>
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

}  // namespace
}  // namespace headway::eval
