#include "plan/communication.h"

#include <algorithm>

namespace headway::plan {
namespace {

// Where a profile says nothing of links, what is said goes over the bus and through host memory.
double LinkRate(const MachineProfile& machine) {
  if (machine.link > 0.0) return machine.link;
  return std::max(machine.both_directions, 1.0) / 2.0;
}
double SumLatency(const MachineProfile& machine) {
  if (machine.sum_seconds > 0.0) return machine.sum_seconds;
  return 2.0 * machine.sync_seconds;
}

// An assumption where a profile says nothing of a network: 100 Gb/s, and its latency twice.
double NetworkRate(const MachineProfile& machine) {
  constexpr double kRate = 12.5e9;
  return machine.network > 0.0 ? machine.network : kRate;
}
double NetworkLatency(const MachineProfile& machine) {
  constexpr double kLatency = 50e-6;
  return machine.network_sum_seconds > 0.0 ? machine.network_sum_seconds : kLatency;
}

void Slow(Curve* curve, double share) {
  for (auto& [size, rate] : curve->points) rate *= share;
}

// By threads, of which each rank has a part, as of what they read.
void Divide(Curve* curve, double ranks) {
  for (auto& [threads, rate] : curve->points) {
    threads /= ranks;
    rate /= ranks;
  }
}

void Limit(Curve* curve, double most) {
  if (most > 0.0 && most < curve->Peak()) Slow(curve, most / curve->Peak());
}

// All buses and all cores at a time have one memory: what that gives was measured, or each has its
// part of what one bus leaves to the cores, where these are all GPUs'. Where they are one's, as
// many for each read no more by themselves than all take together.
void ShareHost(double ranks, MachineProfile* own) {
  if (!own->own_memory || own->gpus > 1.0) {
    Divide(&own->host_read, ranks);
    Divide(&own->host_read_copying, ranks);
  } else if (own->cores_copying > 0.0) {
    Limit(&own->host_read, own->cores_copying / ranks + own->buses_reading);
  }
  Limit(&own->host_read_copying, own->cores_copying / ranks);
}

// Where ranks compute with the host's cores.
void ShareDevice(double ranks, MachineProfile* own) {
  const double share = 1.0 / ranks;
  for (Curve* curve : {&own->gemm, &own->attention, &own->decode_attention, &own->selection,
                       &own->second_look, &own->host_to_device, &own->device_to_host}) {
    Slow(curve, share);
  }
  for (double* rate :
       {&own->device_read, &own->prompt_scores, &own->listed_decode, &own->listed_attention,
        &own->moved_attention, &own->coded_listed_attention, &own->coded_moved_attention,
        &own->both_directions, &own->read_in_place, &own->host_to_device_reading}) {
    *rate *= share;
  }
}

}  // namespace

MachineProfile MachineOfRank(const MachineProfile& machine, const RankGroup& group) {
  MachineProfile own = machine;
  const double ranks = group.of_node();
  if (ranks < 2.0) return own;
  if (!machine.own_memory) ShareDevice(ranks, &own);
  ShareHost(ranks, &own);
  if (machine.buses <= 0.0 || machine.host_to_device.empty()) return own;
  const double share = std::min(1.0, machine.buses / machine.host_to_device.Peak());
  Slow(&own.host_to_device, share);
  Slow(&own.device_to_host, share);
  own.both_directions *= share;
  own.read_in_place *= share;
  own.host_to_device_reading *= share;
  if (machine.buses_reading > 0.0) {
    own.host_to_device_reading = std::min(own.host_to_device_reading, machine.buses_reading);
  }
  return own;
}

int PiecesOfSum(int64_t rows, int64_t rows_of_sum) {
  constexpr int64_t kMost = 4;
  return static_cast<int>(std::clamp<int64_t>(rows / rows_of_sum, 1, kMost));
}

double SumSeconds(const MachineProfile& machine, const RankGroup& group, double bytes) {
  const double of_node = group.of_node();
  const double nodes = group.nodes;
  double seconds = 0.0;
  if (of_node > 1.0) {
    seconds += SumLatency(machine) + 2.0 * (of_node - 1.0) / of_node * bytes / LinkRate(machine);
  }
  if (nodes > 1.0) {
    seconds += NetworkLatency(machine) + 2.0 * (nodes - 1.0) / nodes * bytes / NetworkRate(machine);
  }
  return seconds;
}

double GatherSeconds(const MachineProfile& machine, const RankGroup& group, double bytes) {
  const double of_node = group.of_node();
  double seconds = 0.0;
  if (of_node > 1.0) {
    seconds += SumLatency(machine) + (group.ranks - 1.0) * bytes / LinkRate(machine);
  }
  if (group.nodes > 1) {
    seconds += NetworkLatency(machine) + (group.ranks - of_node) * bytes / NetworkRate(machine);
  }
  return seconds;
}

}  // namespace headway::plan
