#include "kv/policy/eviction_budgets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <tuple>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/random.h"
#include "kv/policy/eviction_testing.h"

namespace headway::kv {
namespace {

using testing::ElementsAre;

std::vector<int64_t> LayerBudgets(const EvictionPolicy& policy, int layers, int64_t tokens) {
  return HeadBudgets(policy, layers, 1, tokens);
}

EvictionPolicy Static(std::vector<double> shares) {
  EvictionPolicy policy;
  policy.method = EvictionMethod::kSnap;
  policy.profiled = true;
  policy.shares = std::move(shares);
  return policy;
}

TEST(EvictionBudgets, HeadsHaveTheBudgetOnAverage) {
  Random random(2);
  for (int round = 0; round < 330; ++round) {
    const int layers = static_cast<int>(1 + random.Below(40));
    const auto method =
        static_cast<EvictionMethod>(1 + round % static_cast<int>(EvictionMethod::kZip));
    const EvictionPolicy policy = RandomPolicy(method, random, layers * 2);
    const int64_t tokens = 1 + random.Below(2000);
    const std::vector<int64_t> budgets = HeadBudgets(policy, layers, 2, tokens);
    ASSERT_EQ(std::ssize(budgets), layers * 2);
    const int64_t mean = policy.share > 0.0
                             ? std::llround(policy.share * static_cast<double>(tokens))
                             : std::min(policy.budget, tokens);
    EXPECT_EQ(std::accumulate(budgets.begin(), budgets.end(), int64_t{0}), layers * 2 * mean);
    EXPECT_LE(*std::max_element(budgets.begin(), budgets.end()), tokens);
    EXPECT_GE(*std::min_element(budgets.begin(), budgets.end()),
              std::min(mean, policy.AnywayOf(tokens)));
    EXPECT_TRUE(policy.profiled || std::is_sorted(budgets.rbegin(), budgets.rend()));
  }
}

TEST(EvictionBudgets, APyramidFallsFromTwiceTheBudgetToATwentieth) {
  EvictionPolicy policy;
  policy.method = EvictionMethod::kPyramid;
  policy.window = 32;
  policy.budget = 32 + 400;
  EXPECT_THAT(LayerBudgets(policy, 4, 100000), ElementsAre(32 + 780, 32 + 527, 32 + 273, 32 + 20));
  // No layer keeps more than there is, and the others get what it cannot take.
  EXPECT_THAT(LayerBudgets(policy, 4, 632), ElementsAre(632, 32 + 467, 32 + 333, 32 + 200));
  EXPECT_THAT(LayerBudgets(policy, 3, 400), ElementsAre(400, 400, 400));
  EXPECT_THAT(LayerBudgets(policy, 1, 100000), ElementsAre(432));
  policy.method = EvictionMethod::kSnap;
  EXPECT_THAT(LayerBudgets(policy, 2, 100000), ElementsAre(432, 432));
}

TEST(EvictionBudgets, StaticOnesAreThoseOfTheSharesBesideTheWindow) {
  EvictionPolicy policy = Static({0.0, 0.5, 2.5, 1.0});
  policy.window = 32;
  policy.budget = 132;
  EXPECT_THAT(HeadBudgets(policy, 2, 2, 100000), ElementsAre(32, 82, 282, 132));
  // Another budget has the same shares, and so has a share of the prompt.
  policy.budget = 42;
  EXPECT_THAT(HeadBudgets(policy, 2, 2, 100000), ElementsAre(32, 37, 57, 42));
  std::tie(policy.budget, policy.share) = std::pair(0, 0.1);
  EXPECT_THAT(HeadBudgets(policy, 2, 2, 1320), ElementsAre(32, 82, 282, 132));
  // No head keeps more than there is, and the others get what it cannot take.
  std::tie(policy.budget, policy.share) = std::pair(132, 0.0);
  EXPECT_THAT(HeadBudgets(policy, 2, 2, 182), ElementsAre(32, 132, 182, 182));
}

TEST(EvictionBudgets, StaticOnesAreRoundedWithinAToken) {
  EvictionPolicy policy = Static({1.0, 1.0, 1.0});
  policy.window = 1;
  std::tie(policy.budget, policy.share) = std::pair(100, 0.0);
  EXPECT_THAT(HeadBudgets(policy, 3, 1, 1000), ElementsAre(100, 100, 100));
  policy.shares = {0.55, 1.1, 1.35};
  EXPECT_THAT(HeadBudgets(policy, 3, 1, 1000), ElementsAre(1 + 54, 1 + 109, 1 + 134));
}

// As HeadKV has it: of b tokens each head has b (1 - 1 / beta), the others are the pool.
TEST(EvictionBudgets, HeadKvHandsOutAPoolByImportance) {
  EvictionPolicy policy = Static({0.0, 0.4, 3.0, 0.6});
  policy.method = EvictionMethod::kHeadKv;
  policy.window = 32;
  policy.budget = 32 + 300;
  policy.safeguard = 1.0 - 1.0 / 1.5;
  EXPECT_THAT(HeadBudgets(policy, 2, 2, 100000),
              ElementsAre(32 + 100, 32 + 180, 32 + 700, 32 + 220));
  policy.safeguard = 1.0;
  EXPECT_THAT(HeadBudgets(policy, 2, 2, 100000), ElementsAre(332, 332, 332, 332));
}

// The best of all heads, told one by one.
TEST(EvictionBudgets, HeadsOfAllLayersShareByScore) {
  Random random(3);
  for (int round = 0; round < 300; ++round) {
    EvictionPolicy policy = RandomPolicy(EvictionMethod::kZip, random, 6);
    policy.profiled = false;
    policy.window = 1;
    const int64_t tokens = 1 + random.Below(300);
    const int slots = static_cast<int>(1 + random.Below(20));
    const int64_t closed = tokens / slots * slots;
    std::vector<float> scores;
    for (int64_t i = 0; i < 6 * tokens; ++i) {
      scores.push_back(static_cast<float>(random.Below(round % 2 == 0 ? 5 : 100000)));
    }
    const std::vector<int64_t> budgets =
        *BudgetsOverLayers(policy, scores, tokens, closed, SharingHeads::Alone(6));
    std::vector<std::tuple<float, int64_t, size_t>> best;
    const int64_t end = std::min(closed, tokens - 1);
    for (size_t head = 0; head < 6; ++head) {
      for (int64_t token = policy.sink; token < end; ++token) {
        best.emplace_back(-scores[head * static_cast<size_t>(tokens) + static_cast<size_t>(token)],
                          token, head);
      }
    }
    std::sort(best.begin(), best.end());
    const int64_t anyway = tokens - std::max<int64_t>(0, end - policy.sink);
    std::vector<int64_t> expected(6, anyway);
    const int64_t share = 6 * std::max<int64_t>(0, policy.MeanOf(tokens) - anyway);
    for (int64_t i = 0; i < share; ++i) ++expected[std::get<2>(best[static_cast<size_t>(i)])];
    ASSERT_EQ(budgets, expected) << "round " << round;
  }
}

TEST(EvictionBudgets, BoundsAreTightWhereHeadsAreAlike) {
  EvictionPolicy policy;
  policy.method = EvictionMethod::kSnap;
  policy.budget = 1024;
  KeptBounds bounds = KeptBoundsOf(policy, RankHeads::Alone(32, 8), 1 << 17, 64);
  EXPECT_EQ(bounds.head_pages, 16);
  EXPECT_EQ(bounds.all_pages, 32 * 8 * 16);
  bounds = KeptBoundsOf(policy, RankHeads::Alone(32, 8), 500, 64);
  EXPECT_EQ(bounds.head_pages, 8);
  EXPECT_EQ(bounds.all_pages, 32 * 8 * 8);
  // A head may take all that others need not keep; together they have what they have.
  policy.method = EvictionMethod::kAdaSnap;
  bounds = KeptBoundsOf(policy, RankHeads::Alone(32, 8), 1 << 17, 64);
  EXPECT_EQ(bounds.head_pages, CeilDiv(8 * 1024 - 7 * 204, 64));
  EXPECT_EQ(bounds.all_pages, 32 * 8 * (1024 + 63) / 64);
}

TEST(EvictionBudgets, BoundsOfStaticOnesAreThoseOfTheLargest) {
  EvictionPolicy policy = Static({0.0, 0.5, 2.5, 1.0});
  policy.window = 32;
  policy.budget = 32 + 1000;
  const KeptBounds bounds = KeptBoundsOf(policy, RankHeads::Alone(2, 2), 1 << 17, 64);
  EXPECT_EQ(bounds.head_pages, CeilDiv(32 + 2500 + 1, 64));
  EXPECT_EQ(bounds.all_pages, 4 * (1032 + 63) / 64);
  EXPECT_EQ(KeptBoundsOf(policy, RankHeads::Alone(2, 2), 500, 64).head_pages, 8);
}

}  // namespace
}  // namespace headway::kv
