#include "engine/measure.h"

#include <string>
#include <utility>

#include "base/exceptions.h"
#include "base/thread_pool.h"
#include "engine/context.h"
#include "engine/metered_host_attention.h"
#include "engine/setup.h"
#include "hardware/peaks.h"
#include "hardware/profile_json.h"
#include "hardware/profiles.h"

namespace headway {

Result<MachineProfile> MeasureMachine(Env& env, const EngineOptions& options,
                                      hardware::Depth depth) {
  hardware::ProbeOptions probe;
  probe.target = {options.device, options.isa, options.threads};
  probe.host_attention = MeteredHostAttention;
  probe.depth = depth;
  probe.disk_directory = DiskDirectory(options);
  return hardware::MeasureProfile(env, probe);
}

Result<MachinePeaks> MeasurePeaks(const EngineOptions& options) try {
  if (Status s = CheckOptions(options); !s.ok()) return s;
  hardware::PeakOptions peaks;
  peaks.target = {options.device, options.isa, options.threads};
  if (options.host_share != 0.0) {
    const ThreadPool pool(options.threads);
    peaks.host_threads = HostThreads(options, pool.threads(), /*own_memory=*/true);
  }
  peaks.disk_directory = DiskDirectory(options);
  peaks.disk_bytes = options.disk_memory;
  return hardware::MeasurePeaks(*Env::Default(), peaks);
} catch (...) {
  return StatusOfException();
}

Result<MachineReport> ProbeMachine(const EngineOptions& options) try {
  if (Status s = CheckOptions(options); !s.ok()) return s;
  Env& env = *Env::Default();
  Result<MachineProfile> machine = MeasureMachine(env, options, hardware::Depth::kFull);
  if (!machine.ok()) return machine.status();
  MachineReport report;
  report.name = machine->name;
  report.json = hardware::WriteProfile(*machine);
  // What would not be read again is no profile: a clock that stood still, a broken driver.
  Result<MachineProfile> checked = hardware::ParseProfile(report.json, "what was measured");
  if (!checked.ok()) return checked.status();
  for (const hardware::ProfileFigure& figure : hardware::DescribeProfile(*machine)) {
    report.figures.push_back({figure.name, figure.meaning, figure.value, figure.source});
  }
  if (Status s = hardware::KeepProfile(env, *machine); s.ok()) {
    report.cached_at = hardware::KeptProfilePath(machine->hardware);
  } else {
    report.notices.push_back("the probe is not kept: " + s.message());
  }
  return report;
} catch (...) {
  return StatusOfException();
}

}  // namespace headway
