#include "kernels/cost.h"

#include <gtest/gtest.h>

#include <array>
#include <cstddef>

namespace headway {
namespace {

constexpr PageFormat kFormat = {DType::kBF16, 64, 32};
constexpr SummaryFormat kSummary = {.kind = SummaryKind::kMoments, .block_slots = 16};
constexpr int kGroup = 4;

// 100 blocks of two KV heads, of which 30 are listed: 10 far ones among 80.
SelectItem Choice(int64_t rows) {
  SelectItem item;
  item.rows = rows;
  item.keys.heads = 2;
  item.keys.blocks = 100;
  item.budget = {.far_begin = 10, .far_end = 90, .far_blocks = 10};
  return item;
}

TEST(Cost, AChoiceReadsSummariesOnceAndScoresThemForEachQuery) {
  const SelectItem item = Choice(1);
  const WorkCost cost = SelectCost(kFormat, kSummary, kGroup, {&item, 1}, 2);
  // Queries, lists, and two rows of codes with their scales.
  EXPECT_EQ(cost.bytes, 2 * 4 * 32 * 2 + 2 * 30 * 4 + 2 * 100 * (2 * 32 + 8));
  EXPECT_EQ(cost.flops, 2 * 100 * kGroup * (4 * 32 + 40));
}

TEST(Cost, APromptScoresPooledQueriesAndWritesAListForEachBlockOfRows) {
  // Two blocks of rows have 8 pooled queries each, the third has 3 of its 20 rows.
  const SelectItem item = Choice(148);
  const WorkCost cost = SelectCost(kFormat, kSummary, kGroup, {&item, 1}, 2);
  EXPECT_EQ(cost.bytes, 148 * 2 * 4 * 32 * 2 + 3 * 2 * 30 * 4 + 2 * 100 * (2 * 32 + 8));
  EXPECT_EQ(cost.flops, (8 + 8 + 3) * 2 * 100 * kGroup * (4 * 32 + 40));
}

// The lists of further blocks of rows have 4 and 8 near blocks less.
TEST(Cost, ListsOfAPromptAreAsLongAsTheirRowsHaveThem) {
  SelectItem item = Choice(148);
  const WorkCost alike = SelectCost(kFormat, kSummary, kGroup, {&item, 1}, 2);
  item.budget.far_step = 4;
  EXPECT_EQ(item.ListedBy(item.budget), 30 + 26 + 22);
  const WorkCost cost = SelectCost(kFormat, kSummary, kGroup, {&item, 1}, 2);
  EXPECT_EQ(alike.bytes - cost.bytes, 2 * (4 + 8) * 4);
  EXPECT_EQ(alike.flops, cost.flops);
}

// Each block of rows searches with one query of each head, and scores its candidates with the
// pools.
TEST(Cost, APromptInTwoLooksScoresFewBlocksWithAllPools) {
  SelectItem item = Choice(148);
  const WorkCost one = SelectCost(kFormat, kSummary, kGroup, {&item, 1}, 2);
  item.budget.candidates = 20;
  const WorkCost two = SelectCost(kFormat, kSummary, kGroup, {&item, 1}, 2);
  EXPECT_EQ(two.bytes, one.bytes);
  EXPECT_EQ(two.flops, (3 * 100 + (8 + 8 + 3) * (20 + 20)) * 2 * kGroup * (4 * 32 + 40));
  item.budget.candidates = 41;  // of 80 far blocks
  EXPECT_EQ(SelectCost(kFormat, kSummary, kGroup, {&item, 1}, 2).flops, one.flops);
}

TEST(Cost, ASecondLookReadsSummariesAndSketchesOfItsCandidates) {
  SummaryFormat sketched = kSummary;
  sketched.sketch = SketchKind::kTwoBits;
  SelectItem item = Choice(1);
  const WorkCost one = SelectCost(kFormat, sketched, kGroup, {&item, 1}, 2);
  item.budget.candidates = 40;
  const WorkCost two = SelectCost(kFormat, sketched, kGroup, {&item, 1}, 2);
  // 40 far blocks and the 20 that are always listed, with 2 bits of 16 keys' channels.
  const int64_t candidates = 2 * 60;
  EXPECT_EQ(two.bytes - one.bytes, candidates * (2 * 32 + 8 + 16 * 32 / 4));
  EXPECT_EQ(two.flops - one.flops, candidates * kGroup * 17 * 2 * 32);
}

TEST(Cost, EveryRowAttendsToTheListOfItsBlock) {
  std::array<AttendBlocksItem, 2> items;
  items[0].rows = 148;
  items[1].rows = 64;
  for (AttendBlocksItem& item : items) {
    item.keys.heads = 2;
    item.keys.blocks = 100;
  }
  // Four blocks of rows list 30 blocks of each head.
  const int64_t listed = 4 * 2 * 30;
  const WorkCost cost = AttendBlocksCost(kFormat, kSummary, kGroup, items, listed, 2);
  const int64_t pairs = (148 + 64) * 2 * 30 * 16 * kGroup;
  EXPECT_EQ(cost.flops, 4 * pairs * 32);
  // Queries and states of 212 rows; keys and values of all listed blocks that can be different.
  EXPECT_EQ(cost.bytes, 2 * kGroup * 212 * (32 * 2 + 33 * 4) + listed * 16 * 2 * 32 * 2);
  EXPECT_EQ(AttendBlocksCost(kFormat, kSummary, kGroup, {}, 0, 2).flops, 0);
}

TEST(Cost, TheRestOfADecodeReadsOpenPagesAndWritesActivations) {
  AttendBlocksItem item;
  item.keys.heads = 2;
  item.keys.blocks = 100;
  item.parts = 3;
  const WorkCost without = AttendBlocksCost(kFormat, kSummary, kGroup, {&item, 1}, 60, 2);
  std::byte result{};
  item.rest = {.result = &result, .count = 20};
  const WorkCost with = AttendBlocksCost(kFormat, kSummary, kGroup, {&item, 1}, 60, 2);
  EXPECT_EQ(with.bytes - without.bytes, 2 * 20 * 2 * 32 * 2 + 2 * kGroup * 32 * 2);
  EXPECT_EQ(with.flops - without.flops, 4 * 2 * 20 * kGroup * 32);
}

TEST(Cost, TurnedKeysAreReadAndWritten) {
  TurnKeysItem item;
  item.from.count = 100;
  item.heads = 3;
  item.table.rotary_dim = 16;
  const WorkCost cost = TurnKeysCost(kFormat, item);
  EXPECT_EQ(cost.bytes, 300 * 2 * 32 * 2);
  EXPECT_EQ(cost.flops, 300 * 3 * 16);
}

TEST(Cost, EvictionReadsKeysOnceAndWhatIsKeptTwice) {
  KeyLogitsItem logits;
  logits.rows = 3;
  logits.keys.pages.count = 100;
  WorkCost cost = KeyLogitsCost(kFormat, kGroup, {&logits, 1}, 2);
  EXPECT_EQ(cost.bytes, 100 * 32 * 2 + 12 * 32 * 2 + 12 * 100 * 4);
  EXPECT_EQ(cost.flops, 2 * 12 * 100 * 32);
  KeyWeightsItem weights = {.rows = 12, .columns = 100};
  EXPECT_EQ(KeyWeightsCost({&weights, 1}).bytes, (24 + 1) * 100 * 4);
  float max = 0.0f;
  weights.max = &max;
  EXPECT_EQ(KeyWeightsCost({&weights, 1}).bytes, (24 + 2) * 100 * 4);
  GatherSlotsItem gather;
  gather.count = 10;
  EXPECT_EQ(GatherSlotsCost(kFormat, {&gather, 1}).bytes, 10 * (2 * 32 * 2 + 4));  // keys alone
  std::byte place{};
  gather.to.v = &place;
  EXPECT_EQ(GatherSlotsCost(kFormat, {&gather, 1}).bytes, 10 * (2 * 2 * 32 * 2 + 4));
  gather.from.params = &place;
  PageFormat codes = kFormat;
  codes.encoding = Encoding::kInt8;
  EXPECT_EQ(GatherSlotsCost(codes, {&gather, 1}).bytes,
            10 * (2 * 32 + 2 * 32 * 2 + 4) + 10 * ParamBytes(codes) / codes.page_slots);
  const QueryMomentsItem moments = {.rows = 7};
  cost = QueryMomentsCost(kFormat, 3, {&moments, 1}, 2);
  EXPECT_EQ(cost.bytes, 7 * 96 * 2 + 2 * 96 * 33 * 4);
  EXPECT_EQ(cost.flops, 2 * 7 * 96 * 32);
  ExpectedLogitsItem expected;
  expected.keys.pages.count = 100;
  cost = ExpectedLogitsCost(kFormat, kGroup, {&expected, 1});
  EXPECT_EQ(cost.bytes, 100 * 32 * 2 + kGroup * (32 * 33 + 100) * 4);
  EXPECT_EQ(cost.flops, 2 * kGroup * 100 * 32 * 33);
  ValueNormsItem norms;
  norms.values.count = 100;
  cost = ValueNormsCost(kFormat, {&norms, 1});
  EXPECT_EQ(cost.bytes, 100 * (32 * 2 + 4));
  EXPECT_EQ(cost.flops, 2 * 100 * 32);
  ProjectedNormsItem projected;
  projected.values.count = 100;
  projected.weight.out = 64;
  cost = ProjectedNormsCost(kFormat, kGroup, {&projected, 1});
  EXPECT_EQ(cost.bytes, 100 * (32 * 2 + 4) + 64 * kGroup * 32 * 2);
  EXPECT_EQ(cost.flops, 2 * 100 * 64 * kGroup * 32);
}

}  // namespace
}  // namespace headway
