// The definition of eviction's kernels against a plain reading.
#include "kernels/eviction.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include "base/random.h"
#include "kernels/ref/ref_eviction.h"
#include "kernels/testing/attention_problem.h"
#include "kernels/testing/eviction_problem.h"

namespace headway {
namespace {

constexpr float kUnseen = -std::numeric_limits<float>::infinity();
constexpr PageLayout kLayout = {.page_gap = 12, .descending = true, .values_first = true};

TEST(Eviction, LogitsAreProductsOfWhatAQuerySees) {
  Random random(1);
  for (int round = 0; round < 30; ++round) {
    const PageFormat format = {Pick(random, {DType::kF32, DType::kF16, DType::kBF16}),
                               Pick(random, {1, 16, 24}), Pick(random, {4, 20, 64})};
    KeyLogitsProblem problem(RandomKeyLogits(format, kLayout, random), random);
    const KeyLogitsItem item = problem.Item();
    const std::vector<float> expected = problem.Expected();
    const KeyLogitsCase& c = problem.spec;
    for (int64_t row = 0; row < c.rows; ++row) {
      for (int64_t head = 0; head < c.group; ++head) {
        const float* q = problem.q.data() + row * item.q_stride + head * format.head_dim;
        const int64_t at = (row * c.group + head) * item.stride;
        for (int64_t key = 0; key < c.count; ++key) {
          const float logit = expected[static_cast<size_t>(at + key)];
          if (c.key_position + key > c.q_position + row) {
            EXPECT_EQ(logit, kUnseen);
            continue;
          }
          double sum = 0.0, reach = 0.0;
          for (int64_t i = 0; i < format.head_dim; ++i) {
            sum += double{q[i]} * double{problem.kv.K(0, key, i)};
            reach += std::abs(double{q[i]} * double{problem.kv.K(0, key, i)});
          }
          // One rounding to f32.
          EXPECT_NEAR(logit, double{c.scale} * sum, 1.01 * kUnit * double{c.scale} * reach);
        }
      }
    }
    EXPECT_EQ(problem.Disagreement(0.0, expected), "");
  }
}

TEST(Eviction, WeightsAreThoseOfASoftmaxOverEachRow) {
  Random random(2);
  for (int round = 0; round < 50; ++round) {
    KeyWeightsProblem problem(1 + random.Below(20), 1 + random.Below(100), true, random);
    const KeyWeightsOutputs expected = problem.Expected();
    std::vector<double> sum(static_cast<size_t>(problem.columns)), max = sum;
    double total = 0.0;
    for (int64_t row = 0; row < problem.rows; ++row) {
      const float* logits = problem.logits.data() + row * problem.stride;
      double all = 0.0;
      // Numbers of a few hundred at most, whose exponentials f64 holds.
      for (int64_t i = 0; i < problem.columns; ++i) all += std::exp(double{logits[i]});
      for (size_t i = 0; i < sum.size(); ++i) {
        const double weight = std::exp(double{logits[i]}) / all;
        sum[i] += weight;
        max[i] = std::max(max[i], weight);
      }
    }
    for (size_t i = 0; i < sum.size(); ++i) {
      if (problem.raises) max[i] = std::max(max[i], double{problem.before.max[i]});
      // The logarithm of a row's sum is rounded, and is some hundreds.
      EXPECT_NEAR(expected.max[i], max[i], 1e-4 * max[i] + 1e-30);
      total += sum[i];
      // Where sums are averaged, a slot of a ring has what is left of it and a share of the sum.
      const MovingAverage& average = problem.average;
      const size_t slot = average.ring == 0 ? i
                                            : (i + static_cast<size_t>(average.first)) %
                                                  static_cast<size_t>(average.ring);
      const bool kept = static_cast<int64_t>(i) < average.kept;
      const double there = kept ? double{average.keep} * problem.before.sum[slot] : 0.0;
      const double joined = there + double{average.share} * sum[i];
      EXPECT_NEAR(expected.sum[slot], joined, 1e-4 * joined + 1e-30);
    }
    EXPECT_NEAR(total, static_cast<double>(problem.rows), 1e-3 * static_cast<double>(problem.rows));
    EXPECT_EQ(problem.Disagreement(expected), "");
  }
}

TEST(Eviction, SlotsAreCopiedAndNothingElseIsWritten) {
  Random random(3);
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (int round = 0; round < 20; ++round) {
      const PageFormat format =
          AnyEncoding({dtype, Pick(random, {1, 16, 24}), Pick(random, {4, 20, 64, 72})}, random);
      GatherSlotsProblem problem(format, kLayout, {.page_gap = 4}, random);
      std::vector<std::byte> from = problem.from.memory(), to = problem.to.memory();
      const GatherSlotsItem item = problem.ItemIn(from.data(), to.data(), problem.slots.data());
      ref::GatherSlots(format, {&item, 1});
      EXPECT_TRUE(to == problem.Expected());
      EXPECT_TRUE(from == problem.from.memory());
    }
  }
}

}  // namespace
}  // namespace headway
