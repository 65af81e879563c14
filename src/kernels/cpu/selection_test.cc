// Selection on CPUs, on each instruction set of this processor.
#include "kernels/cpu/selection.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/selection_testing.h"

namespace headway {
namespace {

class SelectionTest : public testing::TestWithParam<std::string> {};

TEST_P(SelectionTest, AgreesWithTheDefinition) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    Random random(seed);
    const SelectionCase c = RandomSelectionCase(random);
    ASSERT_EQ(SelectionDisagreement(c, GetParam(), random), "") << seed << ": " << c.Name();
  }
}

TEST_P(SelectionTest, AgreesWithTheDefinitionOnOtherScores) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    Random random(seed);
    const SelectionCase c = RandomOtherCase(random);
    ASSERT_EQ(SelectionDisagreement(c, GetParam(), random), "") << seed << ": " << c.Name();
  }
}

TEST_P(SelectionTest, AgreesWithTheDefinitionOnStages) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    Random random(seed);
    const SelectionCase c = RandomStagedCase(random);
    ASSERT_EQ(SelectionDisagreement(c, GetParam(), random), "") << seed << ": " << c.Name();
  }
}

TEST_P(SelectionTest, AgreesWithTheDefinitionOnBounds) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    Random random(seed);
    const SelectionCase c = RandomBoundedCase(random);
    ASSERT_EQ(SelectionDisagreement(c, GetParam(), random), "") << seed << ": " << c.Name();
  }
}

// A few blocks, the last ones near, whose masses count whatever summaries of bad numbers say.
TEST_P(SelectionTest, AgreesWithTheDefinitionOnBoundsBesideNearBlocks) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    Random random(seed);
    SelectionCase c = RandomBoundedCase(random);
    c.bad_numbers = true;
    c.pages = 3 + random.Below(6);
    c.budget.far_begin = random.Below(2);
    c.budget.far_end = c.blocks() - 1 - random.Below(2);
    c.budget.far_blocks = 1;
    c.budget.bound.epsilon = 0.5;
    ASSERT_EQ(SelectionDisagreement(c, GetParam(), random), "") << seed << ": " << c.Name();
  }
}

TEST_P(SelectionTest, AgreesWithTheDefinitionWhenTurnedAndMoved) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    Random random(seed);
    const SelectionCase c = RandomMovedCase(random);
    ASSERT_EQ(SelectionDisagreement(c, GetParam(), random), "") << seed << ": " << c.Name();
  }
}

// Blocks that stay and that are moved, with their open pages, and all states merged.
TEST_P(SelectionTest, TheRestAgreesWithTheDefinition) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    Random random(seed);
    SelectionCase c = seed % 2 == 0 ? RandomSelectionCase(random) : RandomMovedCase(random);
    c.bad_numbers = false;
    ASSERT_EQ(RestDisagreement(c, GetParam(), random), "") << seed << ": " << c.Name();
  }
}

TEST_P(SelectionTest, AgreesWithTheDefinitionForManyRows) {
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    Random random(seed);
    const SelectionCase c = RandomPrefillCase(random);
    ASSERT_EQ(SelectionDisagreement(c, GetParam(), random), "") << seed << ": " << c.Name();
  }
}

// Tiles take them where they can.
TEST_P(SelectionTest, AgreesWithTheDefinitionForManyRowsOfBF16) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Random random(seed);
    SelectionCase c = RandomPrefillCase(random);
    c.format.dtype = DType::kBF16;
    c.format.encoding = Encoding::kNone;
    c.of_codes = false;
    ASSERT_EQ(SelectionDisagreement(c, GetParam(), random), "") << seed << ": " << c.Name();
  }
}

// Any block size, head dimension and group that fits: vectors end anywhere.
TEST_P(SelectionTest, AgreesWithTheDefinitionInOddShapes) {
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    Random random(seed);
    SelectionCase c = seed % 2 == 0 ? RandomSelectionCase(random) : RandomOtherCase(random);
    const int step = c.format.encoding == Encoding::kLossless ? 8 : 2;
    c.format.head_dim = step * static_cast<int>(1 + random.Below(256 / step));
    c.summary.block_slots = 1 << random.Below(4);
    c.group = 1 + static_cast<int>(random.Below(40));
    c.pages = 1 + random.Below(3);
    c.budget.far_end = c.blocks() - random.Below(2);
    c.budget.far_begin = random.Below(2);
    c.budget.far_end = std::max(c.budget.far_begin, c.budget.far_end);
    c.budget.far_blocks = random.Below(c.budget.far_end - c.budget.far_begin + 1);
    for (ChunkStage& stage : c.budget.stages) stage.kept = c.budget.far_blocks;
    c.MayLookTwice(random);
    c.split = c.summary.block_slots * (1 + random.Below(9));
    ASSERT_EQ(SelectionDisagreement(c, GetParam(), random), "") << seed << ": " << c.Name();
  }
}

// Enough blocks that every step is split over threads, in several chunks a head.
TEST_P(SelectionTest, AgreesWithTheDefinitionOnManyBlocks) {
  struct Choice {
    BudgetShare share;
    SketchKind sketch;
  };
  for (const auto& [share, sketch] : {Choice{BudgetShare::kHead, SketchKind::kTwoBits},
                                      Choice{BudgetShare::kLayer, SketchKind::kTwoBits},
                                      Choice{BudgetShare::kLayer, SketchKind::kNone}}) {
    SelectionCase c;
    c.format = {.dtype = DType::kBF16, .page_slots = 64, .head_dim = 64};
    c.summary.block_slots = 16;
    c.heads = 2;
    c.group = 4;
    c.segment_pages = 50;
    c.pages = 180;
    c.summary.sketch = sketch;
    c.candidates_from = sketch == SketchKind::kNone ? 3 : -1;
    c.budget = {.far_begin = 4,
                .far_end = c.blocks() - 8,
                .far_blocks = 40,
                .share = share,
                .candidates = 170};
    c.split = 512;
    c.scale = 0.125f;
    Random random(9);
    ASSERT_EQ(SelectionDisagreement(c, GetParam(), random), "") << c.Name();
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, SelectionTest, testing::ValuesIn(CpuIsas()),
                         [](const auto& which) { return which.param; });

}  // namespace
}  // namespace headway
