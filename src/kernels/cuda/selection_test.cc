// Selection on a GPU: the definition's summaries and lists byte by byte, states within rounding,
// and the same bits wherever pages lie.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/random.h"
#include "kernels/cuda/selection_testing.h"
#include "kernels/testing/selection_problem.h"

namespace headway::cuda {
namespace {

TEST_F(CudaSelectionTest, AgreesWithTheDefinition) {
  for (uint64_t seed = 1; seed <= 150 && !HasFailure(); ++seed) {
    Random random(seed);
    SelectionCase c = RandomSelectionCase(random);
    c.activation = c.format.dtype;
    Check(c, seed);
  }
  EXPECT_GT(cached(), 200);  // of 450
}

TEST_F(CudaSelectionTest, AgreesWithTheDefinitionOnOtherScores) { CheckGroups(RandomOtherCase); }

TEST_F(CudaSelectionTest, AgreesWithTheDefinitionOnStages) { CheckGroups(RandomStagedCase); }

// Tables of segments, and of their positions behind these, lie in memory.
TEST_F(CudaSelectionTest, AgreesWithTheDefinitionOnStagesOfManySegments) {
  for (const auto& [rows, positions] : {std::pair{1, KeyPositions::kOne},
                                        {1, KeyPositions::kChunks},
                                        {150, KeyPositions::kOne},
                                        {150, KeyPositions::kChunks},
                                        {150, KeyPositions::kBranches}}) {
    SelectionCase c;
    c.format = {.dtype = DType::kBF16, .page_slots = 64, .head_dim = 32};
    c.summary = {.kind = SummaryKind::kStages, .block_slots = 8};
    c.heads = 3;
    c.group_heads = 2;
    c.group = 8;
    c.segment_pages = 1;
    c.pages = 403;
    c.budget = {.far_begin = 3,
                .far_end = c.blocks() - 5,
                .far_blocks = 20,
                .share = BudgetShare::kHead,
                .stages = {{{32, 9}, {4, 20}}}};
    c.rows = rows;
    c.turn_dim = 32;
    c.positions = positions;
    c.move_dim = 32;
    c.split = rows == 1 ? 128 : 0;
    c.scale = 0.25f;
    c.activation = DType::kBF16;
    Check(c, 510);
  }
}

TEST_F(CudaSelectionTest, AgreesWithTheDefinitionOnBounds) { CheckGroups(RandomBoundedCase); }

// Tables of segments lie in memory, of summaries and then of keys; codes take several rounds.
TEST_F(CudaSelectionTest, AgreesWithTheDefinitionOnBoundsOfManyBlocks) {
  for (const double epsilon : {0.02, 0.2, 0.5}) {
    SelectionCase c;
    c.format = {.dtype = DType::kBF16, .page_slots = 64, .head_dim = 16};
    c.summary = {.kind = SummaryKind::kMoments, .block_slots = 8};
    c.heads = 3;
    c.group_heads = 2;
    c.group = 2;
    c.segment_pages = 2;
    c.pages = 1003;  // 8,024 blocks, 1,004 segments
    c.budget = {.far_begin = 3,
                .far_end = c.blocks() - 5,
                .far_blocks = 20,
                .share = BudgetShare::kHead,
                .bound = {.epsilon = epsilon, .deviations = 1.7, .seed = 5}};
    c.split = 128;
    c.scale = 0.25f;
    c.activation = DType::kBF16;
    Check(c, 500);
  }
}

TEST_F(CudaSelectionTest, AgreesWithTheDefinitionForAllGroupsAndHeadSizes) {
  uint64_t seed = 200;
  for (const int group : {1, 2, 3, 4, 5, 7, 8, 9, 12, 16}) {
    for (const int head_dim : {8, 40, 64, 72, 128, 136, 256}) {
      if (HasFailure()) return;
      Random random(++seed);
      SelectionCase c = RandomSelectionCase(random);
      c.group = group;
      c.format.head_dim = head_dim;
      c.activation = c.format.dtype;
      Check(c, seed);
    }
  }
}

TEST_F(CudaSelectionTest, MovedBlocksAgreeWithTheDefinition) {
  for (uint64_t seed = 600; seed < 700 && !HasFailure(); ++seed) {
    Random random(seed);
    SelectionCase c = RandomMovedCase(random);
    c.activation = c.format.dtype;
    Check(c, seed);
  }
}

TEST_F(CudaSelectionTest, TheRestAgreesWithTheDefinition) {
  for (uint64_t seed = 1; seed <= 150 && !HasFailure(); ++seed) {
    Random random(seed);
    SelectionCase c = seed % 3 == 0 ? RandomMovedCase(random) : RandomSelectionCase(random);
    if (seed % 5 == 0) c.group = 16 - static_cast<int>(random.Below(8));
    // Some heads' parts are found in a second round of a warp.
    if (seed % 7 == 0) c.heads = 33 + static_cast<int>(random.Below(8)), c.group = 2;
    c.pages = std::max<int64_t>(c.pages, 1);  // a path that takes no keys leaves all to others
    c.bad_numbers = false;
    c.activation = c.format.dtype;
    CheckRest(c, seed);
  }
}

TEST_F(CudaSelectionTest, RowsAgreeWithTheDefinition) {
  for (uint64_t seed = 1000; seed < 1100 && !HasFailure(); ++seed) {
    Random random(seed);
    SelectionCase c = RandomPrefillCase(random);
    c.activation = c.format.dtype;
    Check(c, seed);
  }
  EXPECT_GT(cached(), 200);  // of 300
}

TEST_F(CudaSelectionTest, RowsOfAllGroupsAndHeadSizesAgreeWithTheDefinition) {
  uint64_t seed = 1200;
  for (const int group : {1, 3, 4, 8, 16}) {
    for (const int head_dim : {8, 40, 64, 72, 128, 136, 256}) {
      if (HasFailure()) return;
      Random random(++seed);
      SelectionCase c = RandomPrefillCase(random);
      c.group = group;
      c.heads = std::min(c.heads, 2);
      c.group_heads = std::min(c.group_heads, c.heads);
      c.rows = std::min<int64_t>(c.rows, 70);
      c.format.head_dim = head_dim;
      c.turn_dim = c.turn_dim > 0 ? head_dim : 0;
      c.move_dim = c.move_dim > 0 ? head_dim / 2 : 0;
      c.activation = c.format.dtype;
      Check(c, seed);
    }
  }
}

// Heads of 128 elements have a kernel of their own on some GPUs: lists that end within a tile of
// keys or fill several, rows that end within a tile, and blocks of all sizes, in place and moved.
TEST_F(CudaSelectionTest, RowsOfWideHeadsAgreeWithTheDefinition) {
  uint64_t seed = 1400;
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    for (const int group : {1, 4, 7}) {
      for (const int slots : {8, 16, 32, 64}) {
        for (const int move_dim : {0, 32, 128}) {
          if (HasFailure()) return;
          Random random(++seed);
          SelectionCase c = RandomPrefillCase(random);
          c.format = {.dtype = dtype, .page_slots = 64, .head_dim = 128};
          c.of_codes = false;
          c.summary = {.kind = SummaryKind::kMoments, .block_slots = slots};
          c.group = group;
          c.heads = 1 + static_cast<int>(random.Below(3));
          c.group_heads = 1 + static_cast<int>(random.Below(c.heads));
          c.rows = 1 + random.Below(150);
          c.pages = random.Below(30);
          const int64_t begin = std::min<int64_t>(c.blocks(), random.Below(3));
          const int64_t end = std::max(begin, c.blocks() - random.Below(3));
          c.budget = {.far_begin = begin,
                      .far_end = end,
                      .far_blocks = random.Below(end - begin + 1),
                      .far_step = random.Below(5),
                      .share = Pick(random, {BudgetShare::kHead, BudgetShare::kLayer})};
          c.turn_dim = c.turn_dim > 0 ? 128 : 0;
          c.move_dim = move_dim;
          c.scale = 1.0f / std::sqrt(128.0f);
          c.activation = dtype;
          Check(c, seed);
        }
      }
    }
  }
}

// Queries and pages of unequal dtypes, and numbers of elements that rotate that no pair of words
// holds.
TEST_F(CudaSelectionTest, RowsOfOtherDTypesAgreeWithTheDefinition) {
  for (uint64_t seed = 1300; seed < 1330 && !HasFailure(); ++seed) {
    Random random(seed);
    SelectionCase c = RandomPrefillCase(random);
    c.activation = Pick(random, {DType::kBF16, DType::kF16, DType::kF32});
    c.rows = std::min<int64_t>(c.rows, 70);
    Check(c, seed);
  }
}

// Blocks are scored in several tiles, and a head's list has several rounds; the table of segments
// lies in memory.
class CudaRowsLookTest : public CudaSelectionTest, public testing::WithParamInterface<int64_t> {};

TEST_P(CudaRowsLookTest, RowsAgreeWithTheDefinitionOnManyBlocks) {
  const int64_t candidates = GetParam();
  for (const BudgetShare share : {BudgetShare::kHead, BudgetShare::kLayer}) {
    for (const SummaryKind kind : {SummaryKind::kMoments, SummaryKind::kBoxes}) {
      SelectionCase c;
      c.format = {.dtype = DType::kBF16, .page_slots = 64, .head_dim = 16};
      c.summary = {.kind = kind, .block_slots = 8};
      c.heads = 3;
      c.group_heads = 2;
      c.group = 2;
      c.segment_pages = 3;
      c.pages = 719;  // 5,752 blocks, 480 segments
      c.budget = {.far_begin = 3, .far_end = c.blocks() - 5, .far_blocks = 40, .share = share};
      c.budget.far_step = 2;
      c.budget.candidates = candidates;
      c.rows = 130;
      c.turn_dim = 16;
      c.move_dim = 16;
      c.scale = 0.25f;
      c.activation = DType::kBF16;
      Check(c, 1400);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Candidates, CudaRowsLookTest, testing::Values(0, 320, 2500));

// Several bands of a first look, the last of which is not full.
TEST_F(CudaSelectionTest, RowsOfSeveralBandsAgreeWithTheDefinition) {
  for (const int64_t rows : {512, 1100}) {
    for (const int head_dim : {64, 256}) {
      SelectionCase c;
      c.format = {.dtype = DType::kBF16, .page_slots = 64, .head_dim = head_dim};
      c.summary = {.block_slots = 16};
      c.heads = 2;
      c.group_heads = 2;
      c.group = 9;  // of 256 elements more query heads than a block of threads has at once
      c.segment_pages = 5;
      c.pages = 40;
      c.budget = {.far_begin = 3, .far_end = c.blocks() - 37, .far_blocks = 9, .far_step = 4};
      c.budget.candidates = 60;
      c.rows = rows;
      c.scale = 0.125f;
      c.activation = DType::kBF16;
      Check(c, 1500);
    }
  }
}

// As many blocks of threads as fill a large device score some blocks in rounds: all of them for
// many rows, or many candidates for few. Of many blocks scratch memory holds a few bands at a time.
TEST_F(CudaSelectionTest, RowsInRoundsAndInTurnsAgreeWithTheDefinition) {
  struct Size {
    int heads, group;
    int64_t pages, rows, candidates;
  };
  for (const Size& size :
       {Size{4, 16, 88, 2100, 0}, Size{5, 16, 719, 330, 0}, Size{8, 4, 150, 2000, 560}}) {
    SelectionCase c;
    c.format = {.dtype = DType::kBF16, .page_slots = 64, .head_dim = 16};
    c.summary = {.block_slots = 8};
    c.heads = size.heads;
    c.group_heads = 2;
    c.group = size.group;
    c.segment_pages = 30;
    c.pages = size.pages;
    c.budget = {.far_begin = 3, .far_end = c.blocks() - 60, .far_blocks = 40, .far_step = 8};
    c.budget.candidates = size.candidates;
    c.rows = size.rows;
    c.scale = 0.25f;
    c.activation = DType::kBF16;
    Check(c, 1600);
  }
}

// Several blocks of threads list the blocks of a head, and the table of segments lies in memory.
TEST_F(CudaSelectionTest, AgreesWithTheDefinitionOnManyBlocks) {
  for (const BudgetShare share : {BudgetShare::kHead, BudgetShare::kLayer}) {
    for (const SummaryKind kind : {SummaryKind::kMoments, SummaryKind::kBoxes}) {
      SelectionCase c;
      c.format = {.dtype = DType::kBF16, .page_slots = 64, .head_dim = 16};
      c.summary = {.kind = kind, .block_slots = 8};
      c.heads = 3;
      c.group_heads = 2;
      c.group = 2;
      c.segment_pages = 8;
      c.pages = 2303;  // 18,424 blocks, 576 segments
      c.budget = {.far_begin = 3, .far_end = c.blocks() - 5, .far_blocks = 2500, .share = share};
      if (kind == SummaryKind::kMoments) c.summary.sketch = SketchKind::kTwoBits;
      c.budget.candidates = 5100;
      c.split = 128;
      c.scale = 0.25f;
      c.activation = DType::kBF16;
      Check(c, 400);
    }
  }
}

// More chunks than a block of threads has threads, and segments than a launch has places for; some
// keys are 0, so that scores are equal.
TEST_F(CudaSelectionTest, AgreesWithTheDefinitionOnManyKeys) {
  struct Choice {
    SummaryKind kind;
    BudgetShare share;
    std::array<ChunkStage, kChunkStages> stages;
    int first_stage = 0;
  };
  for (const Choice& choice :
       {Choice{SummaryKind::kMasses, BudgetShare::kLayer, {}},
        Choice{SummaryKind::kStages, BudgetShare::kHead, {}},
        Choice{SummaryKind::kStages, BudgetShare::kHead, {{{4, 1500}}}},
        Choice{SummaryKind::kStages, BudgetShare::kHead, {{{28, 90}, {4, 400}}}},
        Choice{SummaryKind::kStages, BudgetShare::kHead, {{{28, 90}, {4, 400}}}, 1},
        Choice{SummaryKind::kStages, BudgetShare::kHead, {{{28, 90}, {4, 400}}}, 2}}) {
    SelectionCase c;
    c.format = {.dtype = DType::kBF16, .page_slots = 64, .head_dim = 16};
    c.summary = {.kind = choice.kind, .block_slots = 8};
    c.heads = 3;
    c.group_heads = 2;
    c.group = 2;
    c.segment_pages = 2;
    c.pages = 1003;  // 8,024 blocks, 1,004 segments
    c.budget = {.far_begin = 3,
                .far_end = c.blocks() - 5,
                .far_blocks = 1400,
                .share = choice.share,
                .stages = choice.stages};
    c.first_stage = choice.first_stage;
    c.split = 128;
    c.scale = 0.25f;
    c.activation = DType::kBF16;
    Check(c, 450);
  }
}

// Equal codes are taken by head, then by block: all keys are 0.
TEST_F(CudaSelectionTest, TakesEqualBlocksInOrder) {
  struct Choice {
    SummaryKind kind;
    BudgetShare share;
    SketchKind sketch = SketchKind::kNone;
  };
  for (const auto& [kind, share, sketch] :
       {Choice{SummaryKind::kMoments, BudgetShare::kHead, SketchKind::kTwoBits},
        Choice{SummaryKind::kMoments, BudgetShare::kLayer, SketchKind::kTwoBits},
        Choice{SummaryKind::kMoments, BudgetShare::kHead},
        Choice{SummaryKind::kMoments, BudgetShare::kLayer},
        Choice{SummaryKind::kMasses, BudgetShare::kLayer},
        Choice{SummaryKind::kStages, BudgetShare::kHead}}) {
    SelectionCase c;
    c.format = {.dtype = DType::kF16, .page_slots = 64, .head_dim = 64};
    c.summary = {.kind = kind, .block_slots = 16};
    c.heads = 4;
    c.group_heads = 3;
    c.group = 4;
    c.segment_pages = 7;
    c.pages = 300;
    c.budget = {.far_begin = 2, .far_end = c.blocks() - 3, .far_blocks = 450, .share = share};
    c.summary.sketch = sketch;
    if (HasSummaries(kind)) c.budget.candidates = 700;
    c.split = 256;
    c.scale = 0.125f;
    c.key_size = 0.0f;
    c.activation = DType::kF16;
    Check(c, 500);
  }
}

class CudaSecondLookTest : public CudaSelectionTest,
                           public testing::WithParamInterface<SketchKind> {};

// All sizes of blocks, groups that take several products, and candidates up to all there are, of
// this query or of one before it.
TEST_P(CudaSecondLookTest, AgreesWithTheDefinition) {
  uint64_t seed = 600;
  for (const int slots : {8, 16, 32, 64}) {
    for (const int head_dim : {40, 128, 256}) {
      for (const int64_t candidates : {60, 200, 1000}) {
        if (HasFailure()) return;
        Random random(++seed);
        SelectionCase c = RandomSelectionCase(random);
        c.format = {.dtype = DType::kBF16, .page_slots = 64, .head_dim = head_dim};
        c.of_codes = false;  // there are none
        c.summary = {.block_slots = slots, .sketch = GetParam()};
        if (GetParam() == SketchKind::kNone) {
          c.summary.kind =
              Pick(random, {SummaryKind::kMoments, SummaryKind::kBoxes, SummaryKind::kPairs});
        }
        c.activation = DType::kBF16;
        c.heads = 1 + static_cast<int>(random.Below(8));
        c.group_heads = 1 + static_cast<int>(random.Below(c.heads));
        c.group = 1 + static_cast<int>(random.Below(16));
        c.segment_pages = 7;
        c.pages = 1 + 300 * slots / 64 + random.Below(4);
        c.budget.far_begin = random.Below(4);
        c.budget.far_end = c.blocks() - random.Below(4);
        c.budget.far_blocks = 50;
        c.budget.candidates = candidates;
        c.candidates_from = random.Below(4) - 1;
        c.by_pages = candidates > c.budget.far_blocks && c.page_blocks() > 1 && seed % 2 == 0;
        c.key_size = 1.0f;
        c.scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
        c.split = 512;
        Check(c, seed);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Sketches, CudaSecondLookTest,
                         testing::Values(SketchKind::kNone, SketchKind::kTwoBits));

TEST_F(CudaSelectionTest, RefusesWhatItDoesNotSupport) {
  const PageFormat format = {.dtype = DType::kBF16, .page_slots = 64, .head_dim = 128};
  const SelectItem item;
  Of(DType::kBF16).SelectBlocks(stream(), format, {.block_slots = 16}, 17, 1.0f, {&item, 1});
  EXPECT_EQ(stream().Synchronize().code(), StatusCode::kUnsupported);
}

TEST_F(CudaSelectionTest, SupportsWhatItSays) {
  const PageFormat format = {.dtype = DType::kBF16, .page_slots = 64, .head_dim = 128};
  const auto supports = [&](PageFormat pages, int slots, int group) {
    return Of(DType::kBF16).SupportsSelection(pages, {.block_slots = slots}, group);
  };
  for (const int slots : {8, 16, 32, 64}) EXPECT_TRUE(supports(format, slots, 4));
  for (const int slots : {0, 4, 24, 128}) EXPECT_FALSE(supports(format, slots, 4));
  EXPECT_TRUE(supports(format, 16, 16));
  EXPECT_FALSE(supports(format, 16, 17));
  for (const int head_dim : {4, 12, 264}) {
    PageFormat other = format;
    other.head_dim = head_dim;
    EXPECT_FALSE(supports(other, 16, 4));
  }
}

}  // namespace
}  // namespace headway::cuda
