#include "engine/measure.h"

#include <algorithm>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/exceptions.h"
#include "base/thread_pool.h"
#include "engine/context.h"
#include "engine/metered_host_attention.h"
#include "engine/metered_links.h"
#include "engine/processes.h"
#include "hardware/peaks.h"
#include "hardware/profile_json.h"
#include "hardware/profiles.h"
#include "headway/engine.h"
#include "kernels/backend/backend.h"

namespace headway {
namespace {

// What a step of few tokens adds up, and a chunk of a prompt.
constexpr int64_t kSumBytes[] = {8 * kKiB, 128 * kMiB};

// Of GPUs that ranks have, with sums of so many bytes, beside each rank's part of the cores; null
// where there are not two.
hardware::LinkMeter LinksOf(const hardware::Target& target, std::vector<std::string> devices,
                            std::span<const int64_t> sums) {
  if (devices.size() < 2) return nullptr;
  return [target, devices = std::move(devices), sums](Env& env) {
    const int threads = ThreadPool(target.pool_threads()).threads();
    const int of_rank = std::max(1, threads / static_cast<int>(devices.size()));
    const int readers = HostThreads(target, of_rank, CoresBeside::kAccelerator);
    return MeterLinks(env, devices, {.sums = sums, .readers = readers});
  };
}

// Of ranks of this process that have shards. Those in other processes hold their own GPUs.
std::vector<std::string> DevicesOfRanks(const Settings& settings) {
  std::vector<std::string> devices;
  if (settings.ranks == 1 || JoinedProcesses() != nullptr) return devices;
  for (int rank = 0; rank < settings.ranks; ++rank) {
    Result<std::string> device = DeviceOfRank(settings.target.device, rank, settings.ranks);
    if (device.ok()) devices.push_back(std::move(*device));
  }
  return devices;
}

}  // namespace

Result<MachineProfile> MeasureMachine(Env& env, const Settings& settings, hardware::Depth depth) {
  hardware::ProbeOptions probe;
  probe.target = settings.target;
  probe.host_attention = MeteredHostAttention;
  probe.depth = depth;
  probe.disk_directory = settings.memory.disk_directory;
  if (depth == hardware::Depth::kFull) {
    probe.links = LinksOf(settings.target, DevicesToConnect(settings.target.device), kSumBytes);
  }
  return hardware::MeasureProfile(env, probe);
}

Result<MachinePeaks> MeasurePeaks(const EngineOptions& options) try {
  Result<Settings> settings = ReadSettings(options);
  if (!settings.ok()) return settings.status();
  hardware::PeakOptions peaks;
  peaks.target = settings->target;
  if (settings->host_share != 0.0) {
    const ThreadPool pool(peaks.target.pool_threads());
    peaks.host_threads = HostThreads(peaks.target, pool.threads(), CoresBeside::kAccelerator);
  }
  peaks.links = LinksOf(peaks.target, DevicesOfRanks(*settings), {});
  peaks.disk_directory = settings->memory.disk_directory;
  peaks.disk_bytes = settings->memory.disk;
  return hardware::MeasurePeaks(*Env::Default(), peaks);
} catch (...) {
  return StatusOfException();
}

Result<MachineReport> ProbeMachine(const EngineOptions& options) try {
  Result<Settings> settings = ReadSettings(options);
  if (!settings.ok()) return settings.status();
  Env& env = *Env::Default();
  Result<MachineProfile> machine = MeasureMachine(env, *settings, hardware::Depth::kFull);
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
