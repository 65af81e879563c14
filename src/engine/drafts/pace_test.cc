#include "engine/drafts/pace.h"

#include <gtest/gtest.h>

#include "base/random.h"

namespace headway {
namespace {

constexpr int64_t kMost = 7;

// A decode whose drafts are right with a probability: its tokens a second by those of a plain one,
// whose steps take a second, and a draft `each` more.
double Gain(double right, double each, int64_t steps, int64_t* drafted = nullptr) {
  Random random(1);
  DraftCosts costs;
  DraftPace pace;
  double seconds = 0.0;
  int64_t tokens = 0, verified = 0;
  for (int64_t step = 0; step < steps; ++step) {
    const int64_t drafts = pace.Next(kMost, costs);
    int64_t taken = 0;
    while (taken < drafts && random.Uniform() < right) ++taken;
    const double took = 1.0 + each * static_cast<double>(drafts);
    costs.Observe(1, drafts, took * (0.95 + 0.1 * random.Uniform()));
    if (drafts > 0) pace.Observe(drafts, taken);
    seconds += took;
    tokens += 1 + taken;
    verified += drafts;
  }
  if (drafted != nullptr) *drafted = verified;
  return static_cast<double>(tokens) / seconds;
}

// Of numbers that stay the same: the best there is.
double BestGain(double right, double each) {
  double best = 1.0, tokens = 1.0, all = 1.0;
  for (int64_t drafts = 1; drafts <= kMost; ++drafts) {
    all *= right;
    tokens += all;
    best = std::max(best, tokens / (1.0 + each * static_cast<double>(drafts)));
  }
  return best;
}

TEST(DraftPace, ComesNearTheBestNumber) {
  for (const double each : {0.01, 0.1, 0.3, 0.8}) {
    for (const double right : {0.0, 0.2, 0.5, 0.7, 0.9, 1.0}) {
      EXPECT_GT(Gain(right, each, 4000), 0.9 * BestGain(right, each)) << each << ", " << right;
      EXPECT_GT(Gain(right, each, 4000), 0.97) << each << ", " << right;
    }
  }
}

TEST(DraftPace, DraftsThatAreNeverRightAreSeldomTried) {
  int64_t drafted = 0;
  Gain(0.0, 0.3, 4000, &drafted);
  EXPECT_LT(drafted, 60);
  EXPECT_GT(drafted, 5);
}

// From drafts that are wrong to drafts that are right, and back.
TEST(DraftPace, FollowsWhatIsAccepted) {
  DraftCosts costs;
  costs.Observe(1, 0, 1.0);
  DraftPace pace;
  const auto decode = [&](int64_t steps, bool right) {
    int64_t last = 0;
    for (int64_t step = 0; step < steps; ++step) {
      last = pace.Next(kMost, costs);
      costs.Observe(1, last, 1.0 + 0.1 * static_cast<double>(last));
      if (last > 0) pace.Observe(last, right ? last : 0);
    }
    return last;
  };
  EXPECT_EQ(decode(100, true), kMost);
  decode(2000, false);
  EXPECT_LT(pace.rate(), 0.1);
  EXPECT_EQ(decode(600, true), kMost);
}

// As drafts are that the model makes itself: nearly all are right, and each takes as long as a
// plain step or longer.
TEST(DraftPace, DraftsThatCannotPayAreSeldomTried) {
  for (const double each : {1.0, 1.2, 2.0}) {
    int64_t drafted = 0;
    EXPECT_GT(Gain(0.97, each, 4000, &drafted), 0.97) << each;
    EXPECT_LT(drafted, 200) << each;
    EXPECT_GT(Gain(0.97, each, 300), 0.95) << each;
  }
}

// The first steps are slow, and tell what a plain step takes all the same.
TEST(DraftPace, TheFastestOfTheFirstStepsCounts) {
  DraftCosts costs;
  DraftPace pace;
  for (const double seconds : {3.0, 1.0, 1.5}) {
    EXPECT_EQ(pace.Next(kMost, costs), 0);
    costs.Observe(1, 0, seconds);
  }
  EXPECT_EQ(pace.Next(kMost, costs), 1);  // nothing is known of drafts
  costs.Observe(1, 1, 1.2);
  EXPECT_NEAR(costs.Ratio(1), 1.2, 1e-9);
  EXPECT_GT(pace.Next(kMost, costs), 1);
}

// Batches share a step: what is plain is the step of all.
TEST(DraftPace, CostsAreThoseOfASequence) {
  DraftCosts costs;
  EXPECT_FALSE(costs.known());
  for (int i = 0; i < 50; ++i) {
    costs.Observe(4, 0, 4.0);
    costs.Observe(4, 8, 4.0 + 8 * 0.2);
  }
  EXPECT_NEAR(costs.Ratio(3), 1.6, 0.01);
}

}  // namespace
}  // namespace headway
