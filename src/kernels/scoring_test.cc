#include "kernels/scoring.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/random.h"

namespace headway {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

TEST(ScoreWeightTest, IsAnExponential) {
  EXPECT_EQ(ScoreWeight(0.0), kWeightOne);
  Random random(1);
  for (int round = 0; round < 200000; ++round) {
    const double below = 30.0 * random.Uniform() * random.Uniform();
    const double exact = std::exp(-below) * static_cast<double>(kWeightOne);
    ASSERT_NEAR(static_cast<double>(ScoreWeight(below)), exact, 1.5e-8 * exact + 1.0) << below;
  }
}

TEST(ScoreWeightTest, OfWhatIsFarBelowIsZero) {
  for (const double below : {28.0, 28.5, 29.0, 64.0, 1e9, 1e300}) {
    EXPECT_EQ(ScoreWeight(below), 0u) << below;
  }
  EXPECT_EQ(ScoreWeight(std::numeric_limits<double>::infinity()), 0u);
}

TEST(NegativeLogLikelihoodTest, IsFiniteOrAnError) {
  EXPECT_EQ(*NegativeLogLikelihood({1.5f, 1.5f, kWeightOne}), 0.0);
  EXPECT_DOUBLE_EQ(*NegativeLogLikelihood({2.0f, -1.0f, 4 * kWeightOne}), 3.0 + std::log(4.0));
  EXPECT_DOUBLE_EQ(*NegativeLogLikelihood({3e38f, -3e38f, kWeightOne}), 2 * double{3e38f});
  EXPECT_EQ(NegativeLogLikelihood({}).status().code(), StatusCode::kCorrupt);
  EXPECT_EQ(NegativeLogLikelihood({0.0f, -kInf, kWeightOne}).status().code(), StatusCode::kCorrupt);
}

}  // namespace
}  // namespace headway
