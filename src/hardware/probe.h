// A machine's profile by measurement: what `headway probe` keeps.
#ifndef HEADWAY_HARDWARE_PROBE_H_
#define HEADWAY_HARDWARE_PROBE_H_

#include <string>

#include "base/env.h"
#include "base/machine_profile.h"
#include "hardware/host_attention.h"
#include "hardware/links.h"
#include "hardware/meter.h"
#include "headway/status.h"

namespace headway::hardware {

enum class Depth {
  kQuick,  // under a second: of each curve a point or two, and no disk
  kFull,   // ten seconds or twenty
};
struct ProbeOptions {
  Target target;
  HostAttentionMaker host_attention;
  Depth depth = Depth::kFull;
  std::string disk_directory;  // whose disk is measured
  LinkMeter links;             // null: there are none; a full probe calls it
};
Result<MachineProfile> MeasureProfile(Env& env, const ProbeOptions& options);

}  // namespace headway::hardware

#endif  // HEADWAY_HARDWARE_PROBE_H_
