// What the host's cores reach in its memory, alone and while copies go to the device.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/exceptions.h"
#include "device/cpu/cpu_device.h"
#include "hardware/meter.h"
#include "hardware/rates.h"

namespace headway::hardware {
namespace {

constexpr int64_t kQuickScanBytes = 256 * kMiB;
constexpr int64_t kCopyStep = 32 * kMiB;

}  // namespace

Result<Meter::HostRate> Meter::RateOf(const std::function<Status()>& work, int64_t bytes,
                                      Beside beside) {
  const bool copying = beside == Beside::kCopies;
  std::atomic<int64_t> copied = 0;
  Status status, copy_status;
  const auto copy = [&](const std::stop_token& stop) -> Status {
    // In the thread that copies: a new stream makes its GPU that of the thread.
    const Result<std::unique_ptr<Stream>> stream = device_->NewStream(Lane::kHostToDevice);
    Status done = stream.status();
    const int64_t step = std::min(kCopyStep, sizes_.copy_bytes);
    while (done.ok() && !stop.stop_requested()) {
      for (int i = 0; i < 4; ++i) {
        (*stream)->Copy(memory_->data(), pinned_->data(), static_cast<size_t>(step));
      }
      done = (*stream)->Synchronize();
      copied += 4 * step;
    }
    return done;
  };
  std::jthread copier;  // stops and is waited for wherever this function is left
  if (copying) {
    status = Guarded([&] {
      copier = std::jthread(
          [&](const std::stop_token& stop) { copy_status = Guarded([&] { return copy(stop); }); });
      return OkStatus();
    });
    if (!status.ok()) return status;
  }
  const auto work_for = [&](double seconds) {
    const int64_t start = env_.NowNanos();
    double elapsed = 0.0;
    int64_t times = 0;
    for (; elapsed < seconds && status.ok(); ++times) {
      status = work();
      elapsed = static_cast<double>(std::max<int64_t>(env_.NowNanos() - start, 1)) * 1e-9;
    }
    return std::pair(static_cast<double>(times * bytes), elapsed);
  };
  work_for(seconds_ / 2);
  const int64_t before = copied;
  const auto [moved, seconds] = work_for(seconds_);
  HostRate rate;
  rate.bytes_per_second = moved / seconds;
  rate.copied_per_second = static_cast<double>(copied - before) / seconds;
  if (copying) {
    copier.request_stop();
    copier.join();
  }
  if (!status.ok()) return status;
  if (!copy_status.ok()) return copy_status;
  return rate;
}

Result<std::unique_ptr<Buffer>> Meter::HostMemory(Device& cpu, ThreadPool& pool) {
  const int64_t bytes = seconds_ < kShortSeconds ? kQuickScanBytes : kBeyondCaches;
  Result<std::unique_ptr<Buffer>> memory =
      cpu.Allocate(budget_, static_cast<size_t>(bytes), "probe");
  if (!memory.ok()) return memory;
  FillMemory(pool, (*memory)->data(), bytes);
  return memory;
}

Result<Meter::HostRate> Meter::ReadHost(int threads, Beside beside) {
  ThreadPool pool(threads);
  const std::unique_ptr<Device> cpu = NewCpuDevice(&env_, nullptr);
  const Result<std::unique_ptr<Buffer>> memory = HostMemory(*cpu, pool);
  if (!memory.ok()) return memory.status();
  const auto bytes = static_cast<int64_t>((*memory)->size());
  const auto scan = [&] {
    ScanMemory(pool, (*memory)->data(), bytes);
    return OkStatus();
  };
  return RateOf(scan, bytes, beside);
}

Result<Meter::HostRate> Meter::AttendOnHost(int threads, Beside beside,
                                            const HostAttentionMaker& maker) {
  // As the engine's.
  ThreadPool pool(threads, std::chrono::milliseconds(1));
  const std::unique_ptr<Device> cpu = NewCpuDevice(&env_, nullptr);
  const Result<std::unique_ptr<Buffer>> memory = HostMemory(*cpu, pool);
  if (!memory.ok()) return memory.status();
  HostAttentionSetup setup;
  setup.shape.layers = 1;
  setup.shape.kv_heads = sizes_.heads;
  setup.shape.query_heads = sizes_.heads * sizes_.group;
  setup.shape.head_dim = sizes_.head_dim;
  setup.format = {DType::kBF16, kDefaultPageSlots, sizes_.head_dim};
  setup.keys = sizes_.keys;
  setup.activation = sizes_.activation;
  setup.isa = isa_;
  setup.pool = &pool;
  setup.device = device_.get();
  setup.budget = &budget_;
  // Layers of keys fill the memory.
  const int64_t layer_bytes = sizes_.keys * sizes_.heads * 4 * sizes_.head_dim;
  for (int64_t at = 0; at + layer_bytes <= static_cast<int64_t>((*memory)->size());
       at += layer_bytes) {
    setup.layers.push_back(Keys((*memory)->data() + at, sizes_.keys));
  }
  Result<AttendOnce> attend = maker(setup);
  if (!attend.ok()) return attend.status();
  return RateOf(*attend, layer_bytes * static_cast<int64_t>(setup.layers.size()), beside);
}

}  // namespace headway::hardware
