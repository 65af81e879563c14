// What the machine can do, measured with the kernels and the threads of an engine.
#include "engine/peaks.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <utility>

#include "base/bytes.h"
#include "base/env.h"
#include "base/half.h"
#include "base/random.h"
#include "base/thread_pool.h"
#include "device/cpu/cpu_device.h"
#include "engine/context.h"
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

Result<double> MeasureGemm(Env& env, const EngineOptions& options, ThreadPool& pool) {
  constexpr int64_t kIn = 4096, kOut = 4096;
  const int64_t rows = int64_t{512} * pool.threads();  // enough that no thread waits for long
  Budget budget("memory", kNoLimit);  // outlives the kernels, whose scratch memory it counts
  Result<std::unique_ptr<Backend>> backend = NewBackend("cpu", options.isa);
  if (!backend.ok()) return backend.status();
  Result<std::unique_ptr<Kernels>> kernels = (*backend)->NewKernels(&pool, nullptr);
  if (!kernels.ok()) return kernels.status();
  const std::unique_ptr<Device> device = NewCpuDevice(&env, nullptr);
  const std::unique_ptr<Stream> stream = device->NewStream(Lane::kCompute);
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
    (*kernels)->Linear(*stream, x, rows, {&op, 1});
    stream->Synchronize().ok();
  });
  if (Status s = stream->status(); !s.ok()) return s;
  return 2.0 * rows * kIn * kOut / seconds;
}

// Reads as the disk tier does: large pieces, many in flight, from all threads.
Result<double> MeasureDiskRead(Env& env, const EngineOptions& options, ThreadPool& pool) {
  constexpr int64_t kDepth = 16;  // pieces in flight of a thread
  constexpr int64_t kBatch = kDepth * kPieceBytes;
  const int64_t batches = std::min(kReadBytes, options.disk_memory) / kBatch;
  if (batches == 0) return 0.0;
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
  each(/*write=*/true);
  Status synced = (*file)->Sync();
  const double seconds = BestSeconds(env, 3, [&] { each(/*write=*/false); });
  env.FreeMemory(*memory, static_cast<size_t>(bytes));
  for (Status& s : statuses) {
    if (!s.ok()) return std::move(s);
  }
  if (!synced.ok()) return synced;
  return static_cast<double>(batches * kBatch) / seconds;
}

// --- A device with its own memory

// Its memory, stream and kernels, and data that is not zeros: those are multiplied faster.
class Accelerator {
 public:
  static Result<std::unique_ptr<Accelerator>> Create(Env& env, const EngineOptions& options);

  Result<double> MatVecBytes();
  Result<double> GemmFlops();
  Result<double> AttentionFlops();
  Result<double> CopyBytes(Lane lane);

 private:
  explicit Accelerator(Env& env) : env_(env) {}

  static constexpr int64_t kRows = 8192;
  static constexpr int64_t kIn = 4096;
  static constexpr int64_t kOut = 28672;
  static constexpr int64_t kWeights = 4;  // taken by turns, more than caches hold
  static constexpr int64_t kWeightBytes = kOut * kIn * 2;
  static constexpr int kHeads = 8, kGroup = 4, kHeadDim = 128;
  static constexpr int64_t kKeys = 32768;
  static constexpr int64_t kCopyBytes = 256 * kMiB;

  // Seconds of a product of so many rows with one of the weights.
  Result<double> ProductSeconds(int64_t rows, int count);
  // Seconds of one of `count` calls that follow one another for a while, as those of a long prefill
  // do: of a burst they would be fewer, before the GPU comes to the power that it may draw and its
  // clock falls. The mean of the second half.
  template <typename Work>
  Result<double> Seconds(Stream& stream, int count, const Work& work) {
    constexpr int64_t kWarmUpNanos = 400'000'000;
    constexpr int64_t kMeasureNanos = 400'000'000;
    const auto run_for = [&](int64_t nanos) -> Result<double> {
      const int64_t start = env_.NowNanos();
      int64_t calls = 0;
      while (env_.NowNanos() - start < nanos) {
        for (int i = 0; i < count; ++i) work(i);
        if (Status s = stream.Synchronize(); !s.ok()) return s;
        calls += count;
      }
      return static_cast<double>(env_.NowNanos() - start) * 1e-9 / static_cast<double>(calls);
    };
    if (Result<double> warm = run_for(kWarmUpNanos); !warm.ok()) return warm;
    return run_for(kMeasureNanos);
  }

  Env& env_;
  Budget budget_{"peaks", kUnlimited};
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Kernels> kernels_;
  std::unique_ptr<Stream> compute_;
  std::unique_ptr<Buffer> memory_;  // weights, x, y; keys and values are among the weights
  std::unique_ptr<Buffer> pinned_;
  ThreadPool pool_{1};
};

Result<std::unique_ptr<Accelerator>> Accelerator::Create(Env& env, const EngineOptions& options) {
  std::unique_ptr<Accelerator> a(new Accelerator(env));
  Result<std::unique_ptr<Backend>> backend = NewBackend(options.device, options.isa);
  if (!backend.ok()) return backend.status();
  a->backend_ = std::move(*backend);
  Result<std::unique_ptr<Device>> device = a->backend_->NewDevice(&env, nullptr, false);
  if (!device.ok()) return device.status();
  a->device_ = std::move(*device);
  Result<std::unique_ptr<Kernels>> kernels = a->backend_->NewKernels(&a->pool_, nullptr);
  if (!kernels.ok()) return kernels.status();
  a->kernels_ = std::move(*kernels);
  a->compute_ = a->device_->NewStream(Lane::kCompute);
  KernelLimits limits;
  limits.rows = kRows;
  limits.max_in = kIn;
  limits.max_out = kOut;
  limits.head_dim = kHeadDim;
  limits.group = kGroup;
  limits.query_heads = kHeads * kGroup;
  limits.activation = DType::kBF16;
  if (Status s = a->kernels_->Prepare(limits, *a->device_, a->budget_); !s.ok()) return s;
  const int64_t states = kRows * kHeads * kGroup * (kHeadDim + 1) * 4;
  const int64_t bytes = kWeights * kWeightBytes + kRows * (kIn + kOut) * 2 + states;
  Result<std::unique_ptr<Buffer>> memory =
      a->device_->Allocate(a->budget_, static_cast<size_t>(bytes), "peaks");
  if (!memory.ok()) return memory.status();
  a->memory_ = std::move(*memory);
  Result<std::unique_ptr<Buffer>> pinned =
      a->device_->AllocateHost(a->budget_, static_cast<size_t>(kCopyBytes), "peaks");
  if (!pinned.ok()) return pinned.status();
  a->pinned_ = std::move(*pinned);
  Random random(1);
  constexpr int64_t kPattern = int64_t{1} << 20;
  std::byte* pattern = a->pinned_->data();
  for (int64_t i = 0; i < kPattern; ++i) StoreFloat(pattern, i, DType::kBF16, random.Normal());
  for (int64_t at = kPattern * 2; at < kCopyBytes; at += kPattern * 2) {
    std::memcpy(pattern + at, pattern, kPattern * 2);
  }
  for (int64_t at = 0; at < bytes; at += kCopyBytes) {
    a->compute_->Copy(a->memory_->data() + at, pattern,
                      static_cast<size_t>(std::min(kCopyBytes, bytes - at)));
  }
  if (Status s = a->compute_->Synchronize(); !s.ok()) return s;
  return a;
}

Result<double> Accelerator::ProductSeconds(int64_t rows, int count) {
  std::byte* x = memory_->data() + kWeights * kWeightBytes;
  return Seconds(*compute_, count, [&](int i) {
    LinearOp op;
    op.weight = {memory_->data() + i % kWeights * kWeightBytes, DType::kBF16, kOut, kIn};
    op.y = x + kRows * kIn * 2;
    op.y_stride = kOut;
    kernels_->Linear(*compute_, x, rows, {&op, 1});
  });
}

Result<double> Accelerator::MatVecBytes() {
  Result<double> seconds = ProductSeconds(1, 64);
  if (!seconds.ok()) return seconds;
  return static_cast<double>(kWeightBytes) / *seconds;
}

Result<double> Accelerator::GemmFlops() {
  Result<double> seconds = ProductSeconds(kRows, 16);
  if (!seconds.ok()) return seconds;
  return 2.0 * kRows * kIn * kOut / *seconds;
}

Result<double> Accelerator::AttentionFlops() {
  const PageFormat format = {DType::kBF16, kDefaultPageSlots, kHeadDim};
  std::byte* x = memory_->data() + kWeights * kWeightBytes;
  AttentionItem item;
  item.q = x;
  item.q_stride = int64_t{kHeads} * kGroup * kHeadDim;
  item.tokens = kRows;
  item.q_position = kKeys;
  item.heads = kHeads;
  const int64_t head_bytes = kKeys * kHeadDim * 2;
  item.keys.pages = {.k = memory_->data(),
                     .v = memory_->data() + kHeads * head_bytes,
                     .page_stride = static_cast<int64_t>(format.bytes()),
                     .head_stride = head_bytes,
                     .count = kKeys,
                     .readable = kKeys};
  item.o = reinterpret_cast<float*>(x + kRows * (kIn + kOut) * 2);
  item.o_stride = item.q_stride;
  item.lse = item.o + kRows * item.q_stride;
  item.lse_stride = int64_t{kHeads} * kGroup;
  AttentionParams params;
  params.scale = 0.01f;  // far from a softmax of one key
  Result<double> seconds = Seconds(*compute_, 4, [&](int) {
    kernels_->Attend(*compute_, format, kGroup, params, {&item, 1});
  });
  if (!seconds.ok()) return seconds;
  return 4.0 * kRows * kKeys * kHeads * kGroup * kHeadDim / *seconds;
}

Result<double> Accelerator::CopyBytes(Lane lane) {
  const std::unique_ptr<Stream> stream = device_->NewStream(lane);
  Result<double> seconds = Seconds(*stream, 4, [&](int) {
    const bool up = lane == Lane::kHostToDevice;
    stream->Copy(up ? memory_->data() : pinned_->data(), up ? pinned_->data() : memory_->data(),
                 static_cast<size_t>(kCopyBytes));
  });
  if (!seconds.ok()) return seconds;
  return static_cast<double>(kCopyBytes) / *seconds;
}

Result<MachinePeaks> MeasureAccelerator(Env& env, const EngineOptions& options) {
  Result<std::unique_ptr<Accelerator>> made = Accelerator::Create(env, options);
  if (!made.ok()) return made.status();
  Accelerator& a = **made;
  MachinePeaks peaks;
  const std::pair<double*, Result<double>> measured[] = {
      {&peaks.read_bytes_per_second, a.MatVecBytes()},
      {&peaks.gemm_flops_per_second, a.GemmFlops()},
      {&peaks.attention_flops_per_second, a.AttentionFlops()},
      {&peaks.host_to_device_bytes_per_second, a.CopyBytes(Lane::kHostToDevice)},
      {&peaks.device_to_host_bytes_per_second, a.CopyBytes(Lane::kDeviceToHost)}};
  for (const auto& [to, result] : measured) {
    if (!result.ok()) return result.status();
    *to = *result;
  }
  return peaks;
}

}  // namespace

Result<HostRates> MeasureHostRates(Env& env, ThreadPool& pool, Device& device, Budget& budget) {
  constexpr int64_t kCopyBytes = 32 * kMiB;
  constexpr int64_t kScanBytes = 256 * kMiB;  // more than caches hold
  constexpr int kCopies = 32;
  Result<std::unique_ptr<Buffer>> target = device.Allocate(budget, kCopyBytes, "measuring");
  if (!target.ok()) return target.status();
  Budget host_budget("measuring", kUnlimited);
  Result<std::unique_ptr<Buffer>> host =
      device.AllocateHost(host_budget, kCopyBytes + kScanBytes, "measuring");
  if (!host.ok()) return host.status();
  std::byte* const scanned = (*host)->data() + kCopyBytes;
  // Written first: pages that were never written share one page of zeros, which caches hold.
  pool.Run(kScanBytes / kPieceBytes, 1, [&](int, int64_t begin, int64_t end) {
    std::memset(scanned + begin * kPieceBytes, 1, static_cast<size_t>((end - begin) * kPieceBytes));
  });
  const std::unique_ptr<Stream> stream = device.NewStream(Lane::kHostToDevice);
  const std::unique_ptr<Event> copied = device.NewEvent();
  HostRates rates;
  for (int round = 0; round < 2; ++round) {  // the first warms up
    const int64_t start = env.NowNanos();
    for (int i = 0; i < kCopies; ++i) {
      stream->Copy((*target)->data(), (*host)->data(), kCopyBytes);
    }
    stream->Record(*copied);
    std::atomic<int> found = 0;
    int64_t bytes = 0;
    do {
      const int64_t at = bytes % kScanBytes;
      pool.Run(kCopyBytes / kPieceBytes, 1, [&](int, int64_t begin, int64_t end) {
        found += Scan(scanned + at + begin * kPieceBytes, (end - begin) * kPieceBytes) ? 1 : 0;
      });
      bytes += kCopyBytes;
    } while (!copied->Reached());
    if (Status s = stream->Synchronize(); !s.ok()) return s;
    const double seconds = static_cast<double>(std::max<int64_t>(1, env.NowNanos() - start)) * 1e-9;
    rates = {static_cast<double>(bytes) / seconds,
             static_cast<double>(kCopies * kCopyBytes) / seconds};
  }
  return rates;
}

Result<MachinePeaks> MeasurePeaks(const EngineOptions& options) {
  if (options.threads < 0 || options.threads > 1024) {
    return Status(StatusCode::kInvalidArgument, "threads must be 0 to 1024");
  }
  Env* env = Env::Default();
  ThreadPool pool(options.threads);
  Result<double> disk = MeasureDiskRead(*env, options, pool);
  if (!disk.ok()) return disk.status();
  Result<std::unique_ptr<Backend>> backend = NewBackend(options.device, options.isa);
  if (!backend.ok()) return backend.status();
  MachinePeaks peaks;
  if ((*backend)->info().own_memory) {
    Result<MachinePeaks> measured = MeasureAccelerator(*env, options);
    if (!measured.ok()) return measured;
    peaks = *measured;
    if (options.host_share != 0.0) {
      Budget budget("peaks", kUnlimited);
      Result<std::unique_ptr<Device>> device = (*backend)->NewDevice(env, nullptr, false);
      if (!device.ok()) return device.status();
      ThreadPool host_pool(HostThreads(options, pool.threads(), true));
      Result<HostRates> rates = MeasureHostRates(*env, host_pool, **device, budget);
      if (!rates.ok()) return rates.status();
      peaks.host_read_bytes_per_second = rates->read;
      peaks.shared_host_to_device_bytes_per_second = rates->bus;
    }
  } else {
    Result<double> read = MeasureRead(*env, pool);
    if (!read.ok()) return read.status();
    Result<double> gemm = MeasureGemm(*env, options, pool);
    if (!gemm.ok()) return gemm.status();
    peaks.read_bytes_per_second = *read;
    peaks.gemm_flops_per_second = *gemm;
  }
  peaks.disk_read_bytes_per_second = *disk;
  return peaks;
}

}  // namespace headway
