// What the machine can do, measured with the kernels and the threads of an engine.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <utility>

#include "base/bytes.h"
#include "base/env.h"
#include "base/exceptions.h"
#include "base/random.h"
#include "base/thread_pool.h"
#include "device/cpu/cpu_device.h"
#include "engine/context.h"
#include "engine/prober.h"
#include "engine/setup.h"
#include "headway/engine.h"

namespace headway {
namespace {

constexpr int64_t kReadBytes = 512 * kMiB;  // more than caches hold
constexpr int64_t kPieceBytes = kMiB;

// Reads every byte: memchr for what is not there, which the C library does with the widest vectors.
bool Scan(const std::byte* data, int64_t bytes) {
  return std::memchr(data, 0xFF, static_cast<size_t>(bytes)) != nullptr;
}

double BestSeconds(Env& env, int repeats, const std::function<void()>& work) {
  work();  // first touch, caches of the kernels
  int64_t best = kNoLimit;
  for (int i = 0; i < repeats; ++i) {
    const int64_t start = env.NowNanos();
    work();
    best = std::min(best, env.NowNanos() - start);
  }
  return static_cast<double>(std::max<int64_t>(best, 1)) * 1e-9;
}

Result<double> MeasureGemm(Env& env, const EngineOptions& options, ThreadPool& pool) {
  constexpr int64_t kIn = 4096, kOut = 4096;
  const int64_t rows = int64_t{512} * pool.threads();  // enough that no thread waits for long
  Budget budget("memory", kNoLimit);  // outlives the kernels, whose scratch memory it counts
  Result<std::unique_ptr<Backend>> backend = NewBackend("cpu", options.isa);
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
Result<MachinePeaks> MeasureAccelerator(Env& env, const EngineOptions& options, int threads) {
  Result<std::unique_ptr<Prober>> made = Prober::Create(env, options, /*seconds=*/0.4);
  if (!made.ok()) return made.status();
  Prober& prober = **made;
  const ProbeSizes& sizes = prober.sizes();
  const auto weights = static_cast<double>(sizes.out * sizes.in);
  const auto attention = 4.0 * static_cast<double>(sizes.rows * sizes.keys) * sizes.heads *
                         sizes.group * sizes.head_dim;
  const auto copied = static_cast<double>(sizes.copy_bytes);
  MachinePeaks peaks;
  struct {
    double* rate;
    double work;
    Result<double> seconds;
  } measured[] = {
      {&peaks.read_bytes_per_second, 2.0 * weights, prober.ProductSeconds(1, sizes.out)},
      {&peaks.gemm_flops_per_second, 2.0 * weights * static_cast<double>(sizes.rows),
       prober.ProductSeconds(sizes.rows, sizes.out)},
      {&peaks.attention_flops_per_second, attention,
       prober.AttentionSeconds(sizes.rows, sizes.heads)},
      {&peaks.host_to_device_bytes_per_second, copied,
       prober.CopySeconds(Lane::kHostToDevice, sizes.copy_bytes)},
      {&peaks.device_to_host_bytes_per_second, copied,
       prober.CopySeconds(Lane::kDeviceToHost, sizes.copy_bytes)}};
  for (const auto& figure : measured) {
    if (!figure.seconds.ok()) return figure.seconds.status();
    *figure.rate = figure.work / *figure.seconds;
  }
  if (options.host_share != 0.0) {
    Result<Prober::HostRate> beside =
        prober.ReadHost(HostThreads(options, threads, true), /*copying=*/true);
    if (!beside.ok()) return beside.status();
    peaks.host_read_bytes_per_second = beside->bytes_per_second;
    peaks.shared_host_to_device_bytes_per_second = beside->copied_per_second;
  }
  return peaks;
}

}  // namespace

Result<double> MeasureRead(Env& env, ThreadPool& pool) {
  Result<std::byte*> memory = env.AllocateMemory(static_cast<size_t>(kReadBytes));
  if (!memory.ok()) return memory.status();
  const int64_t pieces = kReadBytes / kPieceBytes;
  // Written first: pages that were never written share one page of zeros, which caches hold.
  pool.Run(pieces, 1, [&](int, int64_t begin, int64_t end) {
    std::memset(*memory + begin * kPieceBytes, 1, static_cast<size_t>((end - begin) * kPieceBytes));
  });
  std::atomic<int> found = 0;
  const double seconds = BestSeconds(env, 9, [&] {
    pool.Run(pieces, 1, [&](int, int64_t begin, int64_t end) {
      found += Scan(*memory + begin * kPieceBytes, (end - begin) * kPieceBytes) ? 1 : 0;
    });
  });
  env.FreeMemory(*memory, static_cast<size_t>(kReadBytes));
  return static_cast<double>(kReadBytes) / seconds;
}

Result<DiskRates> MeasureDisk(Env& env, const EngineOptions& options, ThreadPool& pool) {
  constexpr int64_t kDepth = 16;  // pieces in flight of a thread
  constexpr int64_t kBatch = kDepth * kPieceBytes;
  const int64_t batches = std::min(kReadBytes, options.disk_memory) / kBatch;
  if (batches == 0) return DiskRates{};
  Result<std::unique_ptr<File>> file =
      env.Open(DiskDirectory(options), OpenMode::kTemporary, /*direct=*/true);
  if (!file.ok()) return file.status();
  const int64_t bytes = pool.threads() * kBatch;
  Result<std::byte*> memory = env.AllocateMemory(static_cast<size_t>(bytes));
  if (!memory.ok()) return memory.status();
  Random random(1);
  for (int64_t i = 0; i < bytes; i += 8) {
    const uint64_t word = random.Next();
    std::memcpy(*memory + i, &word, sizeof(word));
  }
  std::vector<Status> statuses(static_cast<size_t>(pool.threads()));
  const auto each = [&](bool write) {
    pool.Run(batches, 1, [&](int thread, int64_t begin, int64_t end) {
      for (int64_t batch = begin; batch < end; ++batch) {
        std::array<IoPiece, kDepth> pieces;
        for (size_t i = 0; i < kDepth; ++i) {
          const int64_t at = static_cast<int64_t>(i) * kPieceBytes;
          pieces[i] = {*memory + thread * kBatch + at, kPieceBytes, batch * kBatch + at};
        }
        Status s = write ? (*file)->Write(pieces) : (*file)->Read(pieces);
        if (!s.ok()) statuses[static_cast<size_t>(thread)] = std::move(s);
      }
    });
  };
  const int64_t start = env.NowNanos();
  each(/*write=*/true);
  Status synced = (*file)->Sync();
  const double written = static_cast<double>(env.NowNanos() - start) * 1e-9;
  const double seconds = BestSeconds(env, 3, [&] { each(/*write=*/false); });
  env.FreeMemory(*memory, static_cast<size_t>(bytes));
  for (Status& s : statuses) {
    if (!s.ok()) return std::move(s);
  }
  if (!synced.ok()) return synced;
  const auto moved = static_cast<double>(batches * kBatch);
  return DiskRates{moved / seconds, moved / written};
}

Result<MachinePeaks> MeasurePeaks(const EngineOptions& options) try {
  if (Status s = CheckOptions(options); !s.ok()) return s;
  Env* env = Env::Default();
  ThreadPool pool(options.threads);
  Result<DiskRates> disk = MeasureDisk(*env, options, pool);
  if (!disk.ok()) return disk.status();
  Result<std::unique_ptr<Backend>> backend = NewBackend(options.device, options.isa);
  if (!backend.ok()) return backend.status();
  MachinePeaks peaks;
  if ((*backend)->info().own_memory) {
    Result<MachinePeaks> measured = MeasureAccelerator(*env, options, pool.threads());
    if (!measured.ok()) return measured;
    peaks = *measured;
  } else {
    Result<double> read = MeasureRead(*env, pool);
    if (!read.ok()) return read.status();
    Result<double> gemm = MeasureGemm(*env, options, pool);
    if (!gemm.ok()) return gemm.status();
    peaks.read_bytes_per_second = *read;
    peaks.gemm_flops_per_second = *gemm;
  }
  peaks.disk_read_bytes_per_second = disk->read;
  return peaks;
} catch (...) {
  return StatusOfException();
}

}  // namespace headway
