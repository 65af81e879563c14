#include "base/random.h"

#include <gtest/gtest.h>

#include <vector>

namespace headway {
namespace {

// A seed that a user writes down must give the same text next year: these never change.
TEST(Random, PinnedValues) {
  Random zero(0);
  EXPECT_EQ(zero.Next(), 0x99ec5f36cb75f2b4u);
  EXPECT_EQ(zero.Next(), 0xbf6e1f784956452au);
  EXPECT_EQ(zero.Next(), 0x1a5f849d4933e6e0u);
  EXPECT_EQ(zero.Next(), 0x6aa594f1262d2d2cu);
  Random next(42);
  EXPECT_EQ(next.Next(), 0x15780b2e0c2ec716u);
  EXPECT_EQ(next.Next(), 0x6104d9866d113a7eu);
  Random uniform(42);
  EXPECT_EQ(uniform.Uniform(), 0.08386297105988216);
  EXPECT_EQ(uniform.Uniform(), 0.3789802506626686);
  EXPECT_EQ(uniform.Uniform(), 0.6800434110281394);
  Random below(42);
  for (const int64_t expected : {742, 102, 9, 193, 476, 584})
    EXPECT_EQ(below.Below(1000), expected);
  // The system's log and cos may differ in the last bit.
  Random normal(42);
  EXPECT_FLOAT_EQ(normal.Normal(), -0.303263064678738f);
  EXPECT_FLOAT_EQ(normal.Normal(), 1.3438117634372806f);
  EXPECT_FLOAT_EQ(normal.Normal(), 0.3834617912676943f);
}

TEST(Random, Moments) {
  Random random(5);
  constexpr int kDraws = 200'000;
  double uniform = 0.0;
  double mean = 0.0;
  double square = 0.0;
  for (int i = 0; i < kDraws; ++i) {
    const double u = random.Uniform();
    ASSERT_GE(u, 0.0);
    ASSERT_LT(u, 1.0);
    uniform += u / kDraws;
    const double x = random.Normal();
    mean += x / kDraws;
    square += x * x / kDraws;
  }
  // Five standard errors.
  EXPECT_NEAR(uniform, 0.5, 5 * 0.289 / 447);
  EXPECT_NEAR(mean, 0.0, 5 * 1.0 / 447);
  EXPECT_NEAR(square, 1.0, 5 * 1.42 / 447);
}

TEST(Random, BelowIsEven) {
  Random random(6);
  std::vector<int> counts(7, 0);
  for (int i = 0; i < 70'000; ++i) ++counts.at(static_cast<size_t>(random.Below(7)));
  for (const int count : counts) EXPECT_NEAR(count, 10'000, 5 * 93);
  EXPECT_EQ(random.Below(1), 0);
  // A range of 3/4 of all values: without the second draw the lower part would come twice as often.
  constexpr int64_t kRange = int64_t{3} << 61;
  int low = 0;
  for (int i = 0; i < 10'000; ++i) low += random.Below(kRange) < kRange / 3 ? 1 : 0;
  EXPECT_NEAR(low, 3333, 5 * 47);
}

}  // namespace
}  // namespace headway
