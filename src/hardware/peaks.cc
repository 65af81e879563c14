#include "hardware/peaks.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "base/log.h"
#include "device/cpu/cpu_device.h"
#include "hardware/rates.h"
#include "kernels/backend/backend.h"

namespace headway::hardware {
namespace {

Result<double> MeasureGemm(Env& env, const std::string& isa, ThreadPool& pool) {
  constexpr int64_t kIn = 4096, kOut = 4096;
  const int64_t rows = int64_t{512} * pool.threads();  // enough that no thread waits for long
  Budget budget("memory", kUnlimited);  // outlives the kernels, whose scratch memory it counts
  Result<std::unique_ptr<Backend>> backend = NewBackend("cpu", isa);
  if (!backend.ok()) return backend.status();
  Result<std::unique_ptr<Kernels>> kernels = (*backend)->NewKernels(&pool, nullptr);
  if (!kernels.ok()) return kernels.status();
  const std::unique_ptr<Device> device = NewCpuDevice(&env, nullptr);
  const Result<std::unique_ptr<Stream>> stream = device->NewStream(Lane::kCompute);
  if (!stream.ok()) return stream.status();
  KernelLimits limits;
  limits.rows = rows;
  limits.max_in = kIn;
  limits.max_out = kOut;
  limits.head_dim = 64;
  limits.group = 1;
  if (Status s = (*kernels)->Prepare(limits, *device, budget); !s.ok()) return s;
  Result<std::unique_ptr<Buffer>> memory =
      device->Allocate(budget, (rows * (kIn + kOut)) * sizeof(float) + kOut * kIn * 2, "peaks");
  if (!memory.ok()) return memory.status();
  auto* x = reinterpret_cast<float*>((*memory)->data());
  float* y = x + rows * kIn;
  for (int64_t i = 0; i < rows * kIn; ++i) x[i] = static_cast<float>(i % 251) * 0.01f - 1.25f;
  auto* weight = reinterpret_cast<uint16_t*>(y + rows * kOut);
  for (int64_t i = 0; i < kOut * kIn; ++i) weight[i] = static_cast<uint16_t>(0x3d00 + i % 509);
  LinearOp op;
  op.weight = {reinterpret_cast<const std::byte*>(y + rows * kOut), DType::kBF16, kOut, kIn};
  op.y = y;
  op.y_stride = kOut;
  const double seconds = BestSeconds(env, 9, [&] {
    (*kernels)->Linear(**stream, x, rows, {&op, 1});
    (*stream)->Synchronize().ok();
  });
  if (Status s = (*stream)->status(); !s.ok()) return s;
  return 2.0 * rows * kIn * kOut / seconds;
}

// A device with its own memory.
Result<MachinePeaks> MeasureAccelerator(Env& env, const PeakOptions& options) {
  Result<std::unique_ptr<Meter>> made = Meter::Create(env, options.target, /*seconds=*/0.4);
  if (!made.ok()) return made.status();
  Meter& meter = **made;
  const MeterSizes& sizes = meter.sizes();
  const auto weights = static_cast<double>(sizes.out * sizes.in);
  const auto attention = 4.0 * static_cast<double>(sizes.rows * sizes.keys) * sizes.heads *
                         sizes.group * sizes.head_dim;
  const auto copied = static_cast<double>(sizes.copy_bytes);
  MachinePeaks peaks;
  struct {
    double* rate;
    double work;
    Result<double> seconds;
  } measured[] = {{&peaks.read_bytes_per_second, 2.0 * weights, meter.ProductSeconds(1, sizes.out)},
                  {&peaks.gemm_flops_per_second, 2.0 * weights * static_cast<double>(sizes.rows),
                   meter.ProductSeconds(sizes.rows, sizes.out)},
                  {&peaks.attention_flops_per_second, attention,
                   meter.AttentionSeconds(sizes.rows, sizes.heads)},
                  {&peaks.host_to_device_bytes_per_second, copied,
                   meter.CopySeconds(Lane::kHostToDevice, sizes.copy_bytes)},
                  {&peaks.device_to_host_bytes_per_second, copied,
                   meter.CopySeconds(Lane::kDeviceToHost, sizes.copy_bytes)}};
  for (const auto& figure : measured) {
    if (!figure.seconds.ok()) return figure.seconds.status();
    *figure.rate = figure.work / *figure.seconds;
  }
  if (options.host_threads.has_value()) {
    Result<Meter::HostRate> beside = meter.ReadHost(*options.host_threads, Meter::Beside::kCopies);
    if (!beside.ok()) return beside.status();
    peaks.host_read_bytes_per_second = beside->bytes_per_second;
    peaks.shared_host_to_device_bytes_per_second = beside->copied_per_second;
  }
  if (options.links == nullptr) return peaks;
  const Result<LinkRates> rates = options.links(env);
  if (rates.ok()) {
    ShareHost(*rates, &peaks);
  } else {
    Log(LogLevel::kWarning, "what GPUs have of the host's memory at a time was not measured: " +
                                rates.status().message());
  }
  return peaks;
}

}  // namespace

void ShareHost(const LinkRates& rates, MachinePeaks* peaks) {
  peaks->copying_gpus = rates.gpus;
  const double share = std::min(1.0, rates.bus / peaks->host_to_device_bytes_per_second);
  peaks->host_to_device_bytes_per_second *= share;
  peaks->device_to_host_bytes_per_second *= share;
  if (peaks->host_read_bytes_per_second == 0.0) return;
  peaks->host_read_bytes_per_second = rates.cores;
  peaks->shared_host_to_device_bytes_per_second = rates.bus_reading;
}

Result<MachinePeaks> MeasurePeaks(Env& env, const PeakOptions& options) {
  const Target& target = options.target;
  ThreadPool pool(target.pool_threads());
  Result<DiskRates> disk = MeasureDisk(env, pool, {options.disk_directory, options.disk_bytes, {}});
  if (!disk.ok()) return disk.status();
  Result<std::unique_ptr<Backend>> backend = NewBackend(target.device, target.isa_name());
  if (!backend.ok()) return backend.status();
  MachinePeaks peaks;
  if ((*backend)->info().own_memory) {
    Result<MachinePeaks> measured = MeasureAccelerator(env, options);
    if (!measured.ok()) return measured;
    peaks = *measured;
  } else {
    Result<double> read = MeasureRead(env, pool);
    if (!read.ok()) return read.status();
    Result<double> gemm = MeasureGemm(env, target.isa_name(), pool);
    if (!gemm.ok()) return gemm.status();
    peaks.read_bytes_per_second = *read;
    peaks.gemm_flops_per_second = *gemm;
  }
  peaks.disk_read_bytes_per_second = disk->read;
  return peaks;
}

}  // namespace headway::hardware
