// Examples of selection worked by hand, and random problems by the definition.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "base/env.h"
#include "device/cpu/cpu_device.h"
#include "kernels/ref/ref_kernels.h"
#include "kernels/ref/ref_selection.h"
#include "kernels/selection_math.h"
#include "kernels/testing/selection_problem.h"

namespace headway {
namespace {

using selection::ScaleOf;
using selection::WorthCode;
using testing::ElementsAre;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TEST(SelectionMathTest, NearestRoundsHalvesToEven) {
  Random random(1);
  for (int i = 0; i < 100000; ++i) {
    const float x = 40000.0f * random.Normal();
    ASSERT_EQ(selection::Nearest(x), static_cast<int32_t>(std::nearbyint(x))) << x;
  }
  EXPECT_EQ(selection::Nearest(0.5f), 0);
  EXPECT_EQ(selection::Nearest(1.5f), 2);
  EXPECT_EQ(selection::Nearest(-2.5f), -2);
  EXPECT_EQ(selection::Nearest(-0.0f), 0);
}

TEST(SelectionMathTest, RowsHaveNoScaleAtTheEndsOfTheRange) {
  for (const float largest : {0.0f, 0x1p-149f, 0x1p-100f, 0x1p100f, kInfinity, kNan}) {
    EXPECT_EQ(ScaleOf(largest, 127).scale, 0.0f) << largest;
    EXPECT_EQ(ScaleOf(largest, 127).inverse, 0.0f) << largest;
  }
  for (const float largest : {0x1.8p-100f, 1.0f, 0x1.fp99f}) {
    for (const float levels : {127.0f, 255.0f, 32767.0f}) {
      const selection::RowScale row = ScaleOf(largest, levels);
      EXPECT_TRUE(std::isnormal(row.scale) && std::isnormal(row.inverse));
      EXPECT_EQ(selection::Nearest(largest * row.inverse), static_cast<int32_t>(levels));
      EXPECT_EQ(selection::Nearest(-largest * row.inverse), -static_cast<int32_t>(levels));
    }
  }
}

TEST(SelectionMathTest, TheLargestBitsShowWhatIsNotFinite) {
  using selection::SizeBits;
  EXPECT_LT(SizeBits(0.0f), SizeBits(-0x1p-149f));
  EXPECT_EQ(SizeBits(-2.0f), SizeBits(2.0f));
  EXPECT_LT(SizeBits(std::numeric_limits<float>::max()), SizeBits(-kInfinity));
  EXPECT_LT(SizeBits(kInfinity), SizeBits(-kNan));
}

TEST(SelectionMathTest, WorthCodesGrowWithWorth) {
  EXPECT_EQ(WorthCode(0.0f), 0u);
  EXPECT_EQ(WorthCode(0x1p-149f), 0u);
  EXPECT_EQ(WorthCode(0x1p-57f), 0u);
  EXPECT_EQ(WorthCode(64.0f), 63u * 32);
  uint32_t before = 0;
  for (uint32_t bits = 0; bits < 0x43000000u; bits += 0x1003u) {  // up to 128
    const uint32_t code = WorthCode(std::bit_cast<float>(bits));
    ASSERT_GE(code, before);
    ASSERT_LE(code, before + 1);
    ASSERT_LT(code, static_cast<uint32_t>(selection::kWorthCodes));
    before = code;
  }
  EXPECT_LT(WorthCode(kNan), static_cast<uint32_t>(selection::kWorthCodes));
}

TEST(SelectionMathTest, TheWorthOfACodeIsTheLeastThatHasIt) {
  EXPECT_EQ(selection::CodeWorth(WorthCode(1.0f)), uint64_t{1} << 40);
  EXPECT_EQ(selection::CodeWorth(WorthCode(1.99f)), (uint64_t{1} << 35) * 63);
  EXPECT_EQ(selection::CodeWorth(WorthCode(64.0f)), uint64_t{1} << 46);
  EXPECT_EQ(selection::CodeWorth(WorthCode(0x1p-40f)), 1u);
  EXPECT_EQ(selection::CodeWorth(WorthCode(0x1.8p-41f)), 0u);
  EXPECT_EQ(selection::CodeWorth(0), 0u);
  for (uint32_t code = 1; code < selection::kWorthCodes; ++code) {
    const uint64_t worth = selection::CodeWorth(code);
    ASSERT_GE(worth, selection::CodeWorth(code - 1));
    // So exact that it has its code again, where it is not rounded down.
    if (worth >= 32) {
      ASSERT_EQ(WorthCode(static_cast<float>(worth) * 0x1p-40f), code);
    }
  }
  EXPECT_EQ(selection::WorthWanted(12345, 1u << kTopPBits, kTopPBits), 12345u);
  EXPECT_EQ(selection::WorthWanted(12345, 1u << (kTopPBits - 1), kTopPBits), 6172u);
  EXPECT_EQ(selection::WorthWanted(uint64_t{1} << 62, 1u << (kTopPBits - 2), kTopPBits),
            uint64_t{1} << 60);
}

TEST(SelectionMathTest, SharesOfAllBlocksAddUpToOne) {
  EXPECT_EQ(selection::ShareWeight(3.0f, 3.0f), uint32_t{1} << selection::kShareBits);
  EXPECT_EQ(selection::ShareWeight(3.0f, -kInfinity), 0u);
  EXPECT_NEAR(selection::ShareWeight(1.0f, 0.0f) * 0x1p-31, std::exp(-1.0), 1e-8);
  const uint64_t sum = uint64_t{1} << 33;
  EXPECT_EQ(4 * selection::ShareOf(uint32_t{1} << 31, sum), 1.0f);
}

// One head of dimension 2 in one segment: pages of one block of two slots.
struct Small {
  explicit Small(const std::vector<float>& numbers, SummaryKind kind = SummaryKind::kMoments)
      : keys(numbers), blocks(std::ssize(numbers) / 4) {
    format = {.dtype = DType::kF32, .page_slots = 2, .head_dim = 2};
    summary = {.kind = kind, .block_slots = 2};
    memory.assign(static_cast<size_t>(blocks * 12), std::byte{0});
    SummarizeItem item;
    item.keys.k = reinterpret_cast<std::byte*>(keys.data());
    item.keys.page_stride = 16;
    item.keys.count = 2 * blocks;
    item.codes = memory.data();
    item.scales = scales();
    ref::Summarize(format, summary, {&item, 1});
  }
  float* scales() { return reinterpret_cast<float*>(memory.data() + 4 * blocks); }
  std::vector<int> Codes(int64_t block) const {
    std::vector<int> codes;
    for (int64_t i = 4 * block; i < 4 * block + 4; ++i) {
      codes.push_back(static_cast<int8_t>(memory[static_cast<size_t>(i)]));
    }
    return codes;
  }
  // The list of the first rows of q [rows, 2], turned by `turn`.
  std::vector<int32_t> List(std::vector<float> q, const SelectionBudget& budget,
                            const RopeTable& turn = {}) {
    const SegmentPlace place = {nullptr, memory.data()};
    std::vector<int32_t> list(static_cast<size_t>(blocks), -1);
    int32_t count = -1;
    candidates.resize(static_cast<size_t>(blocks));
    const SelectItem item = {.q = q.data(),
                             .q_stride = 2,
                             .rows = std::ssize(q) / 2,
                             .turn = turn,
                             .keys = {.segments = {&place, 1},
                                      .heads = 1,
                                      .blocks = blocks,
                                      .segment_blocks = blocks,
                                      .scales_offset = 4 * blocks},
                             .budget = budget,
                             .blocks = list.data(),
                             .capacity = blocks,
                             .counts = &count,
                             .candidates = {candidates.data(), blocks, &candidate_count},
                             .candidates_listed = candidates_listed};
    ref::SelectBlocks(format, summary, 1, 1.0f, {&item, 1});
    list.resize(static_cast<size_t>(count));
    return list;
  }

  PageFormat format;
  SummaryFormat summary;
  std::vector<float> keys;
  int64_t blocks;
  std::vector<std::byte> memory;
  std::vector<int32_t> candidates;  // of the last list in two looks
  int32_t candidate_count = 0;
  bool candidates_listed = false;
};

TEST(SelectionTest, MomentsAreCodesOfMeanAndVariance) {
  // Means 2 and -1, variances 1 and 0; then a block of zeros, and one with NaN.
  Small small({1, -1, 3, -1, 0, 0, 0, 0, kNan, 1, 2, 1});
  EXPECT_THAT(small.Codes(0), ElementsAre(127, -64, -1, 0));  // 255 as a signed byte
  EXPECT_EQ(small.scales()[0], 2.0f / 127.0f);
  EXPECT_EQ(small.scales()[1], 1.0f / 255.0f);
  EXPECT_THAT(small.Codes(1), ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(small.Codes(2), ElementsAre(0, 0, 0, 0));
  for (int i = 2; i < 6; ++i) EXPECT_EQ(small.scales()[i], 0.0f);
}

TEST(SelectionTest, BoxesAreCodesOfTheLeastAndTheGreatest) {
  Small small({1, -1, 4, 2}, SummaryKind::kBoxes);
  EXPECT_THAT(small.Codes(0), ElementsAre(32, -32, 127, 64));
  EXPECT_EQ(small.scales()[0], 4.0f / 127.0f);
  EXPECT_EQ(small.scales()[1], 4.0f / 127.0f);
}

TEST(SelectionTest, ListsTheNearBlocksAndTheBestOfTheFarOnes) {
  // The first channels of six blocks: 0, 1, 5, 1, 3, 0.
  Small small({0, 9, 0, 9, 1, 0, 1, 0, 5, 0, 5, 0, 1, 0, 1, 0, 3, 0, 3, 0, 0, 9, 0, 9});
  const auto list = [&](int64_t begin, int64_t end, int64_t count) {
    return small.List({1, 0}, {.far_begin = begin, .far_end = end, .far_blocks = count});
  };
  EXPECT_THAT(list(1, 5, 0), ElementsAre(0, 5));
  EXPECT_THAT(list(1, 5, 1), ElementsAre(0, 2, 5));
  EXPECT_THAT(list(1, 5, 2), ElementsAre(0, 2, 4, 5));
  EXPECT_THAT(list(1, 5, 3), ElementsAre(0, 1, 2, 4, 5));  // of equals the first
  EXPECT_THAT(list(0, 6, 1), ElementsAre(2));
  EXPECT_THAT(list(0, 6, 6), ElementsAre(0, 1, 2, 3, 4, 5));
  // Against the channel the least are best.
  EXPECT_THAT(small.List({-1, 0}, {.far_begin = 1, .far_end = 5, .far_blocks = 2}),
              ElementsAre(0, 1, 3, 5));
}

TEST(SelectionTest, ListsAsManyBlocksAsHaveTheShareThatIsAskedFor) {
  // The first channels of six blocks: 0, 1, 5, 1, 3, 0; the shares of the four in the middle are
  // 1.6 %, 85 %, 1.6 % and 12 %.
  Small small({0, 9, 0, 9, 1, 0, 1, 0, 5, 0, 5, 0, 1, 0, 1, 0, 3, 0, 3, 0, 0, 9, 0, 9});
  const auto list = [&](double top_p, int64_t least, int64_t most) {
    return small.List({1, 0}, {.far_begin = 1,
                               .far_end = 5,
                               .far_blocks = most,
                               .top_p = static_cast<uint32_t>(top_p * (1 << kTopPBits)),
                               .least_blocks = least});
  };
  EXPECT_THAT(list(0.5, 1, 3), ElementsAre(0, 2, 5));
  EXPECT_THAT(list(0.8, 1, 3), ElementsAre(0, 2, 5));
  EXPECT_THAT(list(0.9, 1, 3), ElementsAre(0, 2, 4, 5));
  EXPECT_THAT(list(0.98, 1, 3), ElementsAre(0, 1, 2, 4, 5));
  EXPECT_THAT(list(0.98, 1, 2), ElementsAre(0, 2, 4, 5));  // not more than the most
  EXPECT_THAT(list(0.5, 2, 3), ElementsAre(0, 2, 4, 5));   // nor fewer than the least
  EXPECT_THAT(list(0.5, 3, 2), ElementsAre(0, 2, 4, 5));
  // Where all may be listed there is nothing to choose.
  EXPECT_THAT(list(0.5, 1, 4), ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(list(0.5, 1, 0), ElementsAre(0, 5));
}

// Candidates that an earlier query has listed are all that a later one chooses among, beside blocks
// that are near now, or were.
TEST(SelectionTest, ChoosesAmongCandidatesOfAnEarlierQuery) {
  // The channels of seven blocks.
  Small small({0, 0, 0, 0, 1, 8, 1, 8, 5, 0, 5, 0, 4, 1, 4, 1, 3, 2, 3, 2, 0, 9, 0, 9, 0, 0, 0, 0});
  SelectionBudget budget = {.far_begin = 1, .far_end = 5, .far_blocks = 1, .candidates = 2};
  EXPECT_THAT(small.List({1, 0}, budget), ElementsAre(0, 2, 5, 6));
  small.candidates.resize(static_cast<size_t>(small.candidate_count));
  EXPECT_THAT(small.candidates, ElementsAre(0, 2, 3, 5, 6));
  small.candidates_listed = true;
  EXPECT_THAT(small.List({0, 1}, budget), ElementsAre(0, 3, 5, 6));
  // Block 5 is far now.
  budget.far_end = 6;
  EXPECT_THAT(small.List({0, 1}, budget), ElementsAre(0, 5, 6));
  budget.far_blocks = 2;
  EXPECT_THAT(small.List({-1, 1}, {.far_begin = 1, .far_end = 6, .far_blocks = 2, .candidates = 3}),
              ElementsAre(0, 3, 5, 6));
  // A first look finds what no candidate is.
  small.candidates_listed = false;
  EXPECT_THAT(small.List({0, 1}, budget), ElementsAre(0, 1, 5, 6));
}

// A block whose keys differ may hold one that a query wants, though their mean is the same.
TEST(SelectionTest, VarianceCounts) {
  Small small({1, 0, 1, 0, 4, 0, -2, 0, 1, 0, 1, 0});
  EXPECT_THAT(small.List({1, 0}, {.far_begin = 0, .far_end = 3, .far_blocks = 1}), ElementsAre(1));
}

// Rows are scored eight at a time; a block counts as much as for the pool that wants it most.
TEST(SelectionTest, RowsThatArePooledListWhatOneOfThePoolsWants) {
  // Five blocks: no direction, then one for each way along both channels.
  Small small({0, 0, 0, 0, 9, 0, 9, 0, -9, 0, -9, 0, 0, 9, 0, 9, 0, -9, 0, -9});
  const auto list = [&](const std::vector<float>& q, int64_t count) {
    return small.List(q, {.far_begin = 0, .far_end = 5, .far_blocks = count});
  };
  std::vector<float> q;  // eight rows along the first channel, then one against the second
  for (int row = 0; row < 8; ++row) q.insert(q.end(), {1, 0});
  q.insert(q.end(), {0, -1});
  EXPECT_THAT(list(q, 2), ElementsAre(1, 4));
  // Of one pool, opposite rows leave nothing of what they want.
  q.assign({1, 0, -1, 0, 0, 1});
  EXPECT_THAT(list(q, 1), ElementsAre(3));
}

// The first look has one query of all rows: the second one chooses among what their mean wants.
TEST(SelectionTest, RowsChooseAmongWhatTheirMeanWants) {
  // Six blocks, and their products with the mean of all rows: 0, 23.4, 11, 9, -23.4, 5.4.
  Small small({0, 0, 0, 0, 9, 0, 9, 0, 4, 1, 4, 1, 3, 2, 3, 2, -9, 0, -9, 0, 0, 9, 0, 9});
  std::vector<float> q;  // a pool along the first channel, then one that wants the last two blocks
  for (int row = 0; row < 8; ++row) q.insert(q.end(), {4, 0});
  for (int row = 0; row < 2; ++row) q.insert(q.end(), {-3, 3});
  const auto list = [&](int64_t candidates) {
    return small.List(q, {.far_begin = 0, .far_end = 6, .far_blocks = 2, .candidates = candidates});
  };
  EXPECT_THAT(list(0), ElementsAre(1, 4));
  EXPECT_THAT(list(3), ElementsAre(1, 3));
  // There is one look where most blocks would be candidates.
  EXPECT_THAT(list(4), ElementsAre(1, 4));
}

TEST(SelectionTest, QueriesAreTurnedBeforeTheyAreScored) {
  Small small({9, 0, 9, 0, 0, 9, 0, 9, -9, 0, -9, 0});
  const std::vector<float> cos = {0, -1}, sin = {1, 0};
  const SelectionBudget budget = {.far_begin = 0, .far_end = 3, .far_blocks = 1};
  EXPECT_THAT(small.List({1, 0}, budget), ElementsAre(0));
  EXPECT_THAT(small.List({1, 0}, budget, {cos.data(), sin.data(), 2}), ElementsAre(1));
  EXPECT_THAT(small.List({1, 0}, budget, {cos.data() + 1, sin.data() + 1, 2}), ElementsAre(2));
}

struct Draw {
  SelectionCase (*draw)(Random&);
  uint64_t problems;
};

class DefinitionTest : public testing::TestWithParam<Draw> {};

TEST_P(DefinitionTest, AgreesWithItselfWhereverPagesLie) {
  const std::unique_ptr<Kernels> kernels = NewRefKernels();
  const std::unique_ptr<Device> device = NewCpuDevice(Env::Default(), nullptr);
  const std::unique_ptr<Stream> stream = *device->NewStream(Lane::kCompute);
  for (uint64_t seed = 1; seed <= GetParam().problems; ++seed) {
    Random random(seed), same(seed), places(seed), others(seed + 1000);
    const SelectionCase c = GetParam().draw(random);
    SCOPED_TRACE(c.Name());
    ASSERT_TRUE(kernels->SupportsSelection(c.format, c.summary, c.group));
    SelectionProblem problem(c, random, places);
    SelectionProblem elsewhere(GetParam().draw(same), same, others);
    const std::unique_ptr<SelectionHost> host = NewSelectionHost();
    const std::vector<std::byte> actual = RunSelection(problem, *kernels, *stream, *host);
    ASSERT_EQ(problem.Disagreement({}, actual), "");
    const SelectionOutputs outputs = problem.Outputs(actual);
    ASSERT_TRUE(outputs == elsewhere.Outputs(elsewhere.Expected()));
    for (const int32_t count : outputs.counts) {
      ASSERT_LE(count, c.budget.Capacity(c.blocks(), c.heads));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, DefinitionTest,
                         testing::Values(Draw{RandomSelectionCase, 60}, Draw{RandomMovedCase, 60},
                                         Draw{RandomPrefillCase, 20}, Draw{RandomOtherCase, 60},
                                         Draw{RandomBoundedCase, 60}));

}  // namespace
}  // namespace headway
