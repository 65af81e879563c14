// The bound of heads that read salient keys alone, by its definition in double precision.
#include "kv/policy/unread_bound.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "base/random.h"
#include "kernels/selection_bound.h"
#include "kv/policy/selection.h"

namespace headway::kv {
namespace {

constexpr float kNothing = -std::numeric_limits<float>::infinity();

// By how much of the head's mass the bound holds, or fails below 0: the estimate of T - epsilon T
// and so many of its standard deviations against epsilon C.
double Room(const MassBound& bound, int64_t blocks, double read,
            const std::vector<UnreadBlock>& sample) {
  const double keep = 1.0 - bound.epsilon;
  double mass = 0.0, squares = 0.0;
  for (const UnreadBlock& block : sample) {
    const double part = keep * std::exp(double{block.mass}) * static_cast<double>(block.stratum);
    mass += part;
    squares += part * part;
  }
  const double core = std::exp(read);
  const double samples = static_cast<double>(std::min<int64_t>(blocks, 64));
  const double variance =
      static_cast<double>(blocks) > samples
          ? std::max(0.0, (squares - mass * mass / samples) * samples / (samples - 1.0))
          : 0.0;
  return (bound.epsilon * core - mass - bound.deviations * std::sqrt(variance)) / (core + mass);
}

std::vector<UnreadBlock> RandomSample(Random& random, int64_t blocks) {
  std::vector<UnreadBlock> sample;
  const float spread = 0.5f + 2.0f * static_cast<float>(random.Below(3));
  const bool some = random.Below(2) == 0;
  for (int i = 0; i < selection::SamplesOf(blocks); ++i) {
    if (some && random.Below(3) == 0) continue;
    sample.push_back({selection::SampleOf(7, 0, i, blocks).stratum, spread * random.Normal()});
  }
  return sample;
}

TEST(UnreadBound, IsThatOfItsDefinition) {
  Random random(5);
  int decided = 0, held = 0, all = 0;
  for (const int64_t blocks : {1, 5, 64, 65, 400, 8192}) {
    for (const double epsilon : {0.01, 0.1, 0.5, 0.9}) {
      for (int turn = 0; turn < 200; ++turn) {
        const MassBound bound = {.epsilon = epsilon, .deviations = DeviationsOf(0.05)};
        const std::vector<UnreadBlock> sample = RandomSample(random, blocks);
        // Near where it may hold or fail.
        const float read = static_cast<float>(std::log(static_cast<double>(blocks) / epsilon)) +
                           2.0f * random.Normal();
        const double room = Room(bound, blocks, double{read}, sample);
        ++all;
        if (std::abs(room) < 1e-4) continue;
        const bool holds = BoundHolds(bound, blocks, read, sample);
        EXPECT_EQ(holds, room > 0.0) << blocks << " " << epsilon << " " << room;
        ++decided;
        held += holds ? 1 : 0;
      }
    }
  }
  EXPECT_GT(decided, all * 9 / 10);
  EXPECT_GT(held, decided / 8);
  EXPECT_LT(held, decided * 7 / 8);
}

TEST(UnreadBound, NothingIsBoundedByNothing) {
  const MassBound bound = {.epsilon = 0.5, .deviations = 1.0};
  EXPECT_TRUE(BoundHolds(bound, 10, 0.0f, {}));        // nothing is left out
  EXPECT_TRUE(BoundHolds(bound, 1000, kNothing, {}));  // nothing is there
  const UnreadBlock block = {1, -50.0f};
  EXPECT_FALSE(BoundHolds(bound, 10, kNothing, {&block, 1}));  // nothing is read
  EXPECT_TRUE(BoundHolds(bound, 10, -40.0f, {&block, 1}));
}

// The core alone counts beside the tail, and less of it is not enough.
TEST(UnreadBound, ComparesWithAllThatIsKnown) {
  const MassBound bound = {.epsilon = 0.25, .deviations = 1.0};
  const UnreadBlock block = {1, 0.0f};  // all blocks are sampled: a mass of 1
  EXPECT_TRUE(BoundHolds(bound, 4, std::log(3.01f), {&block, 1}));
  EXPECT_FALSE(BoundHolds(bound, 4, std::log(2.99f), {&block, 1}));
}

// Between a sample that says the same of every block and one that does not.
TEST(UnreadBound, WhatIsSpreadNeedsMoreRoom) {
  const MassBound bound = {.epsilon = 0.25, .deviations = DeviationsOf(0.05)};
  std::vector<UnreadBlock> even(64, {10, 0.0f}), uneven = even;
  for (UnreadBlock& block : uneven) block.mass = -30.0f;
  for (size_t i = 0; i < 16; ++i) uneven[i * 4].mass = std::log(4.0f);
  const float read = std::log(640.0f * 3.3f);
  EXPECT_TRUE(BoundHolds(bound, 640, read, even));
  EXPECT_FALSE(BoundHolds(bound, 640, read, uneven));
}

TEST(UnreadBound, BlocksLieInPages) {
  EXPECT_EQ(BoundSlots(64), 16);
  EXPECT_EQ(BoundSlots(16), 16);
  EXPECT_EQ(BoundSlots(8), 8);
  EXPECT_EQ(BoundSlots(4), 4);
  EXPECT_EQ(BoundSlots(24), 8);
}

}  // namespace
}  // namespace headway::kv
