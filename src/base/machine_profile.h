// MachineProfile: what a machine does at best, as a value: the planner's only knowledge of
// hardware. The room hardware measures profiles and reads them. Rates are bytes or FLOPs a second,
// times are seconds.
#ifndef HEADWAY_BASE_MACHINE_PROFILE_H_
#define HEADWAY_BASE_MACHINE_PROFILE_H_

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace headway {

// A rate that grows with the size of the work: points (size, rate), sizes ascending. Between two
// points time grows linearly with size, below the first and above the last the rate stays. A curve
// of one point is a constant rate.
struct Curve {
  std::vector<std::pair<double, double>> points;

  bool empty() const { return points.empty(); }
  // Of one unit of work of this size; 0 for an empty curve or no work.
  double Seconds(double size) const;
  double Rate(double size) const;
  // The rate of the largest size.
  double Peak() const { return points.empty() ? 0.0 : points.back().second; }
};

struct MachineProfile {
  std::string name;                  // for people: "NVIDIA H200 141 GB, PCIe 5 x16"
  std::vector<std::string> devices;  // GPUs that it stands for, as the driver spells them
  bool own_memory = true;            // the device has memory of its own, behind a bus
  // Of a probe: the hardware and the program that it was made with. Empty in profiles by hand.
  std::string hardware;
  std::string program;
  std::map<std::string, std::string> sources;  // of each figure, by its name in the JSON

  // Bytes. What is free of them is not known here: budgets say what may be used.
  double device_memory = 0.0;
  double host_memory = 0.0;

  // The device.
  double device_read = 0.0;      // bytes of weights a second in a matrix × vector product
  double product_seconds = 0.0;  // that a product takes beside moving its bytes
  Curve gemm;                    // FLOP/s of a matrix product, by its rows
  Curve attention;         // FLOP/s of prefill attention, by query rows (tokens × query heads)
  Curve decode_attention;  // bytes of keys and values a second, by the bytes of one launch, its
                           // merge among it
  // Choosing keys, and attending to what is listed; nothing: not measured.
  Curve selection;    // bytes of summaries a second that a decode scores and lists, by the bytes
                      // of one choice
  Curve second_look;  // bytes of summaries and sketches of candidates, likewise
  // Bytes of keys a second that are read in stages to choose, by the rows that choose together:
  // one, or those that have a list of a prompt. And where the keys' rotation is undone.
  Curve key_choice, turned_key_choice;
  double prompt_scores = 0.0;     // of a block for a pooled query, a second, with the lists
  double listed_decode = 0.0;     // bytes a second of listed keys and values that a decode reads
  double listed_attention = 0.0;  // FLOP/s of a prompt's attention to listed blocks
  double moved_attention = 0.0;   // the same where these are rotated as they are attended to
  double coded_listed_attention = 0.0, coded_moved_attention = 0.0;  // of encoded pages
  double launch_seconds = 0.0;  // from the end of one small kernel to the end of the next
  double sync_seconds = 0.0;    // from the end of a kernel until the host knows
  double step_seconds = 0.0;    // of a step beside all else: what the host does between two

  // The bus; where the device's memory is the host's, copies within it. By the bytes of one copy.
  Curve host_to_device;
  Curve device_to_host;
  double both_directions = 0.0;  // bytes a second each way, when both are busy
  double read_in_place = 0.0;    // by kernels of the device, of the host's memory; 0: not measured

  // The host, by threads.
  Curve host_read;                      // bytes a second
  Curve host_read_copying;              // the same while copies run
  double host_to_device_reading = 0.0;  // bytes a second of the copies, beside CPU attention
  double host_attention = 0.0;          // share of what can be read that CPU attention reaches

  // Between GPUs that each have a part of a model; 0: not known.
  double gpus = 0.0;                 // that the host's cores and memory above are for; 0: one
  double link = 0.0;                 // bytes a second each way, of one GPU to others of its node
  double sum_seconds = 0.0;          // that a sum over a node takes beside moving its bytes
  double buses = 0.0;                // bytes a second from the host to each GPU, while all copy
  double buses_reading = 0.0;        // the same while all cores read
  double cores_copying = 0.0;        // bytes a second that these read meanwhile
  double network = 0.0;              // bytes a second each way, of one node to others
  double network_sum_seconds = 0.0;  // likewise, over nodes

  double disk_read = 0.0;  // bytes a second; 0: no disk, or not measured
  double disk_write = 0.0;
  // Bytes a second of small reads from anywhere, as many at a time as lists ask for, by the bytes
  // of one; nothing: not measured, and as fast as disk_read.
  Curve disk_pieces;
};

}  // namespace headway

#endif  // HEADWAY_BASE_MACHINE_PROFILE_H_
