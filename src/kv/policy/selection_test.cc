#include "kv/policy/selection.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "base/bytes.h"

namespace headway::kv {
namespace {

using testing::ElementsAre;

SelectionPolicy PolicyOf(int64_t keys, int64_t sink, int64_t recent) {
  return {{SummaryKind::kMoments, 16}, keys, sink, recent, BudgetShare::kHead};
}

TEST(SelectionPolicyTest, SinkAndRecentBlocksAreAlwaysRead) {
  const std::vector<BlockSpan> all = {{0, 64}};  // 1024 keys
  const SelectionBudget budget = BudgetOf(PolicyOf(128, 33, 100), all, 1030);
  EXPECT_EQ(budget.far_begin, 3);  // 33 keys begin three blocks
  // Positions from 931 on are recent; block 58 is [928, 944).
  EXPECT_EQ(budget.far_end, 58);
  EXPECT_EQ(budget.far_blocks, 8);
  EXPECT_EQ(budget.Capacity(64, 4), 64 - 55 + 8);
}

TEST(SelectionPolicyTest, AShortContextIsReadWhole) {
  const std::vector<BlockSpan> all = {{0, 16}};
  const SelectionBudget budget = BudgetOf(PolicyOf(128, 64, 128), all, 256);
  EXPECT_EQ(budget.far_blocks, budget.far_end - budget.far_begin);
  EXPECT_EQ(budget.Capacity(16, 4), 16);
  // The sink and the recent keys may overlap, and leave nothing between.
  const SelectionBudget none = BudgetOf(PolicyOf(128, 200, 200), all, 256);
  EXPECT_EQ(none.far_begin, none.far_end);
  EXPECT_EQ(none.far_blocks, 0);
}

TEST(SelectionPolicyTest, ASecondLookRanksTheCandidates) {
  const std::vector<BlockSpan> all = {{0, 64}};
  SelectionPolicy policy = PolicyOf(128, 32, 96);
  EXPECT_FALSE(BudgetOf(policy, all, 1023).looks_twice());
  policy.breadth = 4;
  const SelectionBudget budget = BudgetOf(policy, all, 1023);
  EXPECT_TRUE(budget.looks_twice());
  EXPECT_EQ(budget.OfCandidates().far_blocks, 32);
  EXPECT_EQ(budget.OfCandidates().far_begin, budget.far_begin);
  EXPECT_EQ(budget.OfCandidates().far_end, budget.far_end);
  EXPECT_FALSE(budget.OfCandidates().looks_twice());
  // Not more than there are.
  policy.breadth = 40;
  EXPECT_EQ(BudgetOf(policy, all, 1023).OfCandidates().far_blocks, 64 - 2 - 6);
  // Neither where all of them are chosen, nor where none is.
  policy.keys = 1000;
  EXPECT_FALSE(BudgetOf(policy, all, 1023).looks_twice());
}

// Pages that are far as a whole are chosen among; all others are candidates.
TEST(SelectionPolicyTest, ASearchOfPagesListsThoseOfTheCandidates) {
  const std::vector<BlockSpan> all = {{0, 64}};
  SelectionPolicy policy = PolicyOf(128, 40, 100);
  policy.breadth = 4;
  policy.search_slots = 64;
  const SelectionBudget budget = BudgetOf(policy, all, 1023);
  EXPECT_EQ(budget.far_begin, 3);
  EXPECT_EQ(budget.far_end, 57);
  const SelectionBudget pages = budget.OfCoarse(policy.search_run());
  EXPECT_EQ(pages.far_begin, 1);
  EXPECT_EQ(pages.far_end, 14);
  EXPECT_EQ(pages.far_blocks, 8);
  EXPECT_FALSE(pages.looks_twice());
  EXPECT_EQ(policy.ScoredBytes({.head_dim = 64}), (2 * 64 + 8) / 64.0);
  // Not more than there are, or none at all.
  policy.breadth = 40;
  EXPECT_EQ(BudgetOf(policy, all, 1023).OfCoarse(4).far_blocks, 13);
  const SelectionBudget narrow = {.far_begin = 5, .far_end = 7, .far_blocks = 1, .candidates = 2};
  EXPECT_EQ(narrow.OfCoarse(4).far_begin, narrow.OfCoarse(4).far_end);
  EXPECT_EQ(narrow.OfCoarse(4).far_blocks, 0);
}

TEST(SelectionPolicyTest, ABudgetMayGrowWithTheSequence) {
  SelectionPolicy policy = PolicyOf(128, 32, 96);
  policy.growth = 0.125;
  const std::vector<BlockSpan> all = {{0, 256}};
  EXPECT_EQ(BudgetOf(policy, all, 1022).far_blocks, 8);  // an eighth is less
  EXPECT_EQ(BudgetOf(policy, all, 2047).far_blocks, 16);
  EXPECT_EQ(BudgetOf(policy, all, 4095).far_blocks, 32);
  // The query's own key counts: with it there are eight for 257.
  EXPECT_EQ(BudgetOf(policy, all, 2054).far_blocks, 16);
  EXPECT_EQ(BudgetOf(policy, all, 2055).far_blocks, 17);
  EXPECT_FALSE(BudgetOf(policy, all, 4095).looks_twice());
  policy.breadth = 4;
  EXPECT_EQ(BudgetOf(policy, all, 4095).candidates, 4 * 32);
}

TEST(SelectionPolicyTest, ABudgetMayBeAShareOfTheAttention) {
  SelectionPolicy policy = PolicyOf(128, 32, 96);
  policy.least_keys = 40;
  const std::vector<BlockSpan> all = {{0, 64}};
  EXPECT_FALSE(BudgetOf(policy, all, 1023).takes_top_p());
  policy.top_p = 0.75;
  const SelectionBudget budget = BudgetOf(policy, all, 1023);
  EXPECT_TRUE(budget.takes_top_p());
  EXPECT_EQ(budget.top_p, 3u << (kTopPBits - 2));
  EXPECT_EQ(budget.least_blocks, 3);
  EXPECT_EQ(budget.far_blocks, 8);
  EXPECT_FALSE(budget.OfCandidates().takes_top_p());
  policy.top_p = 1e-9;
  EXPECT_EQ(BudgetOf(policy, all, 1023).top_p, 1u);
  policy.keys = 1024;  // all of them
  EXPECT_FALSE(BudgetOf(policy, all, 1023).takes_top_p());
}

TEST(SelectionPolicyTest, ABudgetMayHaveABound) {
  EXPECT_NEAR(DeviationsOf(0.05), 1.6448536269514722, 1e-12);
  EXPECT_NEAR(DeviationsOf(1e-6), 4.753424308822899, 1e-9);
  EXPECT_NEAR(DeviationsOf(0.5), 0.0, 1e-12);
  EXPECT_LT(DeviationsOf(5e-324), 40.0);
  EXPECT_NE(SampleSeed(7, 1), SampleSeed(8, 1));
  EXPECT_NE(SampleSeed(7, 1), SampleSeed(7, 2));
  SelectionPolicy policy = PolicyOf(128, 32, 96);
  const std::vector<BlockSpan> all = {{0, 64}};
  EXPECT_FALSE(BudgetOf(policy, all, 1023).is_bounded());
  policy.share = BudgetShare::kHead;
  policy.bound = {.epsilon = 0.1, .deviations = DeviationsOf(0.05)};
  const SelectionBudget budget = BudgetOf(policy, all, 1023);
  EXPECT_TRUE(budget.is_bounded());
  EXPECT_EQ(budget.far_blocks, 8);  // of the first list
  EXPECT_EQ(budget.Capacity(64, 4), 64);
  EXPECT_EQ(BoundsOf(policy, 1024, 4).capacity, 64);
  policy.keys = 1024;  // all of them
  EXPECT_FALSE(BudgetOf(policy, all, 1023).is_bounded());
}

TEST(SelectionPolicyTest, GapsKeepPositions) {
  // Keys [256, 512) are elsewhere.
  const std::vector<BlockSpan> spans = {{0, 16}, {512, 32}};
  const SelectionBudget budget = BudgetOf(PolicyOf(64, 32, 256), spans, 1030);
  EXPECT_EQ(budget.far_begin, 2);
  EXPECT_EQ(budget.far_end, 16 + (1031 - 256 - 512) / 16);
}

TEST(SelectionPolicyTest, OuterLayersAndStagesHaveTheirOwnKeys) {
  SelectionPolicy policy = PolicyOf(2048, 0, 1);
  EXPECT_EQ(policy.MeanKeys(6, 1 << 20), 2048.0);
  policy.summary = {SummaryKind::kStages, 8};
  policy.outer_keys = 4096;
  policy.stages = {{{256, 32768}, {32, 3000}}};
  for (const int layer : {0, 3, 5}) EXPECT_EQ(policy.InLayer(layer, 6).keys, 4096);
  EXPECT_EQ(policy.InLayer(4, 6).keys, 2048);
  EXPECT_EQ(policy.MeanKeys(6, 1 << 20), (5 * 4096 + 2048) / 6.0);
  const std::vector<BlockSpan> all = {{0, 100000}};
  const SelectionBudget inner = BudgetOf(policy.InLayer(4, 6), all, 800000);
  EXPECT_EQ(inner.far_blocks, 256);
  EXPECT_EQ(inner.stages[0].blocks, 32);
  EXPECT_EQ(inner.stages[0].kept, 128);
  EXPECT_EQ(inner.stages[1].blocks, 4);
  EXPECT_EQ(inner.stages[1].kept, 94);  // 3,000 keys and a part of a chunk
  // What survives holds what is chosen.
  const SelectionBudget outer = BudgetOf(policy.InLayer(0, 6), all, 800000);
  EXPECT_EQ(outer.far_blocks, 512);
  EXPECT_EQ(outer.stages[1].kept, 128);
  EXPECT_LE(outer.Capacity(100000, 4), BoundsOf(policy, 800001, 4).capacity);
  EXPECT_THAT(BoundsOf(policy, 800001, 4).survivors, ElementsAre(128, 128));
  EXPECT_THAT(BoundsOf(policy, 1000, 4).survivors, ElementsAre(4, 32));
  // Of 100,001 blocks 3,126 chunks; then 128 in eights; then 128 in fours.
  EXPECT_EQ(BoundsOf(policy, 800001, 4).stage_entries, 3126 + 2 * 128);
  EXPECT_EQ(BoundsOf(policy, 8000, 4).stage_entries, 4 * 128 + 32 + 128);
  EXPECT_EQ(BoundsOf(policy, 800001, 4).stage_chunks, 3126);
  EXPECT_EQ(BoundsOf(policy, 8000, 4).stage_chunks, 4 * 128);
  EXPECT_LE(outer.StageEntries(), BoundsOf(policy, 800001, 4).stage_entries);
  // A share of a long sequence, too.
  policy.growth = 0.25;
  EXPECT_EQ(BudgetOf(policy, all, 799999).stages[0].kept, CeilDiv(200000, 256));
  EXPECT_THAT(BoundsOf(policy, 800000, 4).survivors,
              ElementsAre(CeilDiv(200000, 256), CeilDiv(200000, 32)));
}

TEST(SelectionPolicyTest, TheFirstLayersHavePositionsOfTheirOwn) {
  SelectionPolicy policy = PolicyOf(2048, 0, 1);
  policy.first_positions = KeyPositions::kChunks;
  policy.positions = KeyPositions::kBranches;
  for (const int layer : {0, 2}) EXPECT_EQ(policy.PositionsIn(layer), KeyPositions::kChunks);
  for (const int layer : {3, 40}) EXPECT_EQ(policy.PositionsIn(layer), KeyPositions::kBranches);
}

// Chunks of 32 keys in those of 256 cost ten keys each, blocks of 8 in those of 32 six.
TEST(SelectionPolicyTest, StagesCostWhatTheyReadInTheirTime) {
  SelectionPolicy policy = PolicyOf(2048, 0, 1);
  policy.summary = {SummaryKind::kStages, 8};
  const PageFormat page = {DType::kBF16, 64, 128};
  const double key = 2.0 * 128;
  EXPECT_EQ(policy.SurvivorBytes(page, 1 << 20), 0.0);
  policy.stages = {{{256, 32768}, {32, 8192}}};
  EXPECT_EQ(policy.ScoredBytes(page), key * 16 / 256);
  EXPECT_EQ(policy.SurvivorBytes(page, 1 << 20), key * (10 * 32768 / 32 + 6 * 8192 / 8));
  EXPECT_EQ(policy.SurvivorBytes(page, 4096), key * (10 * 4096 / 32 + 6 * 4096 / 8));
  policy.refresh = 4;
  policy.stages[1].refresh = 8;
  EXPECT_EQ(policy.SurvivorBytes(page, 1 << 20), key * (10 * 32768 / 32 / 2 + 6 * 8192 / 8));
  EXPECT_EQ(policy.SurvivorBytesAnew(page, 1 << 20), key * (10 * 32768 / 32 + 6 * 8192 / 8));
  // A page that closes renews them all.
  policy.refresh = 96;
  policy.stages[1].refresh = 192;
  EXPECT_EQ(policy.ChoiceSteps(64), 64);
  EXPECT_EQ(policy.ChoiceSteps(128), 96);
  EXPECT_EQ(policy.SurvivorBytes(page, 1 << 20), key * (10 * 32768 / 32 + 6 * 8192 / 8));
}

// A block of rows of a prompt.
SelectItem RowsOf(const SelectionBudget& budget) {
  SelectItem item;
  item.rows = 64;
  item.budget = budget;
  return item;
}

// So many keys in front of a chunk are recent to all of its rows, and no block of theirs is far.
TEST(SelectionPolicyTest, RecentKeysOfPromptsLieBeforeTheChunk) {
  const std::vector<BlockSpan> all = {{0, 200}};
  for (int64_t position = 3000; position < 3032; ++position) {
    const SelectionBudget budget = PromptBudgetOf(PolicyOf(64, 32, 96), all, position);
    EXPECT_LE(budget.far_end * 16, position - 96);
    EXPECT_GT((budget.far_end + 1) * 16, position - 96);
  }
}

// Further rows have the chunk's before them: as many keys are recent to each.
TEST(SelectionPolicyTest, RecentKeysOfPromptsEndWithTheirRows) {
  const std::vector<BlockSpan> all = {{0, 100}, {1600, 87}};
  const int64_t position = 3000;
  const SelectionBudget budget = PromptBudgetOf(PolicyOf(64, 32, 500), all, position);
  for (int64_t row_block = 0; row_block < 16; ++row_block) {
    const int64_t recent = position + row_block * 64 - 500;
    const SelectionBudget own = budget.OfRows(row_block, 187);
    EXPECT_LE(own.far_end * 16, recent);
    EXPECT_TRUE((own.far_end + 1) * 16 > recent || own.far_end == 187);
    EXPECT_EQ(own.far_blocks, budget.far_blocks);
  }
  EXPECT_EQ(budget.OfRows(15, 187).far_end, 187);
}

// Blocks are counted through, so that behind a gap a block lies later than its number says.
TEST(SelectionPolicyTest, RecentKeysOfPromptsAreThoseOfTheFirstRowBesideAGapOrWhereBlocksMove) {
  const auto step = [](const SelectionPolicy& policy, int64_t gap_at) {
    const std::vector<BlockSpan> spans = {{0, gap_at / 16}, {gap_at + 64, 187 - gap_at / 16}};
    return PromptBudgetOf(policy, spans, 3064).far_step;
  };
  SelectionPolicy policy = PolicyOf(64, 32, 512);
  EXPECT_EQ(step(policy, 1600), 4);
  EXPECT_EQ(step(policy, 2480), 4);
  EXPECT_EQ(step(policy, 2496), 0);  // recent keys begin in the gap
  EXPECT_EQ(step(policy, 2544), 0);
  EXPECT_EQ(step(policy, 2560), 0);
  EXPECT_EQ(step(policy, 2800), 0);
  policy.distance = 1024;
  EXPECT_TRUE(policy.reaches());
  EXPECT_EQ(step(policy, 1600), 0);
}

TEST(SelectionPolicyTest, RowsOfPromptsLookTwiceWhereMostBlocksAreNoCandidates) {
  const SelectionPolicy policy = PolicyOf(64, 32, 96);  // 4 chosen blocks of 16
  const auto rows_behind = [&](int64_t blocks) {
    const std::vector<BlockSpan> all = {{0, blocks}};
    return RowsOf(PromptBudgetOf(policy, all, blocks * 16));
  };
  EXPECT_EQ(rows_behind(200).OfCandidates().far_blocks, 32);
  EXPECT_TRUE(rows_behind(2 + 64 + 6).looks_twice());
  EXPECT_FALSE(rows_behind(2 + 63 + 6).looks_twice());
}

TEST(SelectionPolicyTest, BoundsHoldEveryBudget) {
  for (const BudgetShare share : {BudgetShare::kHead, BudgetShare::kLayer}) {
    for (const int64_t length : {1, 15, 64, 1000, 4096, 100000}) {
      for (const int64_t keys : {16, 100, 2048}) {
        SelectionPolicy policy = PolicyOf(keys, 70, 300);
        policy.share = share;
        const SelectionBounds bounds = BoundsOf(policy, length, 4);
        const std::vector<BlockSpan> all = {{0, length / 64 * 4}};
        const SelectionBudget budget = BudgetOf(policy, all, length - 1);
        EXPECT_LE(all[0].blocks, bounds.blocks);
        EXPECT_LE(budget.Capacity(all[0].blocks, 4), bounds.capacity);
        EXPECT_EQ(bounds.candidates, 0);
        EXPECT_EQ(bounds.prompt_candidates, 0);
        policy.breadth = 3;
        policy.growth = 0.05;
        const SelectionBudget twice = BudgetOf(policy, all, length - 1);
        EXPECT_LE(twice.OfCandidates().Capacity(all[0].blocks, 4),
                  BoundsOf(policy, length, 4).candidates);
        EXPECT_LE(twice.Capacity(all[0].blocks, 4), BoundsOf(policy, length, 4).capacity);
        SelectionPolicy by_pages = policy;
        by_pages.search_slots = 64;
        EXPECT_LE(twice.OfCoarse(4).Capacity(all[0].blocks / 4, 4),
                  BoundsOf(by_pages, length, 4).candidates);
        policy.prompts = SelectionPolicy::Prompts::kSelected;
        const SelectItem rows = RowsOf(PromptBudgetOf(policy, all, length));
        EXPECT_LE(rows.OfCandidates().Capacity(all[0].blocks, 4),
                  BoundsOf(policy, length, 4).prompt_candidates);
      }
    }
  }
}

}  // namespace
}  // namespace headway::kv
