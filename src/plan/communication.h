// What ranks that share a model say to each other in a step: sums over all of them behind attention
// and behind the MLP of each layer, logits that are gathered, and what weighs the parts of heads
// that several of them have. All wait for these.
#ifndef HEADWAY_PLAN_COMMUNICATION_H_
#define HEADWAY_PLAN_COMMUNICATION_H_

#include <cstdint>

#include "base/machine_profile.h"

namespace headway::plan {

// Ranks, each with a GPU of its own, in equal numbers on each of the nodes.
struct RankGroup {
  int ranks = 1;
  int nodes = 1;
  // Some have parts of the same heads, and say in each layer what these weigh.
  bool shares_heads = false;

  int of_node() const { return ranks / nodes; }
};

// The machine as a rank finds it whose node has others. Ranks share the host's cores and its
// memory, where the profile is of a host of several GPUs: each has a part of the threads, and GPUs
// that copy at the same time may get less than one alone. A profile of a host of one GPU is taken
// as such a part. Where the device is the host, ranks share all of it.
MachineProfile MachineOfRank(const MachineProfile& machine, const RankGroup& group);

// In how many pieces a step of so many rows goes, so that ranks add up the rows of one while the
// others are computed: pieces of as many rows at least as products take well, and a few, since each
// costs launches.
inline constexpr int64_t kRowsOfSum = 2048;
int PiecesOfSum(int64_t rows, int64_t rows_of_sum = kRowsOfSum);

// A sum of vectors of so many bytes, one of each rank, which all of them get: the ranks of a node
// add up a share each, nodes add these up over the network, and each share goes to all.
double SumSeconds(const MachineProfile& machine, const RankGroup& group, double bytes);
// Every rank gets so many bytes of each other one.
double GatherSeconds(const MachineProfile& machine, const RankGroup& group, double bytes);

}  // namespace headway::plan

#endif  // HEADWAY_PLAN_COMMUNICATION_H_
