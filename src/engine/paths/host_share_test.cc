#include "engine/paths/host_share.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/random.h"

namespace headway {
namespace {

TEST(SplitLayer, GivesTheHostItsShareOverTheLayers) {
  Random random(1);
  for (int round = 0; round < 500; ++round) {
    const double share = static_cast<double>(random.Uniform());
    double carry = 0.0;
    double all = 0.0, host = 0.0;
    int most_heads = 1;
    for (int layer = 0; layer < 40; ++layer) {
      std::vector<HostSlab> slabs(static_cast<size_t>(random.Below(6)));
      for (HostSlab& slab : slabs) {
        slab.pages = 1 + static_cast<int>(random.Below(40));
        slab.heads = 1 + static_cast<int>(random.Below(8));
        most_heads = std::max(most_heads, slab.heads);
      }
      std::vector<int> streamed;
      SplitLayer(share, slabs, &carry, &streamed);
      ASSERT_EQ(streamed.size(), slabs.size());
      int cut = 0;
      bool host_began = false;
      for (size_t i = 0; i < slabs.size(); ++i) {
        ASSERT_GE(streamed[i], 0);
        ASSERT_LE(streamed[i], slabs[i].pages);
        cut += streamed[i] > 0 && streamed[i] < slabs[i].pages;
        ASSERT_TRUE(!host_began || streamed[i] == 0);
        host_began |= streamed[i] < slabs[i].pages;
        all += slabs[i].pages * slabs[i].heads;
        host += (slabs[i].pages - streamed[i]) * slabs[i].heads;
      }
      ASSERT_LE(cut, 1);
      // A page of the slab that was cut, and half a page of a head.
      ASSERT_LE(std::abs(host - share * all), most_heads + 0.5) << "share " << share;
    }
  }
}

TEST(SplitLayer, NothingAndAll) {
  const std::vector<HostSlab> slabs = {{3, 2}, {1, 1}};
  std::vector<int> streamed;
  double carry = 0.0;
  SplitLayer(0.0, slabs, &carry, &streamed);
  EXPECT_EQ(streamed, (std::vector<int>{3, 1}));
  SplitLayer(1.0, slabs, &carry, &streamed);
  EXPECT_EQ(streamed, (std::vector<int>{0, 0}));
  EXPECT_EQ(carry, 0.0);
  SplitLayer(0.5, {}, &carry, &streamed);
  EXPECT_TRUE(streamed.empty());
}

// A machine whose lanes take so long; some bytes cross its bus in any case.
struct Machine {
  double bytes = 17e9;
  double fixed = 0.0;
  double bus_rate = 50e9;
  double host_rate = 148e9;
  double gap = 5e-3;

  double BusSeconds(double share) const { return (fixed + (1.0 - share) * bytes) / bus_rate; }
  double HostSeconds(double share) const { return share * bytes / host_rate; }
  double Seconds(double share) const {
    return std::max(BusSeconds(share), HostSeconds(share) + gap);
  }
  double Best() const {
    double best = 1e9;
    for (double s = 0.005; s <= 0.995; s += 0.001) best = std::min(best, Seconds(s));
    return best;
  }
  HostStepTimes Step(double share, double noise) const {
    HostStepTimes times = {.bus_seconds = BusSeconds(share) * (1.0 - noise),
                           .host_seconds = HostSeconds(share) * (1.0 + noise),
                           .bus_bytes = fixed + (1.0 - share) * bytes,
                           .host_bytes = share * bytes};
    // The gap shows where the host is last.
    if (HostSeconds(share) + gap > BusSeconds(share)) times.gap_seconds = gap;
    return times;
  }
};

TEST(HostShareControl, FindsTheBestShareAndStaysThere) {
  Random random(2);
  for (int round = 0; round < 300; ++round) {
    Machine machine;
    machine.bytes = 1e9 * std::pow(40.0, static_cast<double>(random.Uniform()));
    machine.bus_rate = 1e9 * (10.0 + 50.0 * static_cast<double>(random.Uniform()));
    machine.host_rate = 1e9 * (5.0 + 200.0 * static_cast<double>(random.Uniform()));
    machine.gap = 0.1 * static_cast<double>(random.Uniform()) * machine.Seconds(0.5);
    if (round % 2 == 1) machine.fixed = machine.bytes * static_cast<double>(random.Uniform());
    HostShareControl control(static_cast<double>(random.Uniform()));
    double before = control.share();
    double turned = 0.0;
    for (int step = 0; step < 60; ++step) {
      const double noise = 0.01 * (2.0 * static_cast<double>(random.Uniform()) - 1.0);
      control.Observe(machine.Step(control.share(), noise));
      ASSERT_GE(control.share(), HostShareControl::kLeast);
      ASSERT_LE(control.share(), HostShareControl::kMost);
      if (step >= 30) turned = std::max(turned, std::abs(control.share() - before));
      before = control.share();
    }
    EXPECT_LE(machine.Seconds(control.share()), 1.06 * machine.Best())
        << "share " << control.share() << " bytes " << machine.bytes << " bus " << machine.bus_rate
        << " host " << machine.host_rate << " gap " << machine.gap << " fixed " << machine.fixed;
    // No swinging: the noise moves what seems best by some 2 %, and half of that is gone.
    EXPECT_LE(turned, 0.015);
  }
}

TEST(HostShareControl, FollowsAHostThatBecomesSlower) {
  Machine machine;
  HostShareControl control(0.75);
  for (int step = 0; step < 20; ++step) control.Observe(machine.Step(control.share(), 0.0));
  const double before = control.share();
  machine.host_rate /= 8.0;
  for (int step = 0; step < 20; ++step) control.Observe(machine.Step(control.share(), 0.0));
  EXPECT_LT(control.share(), 0.5 * before);
  EXPECT_LE(machine.Seconds(control.share()), 1.06 * machine.Best());
  machine.host_rate *= 8.0;
  for (int step = 0; step < 20; ++step) control.Observe(machine.Step(control.share(), 0.0));
  EXPECT_NEAR(control.share(), before, 0.02);
}

// A machine that was suspended, or whose cores did something else for a while.
TEST(HostShareControl, OneLongPauseIsForgotten) {
  const Machine machine;
  HostShareControl control(0.7);
  for (int step = 0; step < 20; ++step) control.Observe(machine.Step(control.share(), 0.0));
  HostStepTimes bad = machine.Step(control.share(), 0.0);
  bad.gap_seconds = 5.0;
  control.Observe(bad);
  for (int step = 0; step < 25; ++step) control.Observe(machine.Step(control.share(), 0.0));
  EXPECT_LE(machine.Seconds(control.share()), 1.06 * machine.Best());
}

TEST(HostShareControl, StepsWithOneLaneSayNothing) {
  HostShareControl control(0.3);
  control.Observe({.bus_seconds = 1, .host_seconds = 0, .bus_bytes = 5, .host_bytes = 0});
  control.Observe({});
  EXPECT_EQ(control.share(), 0.3);
}

}  // namespace
}  // namespace headway
