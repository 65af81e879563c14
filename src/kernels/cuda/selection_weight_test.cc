// The weights of shares in integers of 32 bits are those of the definition.
#include "kernels/cuda/selection_weight.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <limits>

namespace headway::cuda {
namespace {

// Floats from 2^-29, below which steps are 0, to beyond the end of weights.
TEST(SelectionWeightTest, IsTheDefinitions) {
  constexpr uint32_t kFirst = std::bit_cast<uint32_t>(0x1p-29f);
  constexpr uint32_t kLast = std::bit_cast<uint32_t>(32.0f);
  constexpr uint32_t kApart = 29;
  for (uint32_t bits = kFirst; bits < kLast; bits += kApart) {
    const auto below = std::bit_cast<float>(bits);
    ASSERT_EQ(ShareWeightOf(below, 0.0f), selection::ShareWeight(below, 0.0f)) << below;
  }
}

TEST(SelectionWeightTest, IsTheDefinitionsAtTheEnds) {
  using Limits = std::numeric_limits<float>;
  for (const float below :
       {0.0f, -0.0f, Limits::denorm_min(), Limits::min(), 0x1p-27f, 0x1.8p-26f, 0x1.4p-25f, 0x1p-3f,
        0x1.fffffep-4f, 28.5f, 0x1.c7fffep4f, 0x1.c80002p4f, 1e30f, Limits::max(),
        Limits::infinity(), Limits::quiet_NaN()}) {
    EXPECT_EQ(ShareWeightOf(below, 0.0f), selection::ShareWeight(below, 0.0f)) << below;
  }
  EXPECT_EQ(ShareWeightOf(1.5f, 1.5f), uint32_t{1} << selection::kShareBits);
}

}  // namespace
}  // namespace headway::cuda
