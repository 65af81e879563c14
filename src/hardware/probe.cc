#include "hardware/probe.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/log.h"
#include "hardware/profile_json.h"
#include "hardware/profiles.h"
#include "hardware/rates.h"

#ifndef HEADWAY_VERSION
#error "the build defines HEADWAY_VERSION"
#endif

namespace headway::hardware {
namespace {

constexpr double kSecondsEach = 0.25;
constexpr double kQuickSecondsEach = 0.008;
constexpr double kLeastShare = 0.01;  // of what can be read, that attention reads
constexpr double kMostShare = 1.0;

// Measures into a machine, and keeps the first error.
class Measuring {
 public:
  Measuring(Meter& meter, const ProbeOptions& options, MachineProfile* machine)
      : meter_(meter),
        sizes_(meter.sizes()),
        quick_(options.depth == Depth::kQuick),
        host_attention_(options.host_attention),
        machine_(*machine) {}

  Status status() const { return status_; }

  void Device() {
    const double big = 2.0 * static_cast<double>(sizes_.out * sizes_.in);
    const double seconds = Take(meter_.ProductSeconds(1, sizes_.out));
    machine_.device_read = seconds > 0.0 ? big / seconds : 0.0;
    // What is left of a small product when its bytes are taken off.
    const int64_t few = sizes_.out / 16;
    const double small = Take(meter_.ProductSeconds(1, few));
    machine_.product_seconds = std::max(0.0, small - seconds / 16.0);
    for (int64_t rows : quick_ ? std::vector<int64_t>{sizes_.rows / 8, sizes_.rows}
                               : std::vector<int64_t>{16, 64, 128, 512, 2048, 8192}) {
      if (rows < 8 || rows > sizes_.rows) continue;
      // `big` are also the FLOPs of a row: seconds for each of them make the rate FLOP/s.
      Add(&machine_.gemm, static_cast<double>(rows),
          Take(meter_.ProductSeconds(rows, sizes_.out)) / big);
    }
    machine_.launch_seconds = Take(meter_.LaunchSeconds());
    machine_.sync_seconds = std::max(0.0, Take(meter_.SyncSeconds()) - machine_.launch_seconds);
  }

  void Attention() {
    const double of_pair = 4.0 * static_cast<double>(sizes_.keys) * sizes_.head_dim;
    for (const auto& [tokens, heads] :
         quick_
             ? std::vector<std::pair<int64_t, int>>{{sizes_.rows, sizes_.heads}}
             : std::vector<std::pair<int64_t, int>>{
                   {256, 1}, {sizes_.rows / 4, 1}, {sizes_.rows, 1}, {sizes_.rows, sizes_.heads}}) {
      const auto rows = static_cast<double>(tokens * heads * sizes_.group);
      Add(&machine_.attention, rows, Take(meter_.AttentionSeconds(tokens, heads)) / of_pair);
    }
    for (int64_t keys : quick_ ? std::vector<int64_t>{1024, sizes_.most_keys}
                               : std::vector<int64_t>{64, 1024, 8192, 32768, sizes_.most_keys}) {
      Add(&machine_.decode_attention,
          static_cast<double>(keys) * 4.0 * sizes_.heads * sizes_.head_dim,
          Take(meter_.DecodeSeconds(keys)));
    }
  }

  // Choosing writes over what products read, and so comes last.
  void Selection() {
    using Looks = Meter::Looks;
    using Pages = Meter::ListedPages;
    const int64_t most = 8 * sizes_.most_keys;
    double once = 0.0;
    for (int64_t keys : quick_ ? std::vector<int64_t>{sizes_.most_keys}
                               : std::vector<int64_t>{most / 64, sizes_.most_keys, most}) {
      const double seconds = Take(meter_.ChoiceSeconds(1, keys, Looks::kOne));
      if (keys == sizes_.most_keys) once = seconds;
      Add(&machine_.selection, meter_.ChoiceBytes(keys), seconds);
    }
    // What two looks take beyond one.
    const double twice = Take(meter_.ChoiceSeconds(1, sizes_.most_keys, Looks::kTwo));
    Add(&machine_.second_look, meter_.CandidateBytes(sizes_.most_keys),
        std::max(twice - once, kLeastShare * once));
    const int64_t tokens = std::min<int64_t>(sizes_.rows, 2048);
    const int64_t keys = sizes_.most_keys / 2;
    const double query_heads = sizes_.heads * sizes_.group;
    const double scores = static_cast<double>(CeilDiv(tokens, kPoolRows) * keys / 16) * query_heads;
    machine_.prompt_scores = scores / Take(meter_.ChoiceSeconds(tokens, keys, Looks::kOne));
    const double flops =
        4.0 * meter_.ListedKeys(keys) * static_cast<double>(tokens) * query_heads * sizes_.head_dim;
    const auto rate = [&](Pages pages, Encoding encoding) {
      return flops / Take(meter_.ListedSeconds(tokens, keys, pages, encoding));
    };
    machine_.listed_attention = rate(Pages::kDevice, Encoding::kNone);
    machine_.moved_attention = rate(Pages::kMoved, Encoding::kNone);
    machine_.coded_listed_attention = rate(Pages::kDevice, Encoding::kInt8);
    machine_.coded_moved_attention = rate(Pages::kMoved, Encoding::kInt8);
    // A GPU's choices by keys take what reading them does, and so does its attention to chosen
    // ones.
    const double bytes = meter_.ListedKeys(keys) * 4.0 * sizes_.heads * sizes_.head_dim;
    if (!machine_.own_memory) {
      machine_.listed_decode = bytes / Take(meter_.ListedSeconds(1, keys, Pages::kDevice));
      return Stages();
    }
    machine_.read_in_place = bytes / Take(meter_.ListedSeconds(1, keys, Pages::kHost));
  }

  // Choosing by keys, for one row and for those of a prompt that have a list.
  void Stages() {
    using StageKeys = Meter::StageKeys;
    const double bytes = meter_.StageBytes(sizes_.most_keys);
    for (const int64_t rows : {int64_t{1}, kSelectRows}) {
      for (const StageKeys how : {StageKeys::kAsTheyLie, StageKeys::kTurned}) {
        Curve& curve = how == StageKeys::kTurned ? machine_.turned_key_choice : machine_.key_choice;
        const double rate = bytes / Take(meter_.StagesSeconds(rows, sizes_.most_keys, how));
        Add(&curve, static_cast<double>(rows), static_cast<double>(rows) / rate);
      }
    }
  }

  void Copies() {
    std::vector<int64_t> sizes = {4 * kKiB, 256 * kKiB, kMiB, 4 * kMiB, sizes_.copy_bytes / 4};
    if (quick_) sizes = {kMiB, sizes_.copy_bytes / 4};
    for (int64_t bytes : sizes) {
      const auto x = static_cast<double>(bytes);
      Add(&machine_.host_to_device, x, Take(meter_.CopySeconds(Lane::kHostToDevice, bytes)));
      Add(&machine_.device_to_host, x, Take(meter_.CopySeconds(Lane::kDeviceToHost, bytes)));
    }
    machine_.both_directions = Take(meter_.BothDirections());
  }

  void Host(int threads) {
    std::vector<int> counts = {threads};
    if (!quick_) counts = {1, threads / 4, threads / 2, threads * 3 / 4, threads};
    const bool bus = machine_.own_memory;
    int before = 0;
    for (int count : counts) {
      if (count <= before) continue;
      before = count;
      const Meter::HostRate alone = Take(meter_.ReadHost(count, Meter::Beside::kNothing));
      machine_.host_read.points.emplace_back(count, alone.bytes_per_second);
      if (!bus) continue;
      const int beside = Beside(count, threads);
      const Meter::HostRate shared = Take(meter_.ReadHost(beside, Meter::Beside::kCopies));
      std::vector<std::pair<double, double>>& points = machine_.host_read_copying.points;
      if (points.empty() || points.back().first < beside) {
        points.emplace_back(beside, shared.bytes_per_second);
      }
    }
    if (!bus) machine_.host_read_copying = machine_.host_read;
    const Meter::HostRate attention = Take(meter_.AttendOnHost(
        bus ? Beside(threads, threads) : threads,
        bus ? Meter::Beside::kCopies : Meter::Beside::kNothing, host_attention_));
    // What noise adds to it is no part of a profile.
    machine_.host_attention = std::clamp(
        attention.bytes_per_second / machine_.host_read_copying.Peak(), kLeastShare, kMostShare);
    machine_.host_to_device_reading =
        bus ? attention.copied_per_second : machine_.host_to_device.Peak();
  }

  // Their errors are not the probe's.
  Status Links(Env& env, const LinkMeter& meter) {
    const Result<LinkRates> rates = meter(env);
    if (!rates.ok()) return rates.status();
    machine_.gpus = rates->gpus;
    machine_.sum_seconds = SumLatency(*rates);
    machine_.link = LinkRate(*rates);
    machine_.buses = rates->bus;
    machine_.buses_reading = rates->bus_reading;
    machine_.cores_copying = rates->cores;
    return OkStatus();
  }

  // Its errors are not the probe's.
  Status Disk(Env& env, ThreadPool& pool, const std::string& directory) {
    const std::vector<int64_t> pieces = {4 * kKiB, 16 * kKiB, 64 * kKiB, 256 * kKiB};
    const Result<DiskRates> rates =
        MeasureDisk(env, pool, {directory, std::numeric_limits<int64_t>::max(), pieces});
    if (!rates.ok()) return rates.status();
    machine_.disk_read = rates->read;
    machine_.disk_write = rates->write;
    for (size_t i = 0; i < rates->pieces.size(); ++i) {
      Add(&machine_.disk_pieces, static_cast<double>(pieces[i]), rates->pieces[i]);
    }
    return OkStatus();
  }

 private:
  double Take(const Result<double>& seconds) {
    if (!seconds.ok() && status_.ok()) status_ = seconds.status();
    return seconds.ok() ? std::max(*seconds, 1e-9) : 1.0;
  }

  Meter::HostRate Take(const Result<Meter::HostRate>& rate) {
    if (!rate.ok() && status_.ok()) status_ = rate.status();
    return rate.ok() ? *rate : Meter::HostRate{1.0, 1.0};
  }

  // One core drives the copies; reading on all would only take turns with it.
  static int Beside(int count, int threads) {
    return count == threads && threads > 1 ? count - 1 : count;
  }

  // A point of a curve. Noise may make more work seem to take less time, which a profile must not
  // hold: it then takes as long as less work did.
  static void Add(Curve* curve, double size, double seconds) {
    if (!curve->empty()) {
      const auto& [before, rate] = curve->points.back();
      if (size <= before) return;
      seconds = std::max(seconds, before / rate * (1.0 + 1e-9));
    }
    curve->points.emplace_back(size, size / seconds);
  }

  Meter& meter_;
  const MeterSizes& sizes_;
  const bool quick_;
  const HostAttentionMaker& host_attention_;
  MachineProfile& machine_;
  Status status_;
};

}  // namespace

Result<MachineProfile> MeasureProfile(Env& env, const ProbeOptions& options) {
  const bool quick = options.depth == Depth::kQuick;
  Result<std::unique_ptr<Meter>> made =
      Meter::Create(env, options.target, quick ? kQuickSecondsEach : kSecondsEach);
  if (!made.ok()) return made.status();
  const BackendInfo& info = (*made)->info();
  ThreadPool pool(options.target.pool_threads());
  MachineProfile machine;
  machine.own_memory = info.own_memory;
  machine.hardware = HardwareKey(info, pool.threads());
  machine.program = HEADWAY_VERSION;
  machine.name = machine.hardware;
  if (!info.name.empty()) machine.devices = {info.name};
  machine.host_memory = HostMemory(env);
  machine.device_memory = info.own_memory ? static_cast<double>(info.memory) : machine.host_memory;
  machine.step_seconds = 15e-6;
  Measuring measuring(**made, options, &machine);
  measuring.Device();
  measuring.Attention();
  measuring.Copies();
  measuring.Host(pool.threads());
  measuring.Selection();
  if (!measuring.status().ok()) return measuring.status();
  if (!quick) {
    const Status disk = measuring.Disk(env, pool, options.disk_directory);
    if (!disk.ok()) {
      Log(LogLevel::kWarning, "the disk was not measured: " + disk.message());
    }
    const Status links =
        options.links == nullptr ? OkStatus() : measuring.Links(env, options.links);
    if (!links.ok()) {
      Log(LogLevel::kWarning, "links between GPUs were not measured: " + links.message());
    }
  }
  for (const ProfileFigure& figure : DescribeProfile(machine)) {
    if (figure.value != "not measured") machine.sources[figure.name] = "measured";
  }
  machine.sources["step_seconds"] = "assumption";
  machine.sources["device_memory_bytes"] = machine.sources["host_memory_bytes"] = "the system";
  return machine;
}

}  // namespace headway::hardware
