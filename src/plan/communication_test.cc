#include "plan/communication.h"

#include <gtest/gtest.h>

#include "plan/cost.h"
#include "plan/plan_testing.h"
#include "support/test_machines.h"

namespace headway::plan {
namespace {

MachineProfile Linked() {
  MachineProfile machine;
  machine.link = 1e11;
  machine.sum_seconds = 1e-5;
  machine.network = 1e10;
  machine.network_sum_seconds = 1e-4;
  return machine;
}

TEST(Communication, ASumSendsEachShareTwice) {
  const MachineProfile machine = Linked();
  EXPECT_EQ(SumSeconds(machine, {1, 1}, 1e6), 0.0);
  EXPECT_NEAR(SumSeconds(machine, {2, 1}, 1e6), 1e-5 + 1e6 / 1e11, 1e-12);
  EXPECT_NEAR(SumSeconds(machine, {4, 1}, 1e6), 1e-5 + 1.5e6 / 1e11, 1e-12);
  // Two nodes: what each has of the sum crosses the network once each way.
  EXPECT_NEAR(SumSeconds(machine, {8, 2}, 1e6), 1e-5 + 1.5e6 / 1e11 + 1e-4 + 1e6 / 1e10, 1e-12);
  EXPECT_NEAR(SumSeconds(machine, {2, 2}, 1e6), 1e-4 + 1e6 / 1e10, 1e-12);
}

TEST(Communication, ManyRowsAreAddedUpInPieces) {
  EXPECT_EQ(PiecesOfSum(1), 1);
  EXPECT_EQ(PiecesOfSum(4095), 1);
  EXPECT_EQ(PiecesOfSum(4096), 2);
  EXPECT_EQ(PiecesOfSum(8192), 4);
  EXPECT_EQ(PiecesOfSum(65536), 4);
  EXPECT_EQ(PiecesOfSum(37, 9), 4);
}

TEST(Communication, AGatherReceivesWhatOthersHave) {
  const MachineProfile machine = Linked();
  EXPECT_EQ(GatherSeconds(machine, {1, 1}, 1e6), 0.0);
  EXPECT_NEAR(GatherSeconds(machine, {4, 1}, 1e6), 1e-5 + 3e6 / 1e11, 1e-12);
  EXPECT_NEAR(GatherSeconds(machine, {8, 2}, 1e6), 1e-5 + 7e6 / 1e11 + 1e-4 + 4e6 / 1e10, 1e-12);
}

// What all GPUs get of the host's memory while they copy at the same time.
TEST(Communication, RanksOfANodeShareTheHostsMemory) {
  MachineProfile machine = Linked();
  machine.host_to_device.points = {{1e6, 4e10}, {1e8, 5e10}};
  machine.device_to_host.points = {{1e8, 5e10}};
  machine.both_directions = 4e10;
  machine.read_in_place = 5e10;
  machine.host_to_device_reading = 4.5e10;
  machine.buses = 4e10;
  machine.own_memory = true;
  machine.gpus = 4;
  machine.host_read.points = {{1, 1e10}, {16, 1e11}};
  machine.host_read_copying.points = {{12, 8e10}};
  machine.device_read = 3e12;
  const MachineProfile own = MachineOfRank(machine, {4, 1});
  EXPECT_NEAR(own.host_to_device.Peak(), 4e10, 1.0);
  EXPECT_NEAR(own.host_to_device.points[0].second, 3.2e10, 1.0);
  EXPECT_NEAR(own.device_to_host.Peak(), 4e10, 1.0);
  EXPECT_NEAR(own.both_directions, 3.2e10, 1.0);
  EXPECT_NEAR(own.read_in_place, 4e10, 1.0);
  EXPECT_NEAR(own.host_to_device_reading, 3.6e10, 1.0);
  EXPECT_EQ(own.host_read.points[1], std::make_pair(4.0, 2.5e10));
  EXPECT_EQ(own.host_read_copying.points[0], std::make_pair(3.0, 2e10));
  EXPECT_EQ(own.device_read, 3e12);
  // With all cores and all buses at a time they have less, and no more than each alone.
  machine.buses_reading = 2.5e10;
  machine.cores_copying = 6e10;
  const MachineProfile together = MachineOfRank(machine, {4, 1});
  EXPECT_NEAR(together.host_to_device_reading, 2.5e10, 1.0);
  EXPECT_NEAR(together.host_read_copying.Peak(), 1.5e10, 1.0);
  EXPECT_NEAR(together.host_to_device.Peak(), 4e10, 1.0);
  EXPECT_EQ(together.host_read.points[1], std::make_pair(4.0, 2.5e10));
  machine.buses_reading = machine.cores_copying = 9e11;
  EXPECT_NEAR(MachineOfRank(machine, {4, 1}).host_to_device_reading, 3.6e10, 1.0);
  EXPECT_NEAR(MachineOfRank(machine, {4, 1}).host_read_copying.Peak(), 2e10, 1.0);
  // A host of one GPU is what each has.
  machine.gpus = 0;
  EXPECT_EQ(MachineOfRank(machine, {4, 1}).host_read.Peak(), 1e11);
  EXPECT_EQ(MachineOfRank(machine, {4, 1}).host_read_copying.Peak(), 8e10);
  // Of a host with several they read less beside copies, and no more than all take together.
  machine.cores_copying = 6e10;
  machine.buses_reading = 2.5e10;
  EXPECT_NEAR(MachineOfRank(machine, {4, 1}).host_read_copying.Peak(), 1.5e10, 1.0);
  EXPECT_NEAR(MachineOfRank(machine, {4, 1}).host_read.Peak(), 4e10, 1.0);
  machine.buses_reading = 9e11;
  // One of a node by itself has its bus alone, and none is faster for the others.
  EXPECT_EQ(MachineOfRank(machine, {2, 2}).host_to_device.Peak(), 5e10);
  machine.buses = 6e10;
  EXPECT_EQ(MachineOfRank(machine, {4, 1}).host_to_device.Peak(), 5e10);
}

TEST(Communication, RanksOnCoresShareThem) {
  MachineProfile machine;
  machine.own_memory = false;
  machine.device_read = 8e10;
  machine.gemm.points = {{16, 4e11}};
  machine.host_read.points = {{8, 8e10}};
  const MachineProfile own = MachineOfRank(machine, {2, 1});
  EXPECT_EQ(own.device_read, 4e10);
  EXPECT_EQ(own.gemm.Peak(), 2e11);
  EXPECT_EQ(own.host_read.points[0], std::make_pair(4.0, 4e10));
}

// Without links sums go over the bus, without a network of a known rate over one of 100 Gb/s.
TEST(Communication, ProfilesMaySayNothingOfLinks) {
  MachineProfile machine;
  machine.both_directions = 4e10;
  machine.sync_seconds = 1e-5;
  EXPECT_NEAR(SumSeconds(machine, {2, 1}, 1e6), 2e-5 + 1e6 / 2e10, 1e-12);
  EXPECT_NEAR(SumSeconds(machine, {2, 2}, 1e6), 5e-5 + 1e6 / 12.5e9, 1e-12);
}

// Two sums of a token's residual stream in each layer, and the logits of one row.
TEST(Communication, AStepWaitsForItsSums) {
  const Subject alone{{2, 1000, 2, 1, 100, 2000, 5000, DType::kBF16}, {}, 1.0};
  Subject shared = alone;
  shared.group = {4, 1};
  MachineProfile machine = Simple();
  machine.link = 1e11;
  machine.sum_seconds = 1e-5;
  const double said = PredictDecode(machine, shared, {}, std::vector<int64_t>{100}).seconds -
                      PredictDecode(machine, alone, {}, std::vector<int64_t>{100}).seconds;
  EXPECT_NEAR(said, 2 * 2 * (1e-5 + 1.5 * 4000 / 1e11) + 1e-5 + 3.0 * 4 * 5000 / 1e11, 1e-9);
  // Prompts go in pieces, whose sums are hidden behind products: all but the first, or all that is
  // longer than these, and these take longer beside them.
  constexpr int64_t kTokens = 8192;
  Execution run;
  run.chunk = kTokens;
  for (const double link : {1e11, 1e9}) {
    machine.link = link;
    const double prompt = PredictPrefill(machine, shared, run, 0, kTokens).seconds -
                          PredictPrefill(machine, alone, run, 0, kTokens).seconds;
    const double sums = 2 * (1e-5 + 1.5 * 4000 * kTokens / link);
    const double products = ProductSeconds(machine, shared.shape, kTokens, 200, 1000) +
                            ProductSeconds(machine, shared.shape, kTokens, 1000, 3 * 2000);
    const double waited = std::max(sums / 8 + 0.3 * std::min(sums, products), sums - products);
    EXPECT_NEAR(prompt, 2 * waited + 1e-5 + 3.0 * 4 * 5000 / link, 1e-9) << link;
  }
  machine.link = 1e11;
  // Parts of heads weigh a number for each query head.
  Subject parts = shared;
  parts.group.shares_heads = true;
  const double more = PredictDecode(machine, parts, {}, std::vector<int64_t>{100}).seconds -
                      PredictDecode(machine, shared, {}, std::vector<int64_t>{100}).seconds;
  EXPECT_NEAR(more, 2 * (1e-5 + 3.0 * 4 * shared.shape.query_heads / 1e11), 1e-9);
}

}  // namespace
}  // namespace headway::plan
