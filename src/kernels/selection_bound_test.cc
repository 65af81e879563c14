// Bounds of what lists leave out, by the definition: samples, and lists of random problems whose
// error is computed from all keys.
#include "kernels/selection_bound.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include "base/random.h"
#include "kernels/ref/ref_selection.h"

namespace headway {
namespace {

constexpr int kDim = 16;
constexpr int kSlots = 4;  // of a block, and of a page
constexpr int kGroup = 2;
constexpr double kTwentieth = 1.6448536269514722;  // standard deviations

// One KV head, all of whose blocks but the first and the last are far.
struct Head {
  explicit Head(int64_t count) : blocks(count) {
    keys.assign(static_cast<size_t>(blocks * kSlots * kDim), 0.0f);
    q.assign(size_t{kGroup * kDim}, 0.0f);
  }
  float* Key(int64_t key) { return keys.data() + key * kDim; }

  std::vector<int32_t> List(int64_t far_blocks, const MassBound& bound) {
    const PageFormat format = {.dtype = DType::kF32, .page_slots = kSlots, .head_dim = kDim};
    const SummaryFormat summary = {.block_slots = kSlots};
    std::vector<std::byte> memory(static_cast<size_t>(blocks * summary.bytes(kDim)));
    const int64_t scales = blocks * summary.code_bytes(kDim);
    SummarizeItem item;
    item.keys.k = reinterpret_cast<std::byte*>(keys.data());
    item.keys.page_stride = kSlots * kDim * int64_t{sizeof(float)};
    item.keys.count = blocks * kSlots;
    item.codes = memory.data();
    item.scales = reinterpret_cast<float*>(memory.data() + scales);
    ref::Summarize(format, summary, {&item, 1});
    const SegmentPlace place = {item.keys.k, memory.data()};
    std::vector<int32_t> list(static_cast<size_t>(blocks));
    int32_t count = 0;
    const SelectItem choice = {.q = q.data(),
                               .q_stride = kGroup * kDim,
                               .keys = {.segments = {&place, 1},
                                        .heads = 1,
                                        .blocks = blocks,
                                        .segment_blocks = blocks,
                                        .page_stride = item.keys.page_stride,
                                        .scales_offset = scales},
                               .budget = {.far_begin = 1,
                                          .far_end = blocks - 1,
                                          .far_blocks = far_blocks,
                                          .share = BudgetShare::kHead,
                                          .bound = bound},
                               .blocks = list.data(),
                               .capacity = blocks,
                               .counts = &count};
    ref::SelectBlocks(format, summary, kGroup, 1.0f, {&choice, 1});
    list.resize(static_cast<size_t>(count));
    return list;
  }

  // The share of a query head's attention to keys that are not in the list.
  double LeftOut(int member, const std::vector<int32_t>& list) {
    double listed = 0.0, all = 0.0;
    for (int64_t key = 0; key < blocks * kSlots; ++key) {
      double logit = 0.0;
      for (int i = 0; i < kDim; ++i) {
        logit += double{q[static_cast<size_t>(member * kDim + i)]} * double{Key(key)[i]};
      }
      const auto block = static_cast<int32_t>(key / kSlots);
      const double mass = std::exp(logit);
      all += mass;
      if (std::binary_search(list.begin(), list.end(), block)) listed += mass;
    }
    return 1.0 - listed / all;
  }

  int64_t blocks;
  std::vector<float> keys;  // [blocks, slots, dim]
  std::vector<float> q;     // [group, dim]
};

// Neighbouring keys are alike, and some are far from their neighbours, which no summary shows well.
Head RandomHead(Random& random, int64_t blocks, float size) {
  Head head(blocks);
  std::vector<float> center(kDim);
  for (int64_t key = 0; key < blocks * kSlots; ++key) {
    if (key % (8 * kSlots) == 0) {
      for (float& x : center) x = random.Normal();
    }
    const float apart = random.Below(8) == 0 ? 2.0f : 0.6f;
    for (int i = 0; i < kDim; ++i) {
      head.Key(key)[i] = center[static_cast<size_t>(i)] + apart * random.Normal();
    }
  }
  for (float& x : head.q) x = size * random.Normal();
  return head;
}

TEST(SelectionBoundTest, ASampleHasABlockOfEachStratum) {
  for (const int64_t far : {1, 5, 63, 64, 65, 100, 1000, 65536}) {
    const int samples = selection::SamplesOf(far);
    int64_t covered = 0;
    for (int i = 0; i < samples; ++i) {
      const selection::SampledBlock sample = selection::SampleOf(17, 3, i, far);
      EXPECT_GE(sample.block, covered);
      covered += sample.stratum;
      EXPECT_LT(sample.block, covered);
      EXPECT_TRUE(far > samples || sample.block == i);
    }
    EXPECT_EQ(covered, far);
  }
}

// Over seeds and heads each block of a stratum is drawn as often: within four standard deviations.
TEST(SelectionBoundTest, EachBlockOfAStratumIsAsLikely) {
  constexpr int64_t kFar = 10 * selection::kBoundSamples;
  constexpr int kSeeds = 4000;
  std::vector<int> drawn(size_t{kFar}, 0);
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    for (int i = 0; i < selection::kBoundSamples; ++i) {
      ++drawn[static_cast<size_t>(
          selection::SampleOf(seed / 4, static_cast<int>(seed % 4), i, kFar).block)];
    }
  }
  double squares = 0.0;
  for (const int count : drawn) squares += (count - 400.0) * (count - 400.0) / 400.0;
  // Chi-squared of 9 degrees of freedom a stratum.
  const double freedom = 9.0 * selection::kBoundSamples;
  EXPECT_NEAR(squares, freedom, 4.0 * std::sqrt(2.0 * freedom));
}

// The mass of a block that is sampled is never 0, whatever a weight rounds down to.
TEST(SelectionBoundTest, ASampledBlockStandsForItsStratum) {
  EXPECT_EQ(selection::SampledMass(0, 7), 7u);
  EXPECT_EQ(selection::SampledMass(99, 7), 700u);
}

// Of a sum over strata the variance is that of so many independent terms, as the sample has it:
// n / (n - 1) times the sum of the squares of what is off their mean.
TEST(SelectionBoundTest, TheRoomIsSoManyStandardDeviations) {
  constexpr int kSamples = selection::kBoundSamples;
  constexpr double kEpsilon = 0.2, kDeviations = 2.0;
  Random random(4);
  selection::SampledSum tail, unread;
  std::vector<double> terms;
  for (int i = 0; i < kSamples; ++i) {
    const auto mass = static_cast<uint64_t>(1'000'000 + random.Below(1'000'000));
    const bool is_read = random.Below(2) == 0;
    tail.Add(mass);
    if (!is_read) unread.Add(mass);
    terms.push_back(static_cast<double>(mass) * ((is_read ? 0.0 : 1.0) - kEpsilon));
  }
  const double sum = std::accumulate(terms.begin(), terms.end(), 0.0);
  double squares = 0.0;
  for (const double term : terms) squares += std::pow(term - sum / kSamples, 2);
  const double deviation = std::sqrt(squares * kSamples / (kSamples - 1));
  const double least_core = (sum + kDeviations * deviation) / kEpsilon;
  const MassBound bound = {.epsilon = kEpsilon, .deviations = kDeviations};
  // A deviation of n - 1 instead of n terms, or of n + 1, is 0.8 % off.
  const double off = 0.002 * kDeviations * deviation / kEpsilon;
  const auto holds = [&](double core) {
    return selection::BoundHolds(bound, 10 * kSamples, static_cast<uint64_t>(core), tail, unread);
  };
  EXPECT_TRUE(holds(least_core + off));
  EXPECT_FALSE(holds(least_core - off));
}

struct Wanted {
  double epsilon;
  double delta;
  double deviations;
};
class SelectionBoundHoldsTest : public testing::TestWithParam<Wanted> {};

// Of random heads, those that leave out more than they may are as few as the probability says,
// within three standard deviations of their number; and lists are not of everything.
TEST_P(SelectionBoundHoldsTest, ForTheShareOfHeadsThatIsAskedFor) {
  const auto& [epsilon, delta, deviations] = GetParam();
  constexpr int kHeads = 400;
  int wrong = 0, queries = 0;
  int64_t listed = 0, all = 0;
  for (uint64_t seed = 1; seed <= kHeads; ++seed) {
    Random random(seed);
    Head head = RandomHead(random, 300 + random.Below(300),
                           0.3f + 0.5f * static_cast<float>(random.Uniform()));
    const auto list =
        head.List(8, {.epsilon = epsilon, .deviations = deviations, .seed = random.Next()});
    listed += std::ssize(list);
    all += head.blocks;
    for (int member = 0; member < kGroup; ++member, ++queries) {
      if (head.LeftOut(member, list) > epsilon) ++wrong;
    }
  }
  RecordProperty("wrong", wrong);
  RecordProperty("listed", static_cast<int>(100 * listed / all));
  const double expected = delta * queries;
  EXPECT_LE(wrong, expected + 3.0 * std::sqrt(expected * (1.0 - delta)));
  EXPECT_LT(static_cast<double>(listed), 0.9 * static_cast<double>(all));
}

INSTANTIATE_TEST_SUITE_P(Bounds, SelectionBoundHoldsTest,
                         testing::Values(Wanted{0.05, 0.05, kTwentieth},
                                         Wanted{0.2, 0.05, kTwentieth},
                                         Wanted{0.2, 0.3, 0.5244005127080409},
                                         Wanted{0.5, 0.05, kTwentieth}));

// A head whose attention is spread over all keys reads nearly all of them; one that looks for a key
// stays with the first list.
TEST(SelectionBoundTest, EvenAttentionReadsMoreThanANeedle) {
  Random random(3);
  Head head = RandomHead(random, 400, 0.0f);
  const MassBound bound = {.epsilon = 0.1, .deviations = kTwentieth, .seed = 9};
  for (float& x : head.q) x = 1e-3f * random.Normal();
  EXPECT_GE(std::ssize(head.List(8, bound)), 360);
  for (int i = 0; i < kDim; ++i) head.Key(200 * kSlots)[i] = 5.0f;
  std::fill(head.q.begin(), head.q.end(), 0.5f);
  EXPECT_LE(std::ssize(head.List(8, bound)), 12);
}

// The smaller the share that may be left out, or the probability of more, the longer the list, up
// to all blocks; what a shorter list has, a longer one has, too.
TEST(SelectionBoundTest, StricterBoundsReadMoreUpToAll) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Random random(seed);
    Head head = RandomHead(random, 400, 0.4f);
    std::vector<int32_t> all(400);
    for (int32_t i = 0; i < 400; ++i) all[static_cast<size_t>(i)] = i;
    EXPECT_EQ(head.List(8, {.epsilon = 1e-12, .deviations = 0.0, .seed = seed}), all);
    std::vector<int32_t> before = all;
    for (const double deviations : {8.0, 3.0, 1.6, 0.8, 0.0}) {
      const auto list = head.List(8, {.epsilon = 0.3, .deviations = deviations, .seed = seed});
      EXPECT_TRUE(std::includes(before.begin(), before.end(), list.begin(), list.end()));
      before = list;
    }
    EXPECT_GE(std::ssize(before), 10);
  }
}

// A first list of more than half of the far blocks is one of all.
TEST(SelectionBoundTest, ListsOfMoreThanAHalfAreOfAll) {
  Random random(1);
  Head head = RandomHead(random, 102, 0.4f);
  const MassBound bound = {.epsilon = 0.9, .deviations = 0.0, .seed = 1};
  EXPECT_EQ(std::ssize(head.List(51, bound)), 102);
  EXPECT_LE(std::ssize(head.List(45, bound)), 52);
}

}  // namespace
}  // namespace headway
