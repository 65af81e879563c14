// Examples of sketches and of second looks, worked by hand.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "base/random.h"
#include "kernels/ref/ref_selection.h"
#include "kernels/selection_math.h"

namespace headway {
namespace {

using testing::ElementsAre;

TEST(SketchMathTest, DistancesAreThoseOfTheVariance) {
  // No distance is 0, and all fit a signed byte.
  EXPECT_EQ(selection::SizesOf(0.0f).near, 1);
  EXPECT_EQ(selection::SizesOf(0.0f).far, 1);
  EXPECT_EQ(selection::SizesOf(std::sqrt(255.0f)).near, 38);
  EXPECT_EQ(selection::SizesOf(std::sqrt(255.0f)).far, 127);
  for (int code = 0; code <= 255; ++code) {
    const auto root = std::sqrt(static_cast<float>(code));
    const selection::SketchSizes sizes = selection::SizesOf(root);
    EXPECT_NEAR(sizes.near, 38.07 * root / std::sqrt(255.0), code == 0 ? 1.0 : 0.51);
    EXPECT_NEAR(sizes.far, 127.0 * root / std::sqrt(255.0), code == 0 ? 1.0 : 0.51);
  }
  // 1.51 deviations are the 127 steps of a variance of 4.
  const float variance = selection::LargestVariance(4.0f / 255.0f);
  EXPECT_NEAR(127 * selection::SketchStep(std::sqrt(variance)), 2 * 1.5104, 1e-5);
}

TEST(SketchMathTest, WeightsAreMassesByTheLargestLogits) {
  const uint32_t one = uint32_t{1} << selection::kShareBits;
  EXPECT_EQ(selection::MassOf(uint64_t{64} * one), one);
  EXPECT_EQ(selection::MassWeight(one, one), one);
  EXPECT_EQ(selection::MassWeight(one / 2, one / 4), one / 8);
  EXPECT_EQ(selection::MassWeight(one, 0), 0u);
}

// One head of dimension 2 in one segment: pages of one block of eight slots.
class Sketched {
 public:
  // keys: [blocks, 8, 2].
  explicit Sketched(std::vector<float> numbers)
      : keys_(std::move(numbers)), blocks_(std::ssize(keys_) / 16) {
    memory_.assign(static_cast<size_t>(blocks_ * 16), std::byte{0});
    SummarizeItem item;
    item.keys.k = reinterpret_cast<std::byte*>(keys_.data());
    item.keys.page_stride = 64;
    item.keys.count = 8 * blocks_;
    item.codes = memory_.data();
    item.scales = reinterpret_cast<float*>(memory_.data() + 4 * blocks_);
    item.sketch = memory_.data() + 12 * blocks_;
    ref::Summarize(kFormat, kSummary, {&item, 1});
  }

  std::vector<int> Sketch(int64_t block) const {
    std::vector<int> bytes;
    for (int64_t i = 0; i < 4; ++i) {
      bytes.push_back(
          static_cast<uint8_t>(memory_[static_cast<size_t>(12 * blocks_ + 4 * block + i)]));
    }
    return bytes;
  }

  std::vector<int32_t> List(std::vector<float> q, const SelectionBudget& budget) const {
    const SegmentPlace place = {nullptr, memory_.data(), memory_.data() + 12 * blocks_};
    std::vector<int32_t> list(static_cast<size_t>(blocks_), -1);
    std::vector<int32_t> candidates = list;
    int32_t count = -1;
    int32_t candidate_count = -1;
    const SelectItem item = {.q = q.data(),
                             .keys = {.segments = {&place, 1},
                                      .heads = 1,
                                      .blocks = blocks_,
                                      .segment_blocks = blocks_,
                                      .scales_offset = 4 * blocks_},
                             .budget = budget,
                             .blocks = list.data(),
                             .capacity = blocks_,
                             .counts = &count,
                             .candidates = {candidates.data(), blocks_, &candidate_count}};
    ref::SelectBlocks(kFormat, kSummary, 1, 1.0f, {&item, 1});
    list.resize(static_cast<size_t>(count));
    return list;
  }

 private:
  static constexpr PageFormat kFormat = {.dtype = DType::kF32, .page_slots = 8, .head_dim = 2};
  static constexpr SummaryFormat kSummary = {.block_slots = 8, .sketch = SketchKind::kTwoBits};

  std::vector<float> keys_;
  int64_t blocks_;
  std::vector<std::byte> memory_;
};

TEST(SketchTest, HasSignsAndSizesOfEachChannel) {
  // The second channel does not change: its keys are the mean as its code has it.
  const Sketched sketched({-2, 0, -0.5, 0, 2, 0, 0.5, 0, -2, 0, 0.5, 0, 2, 0, -0.5, 0});
  EXPECT_THAT(sketched.Sketch(0), ElementsAre(0b10010011, 0, 0b01010101, 0));
}

// Blocks with the same means and variances, whose channels go together in one block only. A query
// that looks along both finds it by the second look alone.
TEST(SketchTest, ASecondLookFindsWhatMomentsDoNotShow) {
  std::vector<float> keys;
  for (const float sign : {-1.0f, -1.0f, 1.0f, -1.0f, -1.0f}) {
    for (int slot = 0; slot < 8; ++slot) {
      const float key = slot % 2 == 0 ? 1.0f : -1.0f;
      keys.insert(keys.end(), {key, sign * key});
    }
  }
  const Sketched sketched(keys);
  SelectionBudget budget = {.far_begin = 1, .far_end = 5, .far_blocks = 1};
  EXPECT_THAT(sketched.List({2, 2}, budget), ElementsAre(0, 1));
  budget.candidates = 3;
  EXPECT_THAT(sketched.List({2, 2}, budget), ElementsAre(0, 2));
  budget.candidates = 4;
  EXPECT_THAT(sketched.List({2, 2}, budget), ElementsAre(0, 2));
  // It is no candidate.
  budget = {.far_begin = 0, .far_end = 5, .far_blocks = 1, .candidates = 2};
  EXPECT_THAT(sketched.List({2, 2}, budget), ElementsAre(0));
  // Across both channels it is the worst.
  budget = {.far_begin = 0, .far_end = 5, .far_blocks = 4, .candidates = 5};
  EXPECT_THAT(sketched.List({2, -2}, budget), ElementsAre(0, 1, 3, 4));
}

}  // namespace
}  // namespace headway
