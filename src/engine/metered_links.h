// Ranks on the GPUs of this machine as the room hardware measures them.
#ifndef HEADWAY_ENGINE_METERED_LINKS_H_
#define HEADWAY_ENGINE_METERED_LINKS_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/env.h"
#include "hardware/links.h"
#include "headway/status.h"

namespace headway {

// The GPUs that `device` means to a probe: all of this machine for "cuda", else none to connect.
std::vector<std::string> DevicesToConnect(const std::string& device);

struct LinkSizes {
  std::span<const int64_t> sums;  // bytes of each vector, ascending
  int64_t copied =
      int64_t{1} << 28;  // bytes of a copy, and of the matrix whose columns are gathered
  int readers = 0;       // threads of each rank that read as much of the host's memory beside
                         // copies, in whole MiB
};

// Sums, gathered columns and copies, on all of the devices at a time.
Result<hardware::LinkRates> MeterLinks(Env& env, std::span<const std::string> devices,
                                       const LinkSizes& sizes);

}  // namespace headway

#endif  // HEADWAY_ENGINE_METERED_LINKS_H_
