// What a machine can do, as it was measured.
#ifndef HEADWAY_MACHINE_H_
#define HEADWAY_MACHINE_H_

#include <string>
#include <vector>

namespace headway {

// Rates that `bench` holds what it measures against. 0: not measured.
struct MachinePeaks {
  double read_bytes_per_second = 0.0;  // memory that no cache holds; on a GPU by a large matrix
                                       // × vector product
  double gemm_flops_per_second = 0.0;  // of bf16 weights
  double attention_flops_per_second = 0.0;       // of many queries against many keys; on a GPU only
  double host_to_device_bytes_per_second = 0.0;  // from pinned memory
  double device_to_host_bytes_per_second = 0.0;
  int copying_gpus = 1;  // at a time, of each of which these are
  // What cores of the host read of its memory while copies to the devices run, and what these reach
  // then, each.
  double host_read_bytes_per_second = 0.0;
  double shared_host_to_device_bytes_per_second = 0.0;
  double disk_read_bytes_per_second = 0.0;  // past the page cache, where there is a budget for it
};

// What a probe found: the profile that plans are made by.
struct MachineReport {
  struct Figure {
    std::string name, meaning, value, source;
  };
  std::string name;
  std::string json;  // the profile, as --machine takes it
  std::vector<Figure> figures;
  std::string cached_at;  // empty where it could not be kept
  std::vector<std::string> notices;
};

}  // namespace headway

#endif  // HEADWAY_MACHINE_H_
