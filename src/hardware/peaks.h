// Peaks: the few rates that `bench` holds what it measured against.
#ifndef HEADWAY_HARDWARE_PEAKS_H_
#define HEADWAY_HARDWARE_PEAKS_H_

#include <cstdint>
#include <optional>
#include <string>

#include "base/env.h"
#include "hardware/links.h"
#include "hardware/meter.h"
#include "headway/machine.h"
#include "headway/status.h"

namespace headway::hardware {

struct PeakOptions {
  Target target;
  std::optional<int> host_threads;  // that read memory beside copies; none: not measured
  LinkMeter links;                  // of ranks with a GPU each; null: there is one
  std::string disk_directory;
  int64_t disk_bytes = 0;
};
// What GPUs that copy at a time have of the host's memory, in place of one by itself.
void ShareHost(const LinkRates& rates, MachinePeaks* peaks);

Result<MachinePeaks> MeasurePeaks(Env& env, const PeakOptions& options);

}  // namespace headway::hardware

#endif  // HEADWAY_HARDWARE_PEAKS_H_
