#include "kv/policy/eviction.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <limits>
#include <numeric>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/random.h"
#include "kv/policy/eviction_budgets.h"
#include "kv/policy/eviction_testing.h"

namespace headway::kv {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr EvictionMethod kMethods[] = {
    EvictionMethod::kStreaming,       EvictionMethod::kSnap,       EvictionMethod::kPyramid,
    EvictionMethod::kAdaSnap,         EvictionMethod::kAdaPyramid, EvictionMethod::kCriticalSnap,
    EvictionMethod::kCriticalAdaSnap, EvictionMethod::kDefensive,  EvictionMethod::kExpected,
    EvictionMethod::kHeavy,           EvictionMethod::kHeadKv,     EvictionMethod::kZip};
constexpr double kInfinite = std::numeric_limits<double>::infinity();

// Weights of a layer. `levels` other than 0: so many different ones, so that many are equal.
struct Weights {
  Weights(int of_heads, int64_t of_tokens, int64_t levels, Random& random)
      : heads(of_heads), tokens(of_tokens) {
    for (int64_t i = 0; i < heads * tokens; ++i) {
      const double size =
          levels == 0 ? std::exp(3.0 * random.Normal()) : static_cast<double>(random.Below(levels));
      sum.push_back(static_cast<float>(size * static_cast<double>(1 + i / tokens)));
      max.push_back(sum.back() * static_cast<float>(levels == 0 ? random.Uniform() : 0.5));
      norms.push_back(levels == 0 ? std::exp(random.Normal()) : 2.0f);
    }
  }
  ObservedWeights Observed() const { return {sum, max, norms, heads, tokens, 128}; }

  int heads;
  int64_t tokens;
  std::vector<float> sum, max, norms;
};

// A plain reading of the methods, token by token.
class Plain {
 public:
  // `budgets` [heads] of the layer.
  Plain(const EvictionPolicy& policy, const Weights& weights, int64_t closed,
        std::span<const int64_t> budgets, int slots)
      : policy_(policy), weights_(weights), closed_(closed), budgets_(budgets), slots_(slots) {}

  std::vector<std::vector<int32_t>> Kept() const {
    std::vector<std::vector<int32_t>> kept;
    const std::vector<int64_t> wanted = Wanted();
    for (int head = 0; head < weights_.heads; ++head) {
      const int64_t full = RoundUp(wanted[static_cast<size_t>(head)], slots_);
      std::vector<int64_t> ranked = Ranked(head);
      const auto taken = std::min<int64_t>(full, std::ssize(ranked));
      if (policy_.critical()) RankAgain(head, taken, &ranked);
      std::vector<int32_t> of_head(ranked.begin(), ranked.begin() + taken);
      std::sort(of_head.begin(), of_head.end());
      kept.push_back(of_head);
    }
    return kept;
  }

 private:
  int64_t Window() const {
    if (policy_.method != EvictionMethod::kHeavy) return policy_.window;
    const int64_t budget = policy_.share > 0.0
                               ? std::llround(policy_.share * static_cast<double>(weights_.tokens))
                               : std::min(policy_.budget, weights_.tokens);
    return std::max<int64_t>(1, budget / 2);
  }

  bool IsKeptAnyway(int64_t token) const {
    if (token >= weights_.tokens - Window()) return true;
    return policy_.method == EvictionMethod::kStreaming && token < policy_.sink;
  }

  double Norm(int head, int64_t token) const {
    return weights_.norms[static_cast<size_t>(head * weights_.tokens + token)];
  }

  std::vector<double> Scores(int head) const {
    const auto window_begin = std::max<int64_t>(0, weights_.tokens - Window());
    const bool defensive = policy_.method == EvictionMethod::kDefensive;
    std::vector<double> scores;
    double total = 0.0;
    for (int64_t token = 0; token < window_begin; ++token) {
      double sum = 0.0, max = 0.0;
      for (int64_t at = token - policy_.pool / 2; at <= token + policy_.pool / 2; ++at) {
        if (at < 0 || at >= window_begin) continue;
        const auto i = static_cast<size_t>(head * weights_.tokens + at);
        const double weight = (defensive ? weights_.max : weights_.sum)[i];
        sum += weight;
        max = std::max(max, weight);
      }
      double score = policy_.pooling == EvictionPolicy::Pool::kMean ? sum / policy_.pool : max;
      if (!defensive) score *= 1.0 / 128;
      if (policy_.method == EvictionMethod::kStreaming) score = static_cast<double>(token);
      if (policy_.method == EvictionMethod::kExpected) score *= Norm(head, token);
      const bool sinks =
          policy_.method == EvictionMethod::kExpected || policy_.method == EvictionMethod::kZip;
      if (sinks && token < policy_.sink) score = kInfinite;
      scores.push_back(score);
      total += score;
    }
    if (!defensive) return scores;
    for (int64_t token = 0; token < window_begin; ++token) {
      double norms = 0.0;
      for (int other = 0; other < weights_.heads; ++other) norms += Norm(other, token);
      double& score = scores[static_cast<size_t>(token)];
      score =
          std::max(score, total / static_cast<double>(window_begin)) * (Norm(head, token) / norms);
    }
    for (const int64_t token : MostAttended(head, window_begin)) {
      scores[static_cast<size_t>(token)] = kInfinite;
    }
    return scores;
  }

  // As many of the first tokens as have less than 0.9 of the attention that they have together,
  // what the window has of all heads' among it, and no more than a head chooses on average.
  std::vector<int64_t> MostAttended(int head, int64_t count) const {
    const auto sum_of = [&](int of_head, int64_t token) {
      return double{weights_.sum[static_cast<size_t>(of_head * weights_.tokens + token)]};
    };
    double window = 0.0, all = 0.0, so_far = 0.0;
    for (int other = 0; other < weights_.heads; ++other) {
      for (int64_t token = count; token < weights_.tokens; ++token) window += sum_of(other, token);
    }
    std::vector<int64_t> tokens(static_cast<size_t>(count));
    std::iota(tokens.begin(), tokens.end(), 0);
    std::stable_sort(tokens.begin(), tokens.end(), [&](int64_t left, int64_t right) {
      return sum_of(head, left) > sum_of(head, right);
    });
    for (const int64_t token : tokens) all += sum_of(head, token);
    const int64_t candidates = std::min(closed_, count);
    const int64_t free = std::clamp<int64_t>(
        budgets_[static_cast<size_t>(head)] - (weights_.tokens - candidates), 0, candidates);
    std::vector<int64_t> most;
    for (const int64_t token : tokens) {
      so_far += sum_of(head, token);
      if (so_far >= (0.9 - window / (weights_.heads * 128)) * all) break;
      if (std::ssize(most) < free) most.push_back(token);
    }
    return most;
  }

  // Behind the first half of what is kept, what is kept anyway among it, the order is another.
  void RankAgain(int head, int64_t taken, std::vector<int64_t>* ranked) const {
    const std::vector<double> scores = Scores(head);
    const auto anyway = std::count_if(ranked->begin(), ranked->end(),
                                      [&](int64_t token) { return IsKeptAnyway(token); });
    const int64_t tail = weights_.tokens - closed_;
    const int64_t from = std::max<int64_t>(anyway, (taken + tail) / 2 - tail);
    const auto score = [&](int64_t token) {
      return (scores[static_cast<size_t>(token)] + 1e-4) * Norm(head, token);
    };
    std::sort(ranked->begin() + from, ranked->end(), [&](int64_t left, int64_t right) {
      if (score(left) != score(right)) return score(left) > score(right);
      return left < right;
    });
  }

  // The closed tokens, in the order in which a head takes them.
  std::vector<int64_t> Ranked(int head) const {
    const std::vector<double> scores = Scores(head);
    std::vector<int64_t> tokens(static_cast<size_t>(closed_));
    std::iota(tokens.begin(), tokens.end(), 0);
    std::stable_sort(tokens.begin(), tokens.end(), [&](int64_t a, int64_t b) {
      if (IsKeptAnyway(a) || IsKeptAnyway(b)) return IsKeptAnyway(a) && !IsKeptAnyway(b);
      return scores[static_cast<size_t>(a)] > scores[static_cast<size_t>(b)];
    });
    return tokens;
  }

  std::vector<int64_t> Wanted() const {
    const int64_t tail = weights_.tokens - closed_;
    int64_t anyway = 0;
    for (int64_t token = 0; token < closed_; ++token) anyway += IsKeptAnyway(token) ? 1 : 0;
    std::vector<int64_t> wanted;
    for (const int64_t budget : budgets_) wanted.push_back(std::max(anyway, budget - tail));
    if (!policy_.uneven()) return wanted;
    // What the heads of a layer have together goes to the best of all, what is safe first.
    const double share = policy_.method == EvictionMethod::kDefensive ? 0.0 : policy_.safeguard;
    const auto safe = static_cast<int64_t>(share * static_cast<double>(budgets_[0]));
    std::vector<std::tuple<bool, double, int64_t, int>> all;
    for (int head = 0; head < weights_.heads; ++head) {
      const std::vector<double> scores = Scores(head);
      const std::vector<int64_t> ranked = Ranked(head);
      for (size_t rank = 0; rank < ranked.size(); ++rank) {
        const bool first = IsKeptAnyway(ranked[rank]) || static_cast<int64_t>(rank) < safe - tail;
        const auto at = static_cast<size_t>(ranked[rank]);
        all.emplace_back(!first, first ? 0.0 : -scores[at], ranked[rank], head);
      }
    }
    std::sort(all.begin(), all.end());
    const auto total = static_cast<size_t>(weights_.heads * wanted[0]);
    all.resize(std::min(all.size(), total));
    wanted.assign(wanted.size(), 0);
    for (const auto& chosen : all) ++wanted[static_cast<size_t>(std::get<3>(chosen))];
    return wanted;
  }

  const EvictionPolicy& policy_;
  const Weights& weights_;
  int64_t closed_;
  std::span<const int64_t> budgets_;
  int slots_;
};

// Positions alone, of heads that have the same budget.
std::vector<std::vector<int32_t>> Chosen(const EvictionPolicy& policy, const Weights& weights,
                                         int64_t closed, int64_t budget, int slots) {
  const std::vector<int64_t> budgets(static_cast<size_t>(weights.heads), budget);
  std::vector<std::vector<int32_t>> positions;
  Result<std::vector<KeptOfHead>> heads = ChooseKept(policy, weights.Observed(), closed, budgets,
                                                     slots, SharingHeads::Alone(weights.heads));
  for (KeptOfHead& kept : *heads) {
    positions.push_back(std::move(kept.positions));
  }
  return positions;
}

TEST(Eviction, NamesGoBothWays) {
  for (const EvictionMethod method : kMethods) {
    const Result<EvictionMethod> read = EvictionOf(EvictionName(method));
    ASSERT_TRUE(read.ok());
    EXPECT_EQ(*read, method);
  }
  const Result<EvictionMethod> unknown = EvictionOf("snap");
  EXPECT_EQ(unknown.status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(
      unknown.status().message(),
      "unknown eviction method 'snap'; there are streamingllm, snapkv, pyramidkv, ada-snapkv, "
      "ada-pyramidkv, critical-snapkv, critical-ada-snapkv, defensivekv, expectedattention, "
      "h2o, headkv, kvzip");
}

// Of one of three layers.
void ExpectPlainChoice(const EvictionPolicy& policy, const Weights& weights,
                       std::span<const int64_t> budgets, int slots) {
  const int64_t closed = weights.tokens / slots * slots;
  const auto kept = *ChooseKept(policy, weights.Observed(), closed, budgets, slots,
                                SharingHeads::Alone(weights.heads));
  const auto plain = Plain(policy, weights, closed, budgets, slots).Kept();
  for (size_t head = 0; head < plain.size(); ++head) {
    EXPECT_EQ(kept[head].positions, plain[head]);
    // Pages are filled, no more.
    EXPECT_LE(kept[head].budget, std::ssize(kept[head].positions) + weights.tokens - closed);
    EXPECT_GT(kept[head].budget + slots,
              std::ssize(kept[head].positions) + weights.tokens - closed);
  }
}

TEST(Eviction, EachMethodKeepsWhatAPlainReadingKeeps) {
  Random random(1);
  for (int round = 0; round < 990; ++round) {
    const int heads = static_cast<int>(1 + random.Below(4));
    const EvictionPolicy policy =
        RandomPolicy(kMethods[round % std::size(kMethods)], random, 3 * heads);
    const int slots = static_cast<int>(1 + random.Below(70));
    const int64_t tokens = 1 + random.Below(round % 5 == 0 ? 60 : 700);
    const int64_t levels = random.Below(3) == 0 ? 1 + random.Below(4) : 0;
    const Weights weights(heads, tokens, levels, random);
    const std::vector<int64_t> budgets = HeadBudgets(policy, 3, heads, tokens);
    for (size_t layer = 0; layer < 3; ++layer) {
      SCOPED_TRACE(std::string(EvictionName(policy.method)) + " round " + std::to_string(round) +
                   " layer " + std::to_string(layer) + " of " + std::to_string(tokens));
      const auto first = layer * static_cast<size_t>(heads);
      ExpectPlainChoice(policy, weights,
                        std::span(budgets).subspan(first, static_cast<size_t>(heads)), slots);
      ASSERT_FALSE(HasFailure());
    }
  }
}

TEST(Eviction, WhatIsKeptIsWithinItsBounds) {
  Random random(10);
  for (int round = 0; round < 990; ++round) {
    const int heads = static_cast<int>(1 + random.Below(4));
    const EvictionPolicy policy =
        RandomPolicy(kMethods[round % std::size(kMethods)], random, 3 * heads);
    const int slots = static_cast<int>(1 + random.Below(70));
    const int64_t length = 1 + random.Below(700);
    const int64_t tokens = length - random.Below(std::min<int64_t>(length, 100));
    const Weights weights(heads, tokens, 0, random);
    // Each head of each layer is at one of the ranks.
    RankHeads placed = RankHeads::Alone(3, heads);
    const auto ranks = static_cast<size_t>(1 + random.Below(3));
    std::vector<size_t> rank_of(static_cast<size_t>(3 * heads), 0);
    for (size_t& rank : rank_of)
      rank = static_cast<size_t>(random.Below(static_cast<int64_t>(ranks)));
    placed.ranks.assign(ranks, std::vector<HeadSet>(3));
    for (size_t at = 0; at < rank_of.size(); ++at) {
      const auto of_layer = at % static_cast<size_t>(heads);
      placed.ranks[rank_of[at]][at / static_cast<size_t>(heads)].heads.push_back(
          static_cast<int>(of_layer));
    }
    const KeptBounds bounds = KeptBoundsOf(policy, placed, length, slots);
    const KeptBounds alone = KeptBoundsOf(policy, RankHeads::Alone(3, heads), length, slots);
    EXPECT_LE(bounds.all_pages, alone.all_pages + 3 * heads);
    const std::vector<int64_t> budgets = HeadBudgets(policy, 3, heads, tokens);
    const int64_t closed = tokens / slots * slots;
    int64_t pages = 0, let_go = 0;
    std::vector<int64_t> of_ranks(ranks, 0), let_go_of(ranks, 0);
    size_t at = 0;
    for (size_t first = 0; first < budgets.size(); first += static_cast<size_t>(heads)) {
      const Result<std::vector<KeptOfHead>> of_layer =
          ChooseKept(policy, weights.Observed(), closed,
                     std::span(budgets).subspan(first, static_cast<size_t>(heads)), slots,
                     SharingHeads::Alone(heads));
      for (const KeptOfHead& kept : *of_layer) {
        const int64_t of_head = CeilDiv(std::ssize(kept.positions), int64_t{slots});
        EXPECT_LE(of_head, bounds.head_pages);
        pages += of_head;
        of_ranks[rank_of[at]] += of_head;
        ASSERT_EQ((closed - std::ssize(kept.positions)) % slots, 0);
        let_go += (closed - std::ssize(kept.positions)) / slots;
        let_go_of[rank_of[at++]] += (closed - std::ssize(kept.positions)) / slots;
      }
    }
    ASSERT_LE(pages, alone.all_pages) << EvictionName(policy.method) << " round " << round;
    ASSERT_LE(let_go, LetGoPages(policy, RankHeads::Alone(3, heads), length, slots))
        << EvictionName(policy.method) << " round " << round;
    const int64_t most = *std::max_element(of_ranks.begin(), of_ranks.end());
    ASSERT_LE(most, bounds.all_pages) << EvictionName(policy.method) << " round " << round;
    ASSERT_LE(*std::max_element(let_go_of.begin(), let_go_of.end()),
              LetGoPages(policy, placed, length, slots))
        << EvictionName(policy.method) << " round " << round;
  }
}

TEST(Eviction, NeighboursOfAWeightAreKeptWithIt) {
  EvictionPolicy policy;
  policy.method = EvictionMethod::kSnap;
  policy.window = 2;
  policy.pool = 3;
  Random random(3);
  Weights weights(1, 24, 1, random);  // zeros
  weights.sum[9] = 1.0f;
  weights.sum[22] = 100.0f;  // of the window, which is kept anyway, and whose weight is not pooled
  EXPECT_THAT(Chosen(policy, weights, 24, 5, 1)[0], ElementsAre(8, 9, 10, 22, 23));
  // The earliest of what is equal fills the page.
  EXPECT_THAT(Chosen(policy, weights, 24, 5, 8)[0], ElementsAre(0, 1, 2, 8, 9, 10, 22, 23));
  // Tokens behind the closed ones are part of the budget.
  EXPECT_THAT(Chosen(policy, weights, 16, 11, 1)[0], ElementsAre(8, 9, 10));
  EXPECT_THAT(Chosen(policy, weights, 16, 8, 1)[0], ElementsAre());
  EXPECT_THAT(Chosen(policy, weights, 0, 5, 1)[0], ElementsAre());
}

TEST(Eviction, AHeadWithMoreAttentionKeepsMore) {
  EvictionPolicy policy;
  policy.method = EvictionMethod::kAdaSnap;
  policy.window = 4;
  policy.pool = 1;
  Random random(4);
  Weights weights(2, 64, 1, random);
  std::fill(weights.sum.begin() + 64, weights.sum.end(), 1.0f);
  // 20 tokens a head: the first keeps a fifth of them, the window.
  std::vector<std::vector<int32_t>> kept = Chosen(policy, weights, 64, 20, 1);
  EXPECT_THAT(kept[0], ElementsAre(60, 61, 62, 63));
  EXPECT_EQ(kept[1].size(), 36u);
  policy.safeguard = 0.5;
  kept = Chosen(policy, weights, 64, 20, 1);
  EXPECT_THAT(kept[0], ElementsAre(0, 1, 2, 3, 4, 5, 60, 61, 62, 63));
  EXPECT_EQ(kept[1].size(), 30u);
}

TEST(Eviction, ADefensiveHeadSeesWhatOneQuerySaw) {
  EvictionPolicy policy;
  policy.method = EvictionMethod::kDefensive;
  policy.window = 1;
  policy.pool = 1;
  Random random(5);
  Weights weights(1, 16, 1, random);
  weights.sum = std::vector<float>(16, 1.0f);
  weights.sum[7] = 2.0f;
  weights.sum[15] = 128.0f;  // the window has all of the attention: no token is taken by its mean
  weights.max[12] = 0.9f;    // the mean is 0.06
  weights.max[9] = 0.01f;
  EXPECT_THAT(Chosen(policy, weights, 16, 3, 1)[0], ElementsAre(0, 12, 15));
  weights.sum[15] = 0.0f;  // 7 and 0 have less than 0.9 of it
  EXPECT_THAT(Chosen(policy, weights, 16, 3, 1)[0], ElementsAre(0, 7, 15));
}

TEST(Eviction, ACriticalHeadLooksAtValuesForItsSecondHalf) {
  EvictionPolicy policy;
  policy.method = EvictionMethod::kCriticalSnap;
  policy.window = 1;
  policy.pool = 1;
  Random random(7);
  Weights weights(1, 16, 1, random);
  for (size_t i = 0; i < 16; ++i) weights.sum[i] = static_cast<float>(20 - i) * 12.8f;
  weights.norms[9] = 100.0f;
  weights.norms[12] = 200.0f;
  weights.norms[1] = 0.0f;
  EXPECT_THAT(Chosen(policy, weights, 16, 5, 1)[0], ElementsAre(0, 2, 9, 12, 15));
  EXPECT_THAT(Chosen(policy, weights, 16, 4, 1)[0], ElementsAre(0, 9, 12, 15));
}

TEST(Eviction, ExpectedAttentionCountsByTheSizeOfValues) {
  EvictionPolicy policy;
  policy.method = EvictionMethod::kExpected;
  policy.window = 1;
  policy.pool = 1;
  policy.sink = 2;
  Random random(8);
  Weights weights(1, 16, 1, random);
  for (size_t i = 0; i < 16; ++i) weights.sum[i] = 1.0f;
  weights.norms[9] = 3.0f;
  weights.norms[12] = 4.0f;
  weights.sum[12] = 0.5f;
  weights.sum[5] = 1.25f;
  EXPECT_THAT(Chosen(policy, weights, 16, 5, 1)[0], ElementsAre(0, 1, 5, 9, 15));
}

TEST(Eviction, AHeavyHitterIsKeptBesideTheLastTokens) {
  EvictionPolicy policy;
  policy.method = EvictionMethod::kHeavy;
  policy.pool = 1;
  policy.budget = 6;
  Random random(9);
  Weights weights(1, 16, 1, random);
  weights.sum[9] = 2.0f;
  weights.sum[3] = 1.0f;
  EXPECT_THAT(Chosen(policy, weights, 16, 6, 1)[0], ElementsAre(0, 3, 9, 13, 14, 15));
}

TEST(Eviction, WhatIsNoNumberIsNoAttention) {
  Random random(6);
  for (const EvictionMethod method : kMethods) {
    EvictionPolicy policy;
    policy.method = method;
    policy.window = 8;
    Weights weights(2, 200, 0, random);
    Weights zeros = weights;
    for (size_t i = 0; i < weights.sum.size(); i += 3) {
      weights.sum[i] = weights.max[i] = std::numeric_limits<float>::quiet_NaN();
      zeros.sum[i] = zeros.max[i] = 0.0f;
      weights.norms[i / 2] = std::numeric_limits<float>::quiet_NaN();
      zeros.norms[i / 2] = 0.0f;
    }
    EXPECT_EQ(Chosen(policy, weights, 192, 50, 16), Chosen(policy, zeros, 192, 50, 16));
  }
}

}  // namespace
}  // namespace headway::kv
