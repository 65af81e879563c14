#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/random.h"
#include "base/thread_pool.h"
#include "kernels/cpu/attention.h"
#include "kernels/ref/ref_attention.h"
#include "kernels/testing/held_problem.h"

namespace headway {
namespace {

// What the reference makes of a holder's states, in place.
std::vector<float> Summands(const HeldProblem& problem, int holder) {
  std::vector<float> o = problem.o[static_cast<size_t>(holder)];
  ScaleHeldItem item = problem.ItemOf(holder);
  item.lse = problem.lse.data();
  item.o = o.data();
  ref::ScaleHeld(problem.head_dim, problem.group, {&item, 1});
  return o;
}

TEST(ScaleHeld, IsTheReferences) {
  Random random(41);
  ThreadPool pool(3);
  for (int round = 0; round < 100; ++round) {
    const HeldProblem problem(random);
    for (int holder = 0; holder < problem.holders; ++holder) {
      const std::vector<float> expected = Summands(problem, holder);
      ScaleHeldItem item = problem.ItemOf(holder);
      item.lse = problem.lse.data();
      const std::vector<float>& from = problem.o[static_cast<size_t>(holder)];
      std::vector<float> actual = from;
      if (round % 2 == 0) {  // from elsewhere, over anything
        item.from = from.data();
        std::fill(actual.begin(), actual.end(), std::nanf(""));
      }
      item.o = actual.data();
      cpu::ScaleHeld(pool, problem.head_dim, problem.group, {&item, 1});
      for (int64_t row = 0; row < problem.rows; ++row) {
        for (int64_t i = 0; i < problem.group * problem.head_dim; ++i) {
          const auto at = static_cast<size_t>(row * problem.stride + i);
          ASSERT_NEAR(actual[at], expected[at], 2e-6 * (1.0 + std::abs(expected[at]))) << round;
        }
      }
    }
  }
}

// A sum of all holders' is what their states merge to.
TEST(ScaleHeld, MakesSummandsOfStates) {
  Random random(42);
  for (int round = 0; round < 30; ++round) {
    HeldProblem problem(random);
    std::vector<std::vector<float>> summands;
    for (int holder = 0; holder < problem.holders; ++holder) {
      summands.push_back(Summands(problem, holder));
    }
    for (int64_t row = 0; row < problem.rows; ++row) {
      for (int head = 0; head < problem.group; ++head) {
        const int64_t first = row * problem.stride + head * problem.head_dim;
        std::vector<float> parts, lse, merged(static_cast<size_t>(problem.head_dim));
        for (int holder = 0; holder < problem.holders; ++holder) {
          const auto at = problem.o[static_cast<size_t>(holder)].begin() + first;
          parts.insert(parts.end(), at, at + problem.head_dim);
          lse.push_back(problem.LseOf(holder, row, head));
        }
        const MergeItem item = {.part_o = parts.data(),
                                .o_part_stride = problem.head_dim,
                                .part_lse = lse.data(),
                                .lse_part_stride = 1,
                                .parts = problem.holders,
                                .rows = 1,
                                .o = merged.data()};
        ref::Merge(problem.head_dim, {&item, 1});
        for (int i = 0; i < problem.head_dim; ++i) {
          double sum = 0.0;
          for (const std::vector<float>& each : summands) {
            sum += static_cast<double>(each[static_cast<size_t>(first + i)]);
          }
          ASSERT_NEAR(sum, merged[static_cast<size_t>(i)], 1e-5);
        }
      }
    }
  }
}

}  // namespace
}  // namespace headway
