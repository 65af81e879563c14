// Blocks that are scored by their keys: the arithmetic, and examples worked by hand.
#include "kernels/selection_key_math.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "base/random.h"
#include "kernels/ref/ref_selection.h"

namespace headway {
namespace {

using testing::ElementsAre;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TEST(SelectionKeyMathTest, LogarithmsOfSumsAreNear) {
  Random random(1);
  for (int i = 0; i < 20000; ++i) {
    const int bits = static_cast<int>(random.Below(17));
    const uint64_t sum =
        (uint64_t{1} << 31 << bits) + (random.Next() & ((uint64_t{1} << 31 << bits) - 1));
    const double expected = std::log(std::ldexp(static_cast<double>(sum), -31));
    ASSERT_NEAR(selection::LogOfShares(sum), expected, 3e-7 * (1 + expected)) << sum;
  }
  EXPECT_EQ(selection::LogOfShares(uint64_t{1} << 31), 0.0f);
}

TEST(SelectionKeyMathTest, LanesAreAddedByHalves) {
  float lanes[selection::kDotLanes];
  for (int i = 0; i < selection::kDotLanes; ++i) lanes[i] = static_cast<float>(1 << i);
  EXPECT_EQ(selection::SumOfLanes(lanes), 65535.0f);
  // 2^24 + 1 is no float: what is added to it first counts.
  const float ends[selection::kDotLanes] = {0x1p24f, 1, 0, 0, 0, 0, 0, 0, -0x1p24f};
  EXPECT_EQ(selection::SumOfLanes(ends), 1.0f);
}

TEST(SelectionKeyMathTest, AnglesAreRightAtAnyPosition) {
  Random random(2);
  for (int i = 0; i < 20000; ++i) {
    const int64_t position = random.Below(int64_t{1} << (1 + random.Below(23)));
    const auto frequency = static_cast<float>(std::pow(5e5, -1e-3 * random.Below(1000)));
    const double angle = static_cast<double>(position) * static_cast<double>(frequency);
    const selection::Pair found = selection::AngleAt(position, frequency);
    ASSERT_NEAR(found.x, std::cos(angle), 3e-7) << position << " " << frequency;
    ASSERT_NEAR(found.y, std::sin(angle), 3e-7) << position << " " << frequency;
  }
  EXPECT_EQ(selection::AngleAt(0, 1.0f).x, 1.0f);
  EXPECT_EQ(selection::AngleAt(0, 1.0f).y, 0.0f);
}

TEST(SelectionKeyMathTest, WhatIsNoNumberHasNoLogitToSpeakOf) {
  EXPECT_EQ(selection::LogitOf(3.0f, 0.5f), 1.5f);
  for (const float dot : {kNan, kInfinity, -kInfinity, 0x1p101f}) {
    EXPECT_EQ(selection::LogitOf(dot, 1.0f), selection::kLeastLogit);
  }
}

TEST(SelectionKeyMathTest, OrderGrowsWithScores) {
  const std::vector<float> scores = {
      selection::kLeastLogit, -2.0f, -1.0f, -0x1p-149f, 0.0f, 0x1p-149f, 1.0f, 2.0f, 0x1p99f};
  for (size_t i = 1; i < scores.size(); ++i) {
    EXPECT_LT(selection::OrderOf(scores[i - 1]), selection::OrderOf(scores[i]));
  }
  EXPECT_EQ(selection::OrderOf(-0.0f), selection::OrderOf(0.0f));
  EXPECT_GT(selection::OrderOf(selection::kLeastLogit), 0u);
}

// Of the one head, the first block of each chunk that survives a stage.
struct StageList {
  std::array<int32_t, 8> blocks = {};
  int32_t count = 0;
};
using StageLists = std::array<StageList, kChunkStages>;

// One head of one channel: blocks of two slots in pages of four.
std::vector<int32_t> List(SummaryKind kind, const std::vector<float>& keys,
                          const SelectionBudget& budget, std::vector<float> q = {1.0f},
                          StageLists* survivors = nullptr, int first_stage = 0) {
  StageLists own;
  const int group = static_cast<int>(q.size());
  const int64_t blocks = std::ssize(keys) / 2;
  const SegmentPlace place = {.slab = reinterpret_cast<const std::byte*>(keys.data())};
  std::vector<int32_t> list(static_cast<size_t>(blocks), -1);
  int32_t count = -1;
  SelectItem item = {.q = q.data(),
                     .keys = {.segments = {&place, 1},
                              .heads = 1,
                              .blocks = blocks,
                              .segment_blocks = blocks,
                              .page_stride = 4 * sizeof(float)},
                     .budget = budget,
                     .blocks = list.data(),
                     .capacity = blocks,
                     .counts = &count,
                     .first_stage = first_stage};
  for (size_t i = 0; i < own.size(); ++i) {
    StageList& of = survivors == nullptr ? own[i] : (*survivors)[i];
    item.survivors[i] = {of.blocks.data(), std::ssize(of.blocks), &of.count};
  }
  ref::SelectBlocks({.dtype = DType::kF32, .page_slots = 4, .head_dim = 1},
                    {.kind = kind, .block_slots = 2}, group, 1.0f, {&item, 1});
  list.resize(static_cast<size_t>(count));
  return list;
}

TEST(SelectionKeysTest, MassesAreThoseOfAllKeys) {
  const std::vector<float> keys = {1, 1, 3, 3, 3.5f, -9, 3.6f, kNan};
  const auto list = [&](int64_t count) {
    return List(SummaryKind::kMasses, keys, {.far_begin = 0, .far_end = 4, .far_blocks = count});
  };
  EXPECT_THAT(list(1), ElementsAre(1));  // 2 e^3 > e^3.6 > e^3.5
  EXPECT_THAT(list(2), ElementsAre(1, 3));
  EXPECT_THAT(list(3), ElementsAre(1, 2, 3));
  EXPECT_THAT(List(SummaryKind::kMasses, keys, {.far_begin = 1, .far_end = 3, .far_blocks = 1}),
              ElementsAre(0, 1, 3));
}

TEST(SelectionKeysTest, APairAreTheKeysAlongTheMean) {
  // The mean is (2, 0): along it are the third key and the second one, 3 and 4.
  const std::vector<float> keys = {-1, 0, 3, 1, 4, -1, 2, 0};
  std::vector<std::byte> codes(4);
  float scales[2] = {};
  SummarizeItem item;
  item.keys.k = reinterpret_cast<std::byte*>(const_cast<float*>(keys.data()));
  item.keys.count = 4;
  item.codes = codes.data();
  item.scales = scales;
  ref::Summarize({.dtype = DType::kF32, .page_slots = 4, .head_dim = 2},
                 {.kind = SummaryKind::kPairs, .block_slots = 4}, {&item, 1});
  std::vector<int> numbers;
  for (const std::byte code : codes) numbers.push_back(static_cast<int8_t>(code));
  EXPECT_THAT(numbers, ElementsAre(127, -32, 95, 32));
  EXPECT_EQ(scales[0], 4.0f / 127.0f);
  EXPECT_EQ(scales[1], 4.0f / 127.0f);
}

SelectionBudget Staged(int64_t blocks, int64_t kept, int64_t count) {
  return {.far_begin = 0,
          .far_end = 8,
          .far_blocks = count,
          .share = BudgetShare::kHead,
          .stages = {{{blocks, kept}}}};
}

TEST(SelectionKeysTest, AChunkIsDescendedByTheMiddlesOfItsHalves) {
  // The first of two chunks of eight keys compares keys 2 and 6, then 1 and 3, then 2 and 3.
  std::vector<float> keys = {0, 0, 1, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9};
  const auto list = [&](int64_t blocks, int64_t kept, int64_t count) {
    return List(SummaryKind::kStages, keys, Staged(blocks, kept, count));
  };
  // The second one finds equals up to its first key, and never sees the last.
  EXPECT_THAT(list(4, 1, 1), ElementsAre(1));
  EXPECT_THAT(list(4, 2, 1), ElementsAre(7));  // both survive
  EXPECT_THAT(list(0, 0, 1), ElementsAre(7));
  keys[14] = 2;
  EXPECT_THAT(list(4, 1, 1), ElementsAre(7));
  // A chunk that is shorter than others: blocks 6 and 7.
  EXPECT_THAT(list(3, 1, 2), ElementsAre(6, 7));
  EXPECT_THAT(list(3, 1, 3), ElementsAre(0, 6, 7));  // fewer survive: the first other one
}

// Stages of chunks of four and of two blocks, of which one each survives.
TEST(SelectionKeysTest, AStageMayChooseAmongWhatSurvivedForAnotherQuery) {
  const std::vector<float> keys = {1, 1, 2, 2, 5, 5, 3, 3, -5, -5, -9, -9, -2, -2, -3, -3};
  const SelectionBudget budget = {.far_begin = 0,
                                  .far_end = 8,
                                  .far_blocks = 1,
                                  .share = BudgetShare::kHead,
                                  .stages = {{{4, 1}, {2, 1}}}};
  StageLists survivors;
  const auto list = [&](float q, int first_stage) {
    return List(SummaryKind::kStages, keys, budget, {q}, &survivors, first_stage);
  };
  const auto survives = [&] {
    std::vector<int32_t> blocks;
    for (const StageList& each : survivors) {
      EXPECT_EQ(each.count, 1);
      blocks.push_back(each.blocks[0]);
    }
    return blocks;
  };
  EXPECT_THAT(list(1, 0), ElementsAre(2));
  EXPECT_THAT(survives(), ElementsAre(0, 2));
  // The other query wants block 5; of what is kept it takes the least.
  EXPECT_THAT(list(-1, 2), ElementsAre(3));
  EXPECT_THAT(list(-1, 1), ElementsAre(0));
  EXPECT_THAT(survives(), ElementsAre(0, 0));
  EXPECT_THAT(list(-1, 0), ElementsAre(5));
  EXPECT_THAT(survives(), ElementsAre(4, 4));
}

TEST(SelectionKeysTest, AnyQueryOfTheGroupMayWantAChunk) {
  const std::vector<float> keys = {0, 0, 1, 1, 0, 0, -3, -3, 0, 0, 0, 0, 0, 0, 2, 2};
  EXPECT_THAT(List(SummaryKind::kStages, keys, Staged(0, 0, 2), {1, -1}), ElementsAre(3, 7));
}

// One head of two channels that rotate by a radian a position: blocks of two slots, one page.
TEST(SelectionKeysTest, RowsChooseByKeysWithoutTheirRotation) {
  constexpr int64_t kFirst = 1000, kKeys = 16;
  std::vector<float> keys, q;
  const auto add = [](std::vector<float>& to, float size, double angle) {
    to.push_back(size * static_cast<float>(std::cos(angle)));
    to.push_back(size * static_cast<float>(std::sin(angle)));
  };
  // All are at no angle but the sixth block's, which are at a radian.
  for (int64_t i = 0; i < kKeys; ++i) {
    add(keys, 1.0f, static_cast<double>(kFirst + i) + (i / 2 == 5 ? 1.0 : 0.0));
  }
  // Of 70 rows each fourth one of a block of 64 is a query: in the first block one of them, in the
  // second one its first row. Their angles are what their tables leave of a radian.
  std::vector<float> cos, sin;
  for (int row = 0; row < 70; ++row) {
    const bool wants = row == 8 || row == 64;
    add(q, wants ? 2.0f : row % 4 == 0 ? 0.0f : 9.0f, wants ? 0.25 : -0.75);
    cos.push_back(static_cast<float>(std::cos(0.75)));
    sin.push_back(static_cast<float>(std::sin(0.75)));
  }
  const float inv_freq = 1.0f;
  const SegmentPlace place = {.slab = reinterpret_cast<const std::byte*>(keys.data()),
                              .position = kFirst};
  constexpr int64_t kBlocks = kKeys / 2;
  std::array<int32_t, 2 * kBlocks> lists = {};
  std::array<int32_t, 2> counts = {};
  const SelectItem item = {
      .q = q.data(),
      .q_stride = 2,
      .rows = 70,
      .turn = {cos.data(), sin.data(), 2},
      .rotated = {&inv_freq, 2},
      .keys = {.segments = {&place, 1}, .heads = 1, .blocks = kBlocks, .segment_blocks = kBlocks},
      .budget = Staged(4, 1, 1),
      .blocks = lists.data(),
      .capacity = kBlocks,
      .counts = counts.data()};
  ref::SelectBlocks({.dtype = DType::kF32, .page_slots = kKeys, .head_dim = 2},
                    {.kind = SummaryKind::kStages, .block_slots = 2}, 1, 1.0f, {&item, 1});
  EXPECT_THAT(counts, ElementsAre(1, 1));
  EXPECT_EQ(lists[0], 5);
  EXPECT_EQ(lists[kBlocks], 5);
}

// Of one head of two channels that rotate by a radian a position, blocks of two slots: keys of
// these sizes, each a little smaller than it is, at no angle but their rotation's, and a query at
// `angle`.
std::vector<int32_t> ListTurned(const std::vector<float>& sizes, double angle,
                                const SelectionBudget& budget, KeyPositions positions) {
  constexpr int64_t kFirst = 1000;
  std::vector<float> keys;
  for (size_t i = 0; i < sizes.size(); ++i) {
    const double at = static_cast<double>(kFirst) + static_cast<double>(i);
    const float size = sizes[i] - 0.001f * static_cast<float>(i);
    keys.push_back(size * static_cast<float>(std::cos(at)));
    keys.push_back(size * static_cast<float>(std::sin(at)));
  }
  const std::array<float, 2> q = {static_cast<float>(std::cos(angle)),
                                  static_cast<float>(std::sin(angle))};
  const float inv_freq = 1.0f;
  const int64_t blocks = std::ssize(sizes) / 2;
  const SegmentPlace place = {.slab = reinterpret_cast<const std::byte*>(keys.data()),
                              .position = kFirst};
  std::vector<int32_t> list(static_cast<size_t>(blocks), -1);
  int32_t count = -1;
  StageLists survivors;
  SelectItem item = {
      .q = q.data(),
      .rotated = {&inv_freq, 2, positions},
      .keys = {.segments = {&place, 1}, .heads = 1, .blocks = blocks, .segment_blocks = blocks},
      .budget = budget,
      .blocks = list.data(),
      .capacity = blocks,
      .counts = &count};
  for (size_t i = 0; i < survivors.size(); ++i) {
    StageList& of = survivors[i];
    item.survivors[i] = {of.blocks.data(), std::ssize(of.blocks), &of.count};
  }
  ref::SelectBlocks(
      {.dtype = DType::kF32, .page_slots = static_cast<int>(sizes.size()), .head_dim = 2},
      {.kind = SummaryKind::kStages, .block_slots = 2}, 1, 1.0f, {&item, 1});
  list.resize(static_cast<size_t>(count));
  return list;
}

// Turned back by one, two, ... radians, the last chunk by one.
TEST(SelectionKeysTest, KeysMayCountByTheNumberOfTheirChunk) {
  const std::vector<float> sizes(16, 1.0f);
  const auto list = [&](double angle, int64_t blocks, KeyPositions positions) {
    return ListTurned(sizes, angle, Staged(blocks, 1, 1), positions);
  };
  // In the last one of two chunks of four blocks, the last; in the first one the last but one.
  EXPECT_THAT(list(-1.0, 4, KeyPositions::kChunks), ElementsAre(7));
  EXPECT_THAT(list(-2.0, 4, KeyPositions::kChunks), ElementsAre(2));
  // Of three chunks the last has two blocks: one is the last of it, and two the middle chunk, whose
  // last but one of three is meant.
  EXPECT_THAT(list(-1.0, 3, KeyPositions::kChunks), ElementsAre(7));
  EXPECT_THAT(list(-2.0, 3, KeyPositions::kChunks), ElementsAre(4));
  EXPECT_THAT(list(-2.0, 0, KeyPositions::kChunks), ElementsAre(6));
  // Else the first one, which is the largest, is taken.
  EXPECT_THAT(list(-1.0, 4, KeyPositions::kOne), ElementsAre(0));
}

TEST(SelectionKeysTest, TheTwoKeysOfAComparisonMayCountOneBehindTheOther) {
  // Of keys of a size the second one is nearer to the query, and so the last key of the first chunk
  // is seen. Else the first half is descended.
  std::vector<float> sizes(16, 1.0f);
  std::fill(sizes.begin() + 8, sizes.end(), 1.5f);
  sizes[7] = 2.0f;
  const auto list = [&](double angle, KeyPositions positions) {
    return ListTurned(sizes, angle, Staged(4, 1, 1), positions);
  };
  EXPECT_THAT(list(0.0, KeyPositions::kOne), ElementsAre(4));
  EXPECT_THAT(list(0.0, KeyPositions::kBranches), ElementsAre(3));
  // A query of the angle of the first one takes that, which is as large in the second chunk.
  EXPECT_THAT(list(-1.0, KeyPositions::kBranches), ElementsAre(4));
}

}  // namespace
}  // namespace headway
