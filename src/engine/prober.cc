#include "engine/prober.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/exceptions.h"
#include "base/half.h"
#include "base/random.h"
#include "device/cpu/cpu_device.h"
#include "engine/paths/host_attention.h"
#include "kernels/cpu/cpu_kernels.h"

namespace headway {
namespace {

constexpr ProbeSizes kOfGpu = {.rows = 8192,
                               .in = 4096,
                               .out = 28672,
                               .weights = 4,
                               .heads = 8,
                               .group = 4,
                               .head_dim = 128,
                               .keys = 32768,
                               .most_keys = 131072,
                               .copy_bytes = 256 * kMiB,
                               .activation = DType::kBF16};
constexpr ProbeSizes kOfCpu = {.rows = 512,
                               .in = 2048,
                               .out = 2048,
                               .weights = 16,
                               .heads = 4,
                               .group = 2,
                               .head_dim = 128,
                               .keys = 2048,
                               .most_keys = 16384,
                               .copy_bytes = 32 * kMiB,
                               .activation = DType::kF32};

// More than caches hold: a server's have some hundred MiB. Where time is short, less.
constexpr int64_t kScanBytes = 1024 * kMiB;
constexpr int64_t kQuickScanBytes = 256 * kMiB;
constexpr double kShortSeconds = 0.1;
constexpr int64_t kPieceBytes = kMiB;
constexpr int64_t kCopyStep = 32 * kMiB;
// Of the host's memory: as bf16 0.75, and no byte that Scan looks for.
constexpr int kFilledWith = 0x3F;

bool Scan(const std::byte* data, int64_t bytes) {
  return std::memchr(data, 0xFF, static_cast<size_t>(bytes)) != nullptr;
}

}  // namespace

template <typename Work>
Result<double> Prober::Seconds(Stream& stream, int count, const Work& work) {
  // A CPU needs no queue to be busy.
  if (!info().own_memory) count = 1;
  const auto run_for = [&](double seconds) -> Result<double> {
    const int64_t start = env_.NowNanos();
    int64_t calls = 0;
    do {
      for (int i = 0; i < count; ++i) work(i);
      if (Status s = stream.Synchronize(); !s.ok()) return s;
      calls += count;
    } while (static_cast<double>(env_.NowNanos() - start) * 1e-9 < seconds);
    return static_cast<double>(std::max<int64_t>(env_.NowNanos() - start, 1)) * 1e-9 /
           static_cast<double>(calls);
  };
  if (Result<double> warm = run_for(seconds_); !warm.ok()) return warm;
  return run_for(seconds_);
}

Result<std::unique_ptr<Prober>> Prober::Create(Env& env, const EngineOptions& options,
                                               double seconds) {
  std::unique_ptr<Prober> p(new Prober(env, seconds, options));
  Result<std::unique_ptr<Backend>> backend = NewBackend(options.device, options.isa);
  if (!backend.ok()) return backend.status();
  p->backend_ = std::move(*backend);
  p->sizes_ = p->info().own_memory ? kOfGpu : kOfCpu;
  // Enough rows that no thread waits for long.
  if (!p->info().own_memory) p->sizes_.rows = int64_t{64} * p->pool_.threads();
  Result<std::unique_ptr<Device>> device = p->backend_->NewDevice(&env, nullptr, false);
  if (!device.ok()) return device.status();
  p->device_ = std::move(*device);
  Result<std::unique_ptr<Kernels>> kernels = p->backend_->NewKernels(&p->pool_, nullptr);
  if (!kernels.ok()) return kernels.status();
  p->kernels_ = std::move(*kernels);
  Result<std::unique_ptr<Stream>> compute = p->device_->NewStream(Lane::kCompute);
  if (!compute.ok()) return compute.status();
  p->compute_ = std::move(*compute);
  if (Status s = p->Allocate(); !s.ok()) return s;
  return p;
}

Status Prober::Allocate() {
  KernelLimits limits;
  limits.rows = sizes_.rows;
  limits.max_in = sizes_.in;
  limits.max_out = sizes_.out;
  limits.head_dim = sizes_.head_dim;
  limits.group = sizes_.group;
  limits.query_heads = sizes_.heads * sizes_.group;
  limits.activation = sizes_.activation;
  if (Status s = kernels_->Prepare(limits, *device_, budget_); !s.ok()) return s;
  const int64_t query_heads = int64_t{sizes_.heads} * sizes_.group;
  const int64_t parts = CeilDiv(sizes_.most_keys, kDefaultPageSlots);
  const int64_t states = std::max(sizes_.rows, parts) * query_heads * (sizes_.head_dim + 1) * 4;
  const int64_t bytes = sizes_.weights * WeightBytes() +
                        ActivationBytes(sizes_.rows * (sizes_.in + sizes_.out)) + states;
  Result<std::unique_ptr<Buffer>> memory =
      device_->Allocate(budget_, static_cast<size_t>(bytes), "probe");
  if (!memory.ok()) return memory.status();
  memory_ = std::move(*memory);
  Result<std::unique_ptr<Buffer>> pinned =
      device_->AllocateHost(budget_, static_cast<size_t>(sizes_.copy_bytes), "probe");
  if (!pinned.ok()) return pinned.status();
  pinned_ = std::move(*pinned);
  // Data that is not zeros: those are multiplied faster. Of the kind of either activation: bf16
  // pairs are finite as f32, too.
  Random random(1);
  constexpr int64_t kPattern = int64_t{1} << 20;
  std::byte* pattern = pinned_->data();
  for (int64_t i = 0; i < kPattern; ++i) StoreFloat(pattern, i, DType::kBF16, random.Normal());
  for (int64_t at = kPattern * 2; at < sizes_.copy_bytes; at += kPattern * 2) {
    std::memcpy(pattern + at, pattern, kPattern * 2);
  }
  for (int64_t at = 0; at < bytes; at += sizes_.copy_bytes) {
    compute_->Copy(memory_->data() + at, pattern,
                   static_cast<size_t>(std::min(sizes_.copy_bytes, bytes - at)));
  }
  return compute_->Synchronize();
}

void Prober::Product(int64_t rows, int64_t out) {
  const int64_t part = out * sizes_.in * 2;  // bytes
  const int64_t parts = sizes_.weights * WeightBytes() / part;
  LinearOp op;
  op.weight = {memory_->data() + next_product_++ % parts * part, DType::kBF16, out, sizes_.in};
  op.y = y();
  op.y_stride = out;
  kernels_->Linear(*compute_, x(), rows, {&op, 1});
}

Result<double> Prober::ProductSeconds(int64_t rows, int64_t out) {
  return Seconds(*compute_, rows > 64 ? 4 : 64, [&](int) { Product(rows, out); });
}

KeyRun Prober::Keys(std::byte* data, int64_t keys) const {
  const PageFormat format = {DType::kBF16, kDefaultPageSlots, sizes_.head_dim};
  const int64_t head_bytes = keys * sizes_.head_dim * 2;
  KeyRun run;
  run.pages = {.k = data,
               .v = data + sizes_.heads * head_bytes,
               .page_stride = static_cast<int64_t>(format.bytes()),
               .head_stride = head_bytes,
               .count = keys,
               .readable = keys};
  return run;
}

Result<double> Prober::AttentionSeconds(int64_t tokens, int heads) {
  const PageFormat format = {DType::kBF16, kDefaultPageSlots, sizes_.head_dim};
  AttentionItem item;
  item.q = x();
  item.q_stride = int64_t{heads} * sizes_.group * sizes_.head_dim;
  item.tokens = tokens;
  item.q_position = sizes_.keys;
  item.heads = heads;
  item.keys = Keys(memory_->data(), sizes_.keys);
  item.o = states();
  item.o_stride = item.q_stride;
  item.lse = item.o + tokens * item.q_stride;
  item.lse_stride = int64_t{heads} * sizes_.group;
  AttentionParams params;
  params.scale = 0.01f;  // far from a softmax of one key
  return Seconds(*compute_, 4, [&](int) {
    kernels_->Attend(*compute_, format, sizes_.group, params, {&item, 1});
  });
}

Result<double> Prober::DecodeSeconds(int64_t keys) {
  const PageFormat format = {DType::kBF16, kDefaultPageSlots, sizes_.head_dim};
  const int64_t query_heads = int64_t{sizes_.heads} * sizes_.group;
  AttentionItem item;
  item.q = x();
  item.q_stride = query_heads * sizes_.head_dim;
  item.tokens = 1;
  item.q_position = keys;
  item.heads = sizes_.heads;
  item.split = RoundUp(kernels_->DecodeSplit(keys), kDefaultPageSlots);
  item.o = states();
  item.o_stride = item.o_part_stride = query_heads * sizes_.head_dim;
  const int64_t parts = CeilDiv(keys, item.split);
  item.lse = item.o + parts * item.o_part_stride;
  item.lse_stride = item.lse_part_stride = query_heads;
  MergeItem merge;
  merge.part_o = item.o;
  merge.o_part_stride = item.o_part_stride;
  merge.part_lse = item.lse;
  merge.lse_part_stride = item.lse_part_stride;
  merge.parts = static_cast<int>(parts);
  merge.rows = query_heads;
  merge.o = y();
  AttentionParams params;
  params.scale = 0.01f;
  // Keys taken by turns from all of the memory, so that a few of them do not stay in a cache.
  const int64_t bytes = keys * 4 * sizes_.heads * sizes_.head_dim;
  const int64_t turns = std::max<int64_t>(1, sizes_.weights * WeightBytes() / bytes);
  int64_t turn = 0;
  return Seconds(*compute_, 16, [&](int) {
    item.keys = Keys(memory_->data() + turn++ % turns * bytes, keys);
    kernels_->Attend(*compute_, format, sizes_.group, params, {&item, 1});
    kernels_->Merge(*compute_, sizes_.head_dim, {&merge, 1});
  });
}

void Prober::SmallestKernel() {
  MergeItem merge;
  merge.part_o = states();
  merge.part_lse = states() + sizes_.head_dim;
  merge.parts = 1;
  merge.rows = 1;
  merge.o = y();
  kernels_->Merge(*compute_, sizes_.head_dim, {&merge, 1});
}

Result<double> Prober::SyncSeconds() {
  return Seconds(*compute_, 1, [&](int) { SmallestKernel(); });
}

Result<double> Prober::LaunchSeconds() {
  if (!info().own_memory) return SyncSeconds();
  // Behind products that last longer than the host takes to launch all of them: otherwise this
  // would be its time for a launch.
  constexpr int kProducts = 4;
  constexpr int kKernels = 512;
  const auto seconds = [&](int kernels) {
    return Seconds(*compute_, 1, [&, kernels](int) {
      for (int i = 0; i < kProducts; ++i) Product(sizes_.rows, sizes_.out);
      for (int i = 0; i < kernels; ++i) SmallestKernel();
    });
  };
  const Result<double> without = seconds(0);
  if (!without.ok()) return without;
  const Result<double> with = seconds(kKernels);
  if (!with.ok()) return with;
  return std::max(0.0, *with - *without) / kKernels;
}

Result<double> Prober::CopySeconds(Lane lane, int64_t bytes) {
  const Result<std::unique_ptr<Stream>> stream = device_->NewStream(lane);
  if (!stream.ok()) return stream.status();
  const bool up = lane == Lane::kHostToDevice;
  const int64_t turns = sizes_.copy_bytes / bytes;
  return Seconds(**stream, bytes > 16 * kMiB ? 4 : 64, [&](int i) {
    std::byte* host = pinned_->data() + i % turns * bytes;
    std::byte* device = memory_->data() + i % turns * bytes;
    (*stream)->Copy(up ? device : host, up ? host : device, static_cast<size_t>(bytes));
  });
}

Result<double> Prober::BothDirections() {
  Result<std::unique_ptr<Stream>> one = device_->NewStream(Lane::kHostToDevice);
  if (!one.ok()) return one.status();
  Result<std::unique_ptr<Stream>> other = device_->NewStream(Lane::kDeviceToHost);
  if (!other.ok()) return other.status();
  const std::unique_ptr<Stream> up = std::move(*one), down = std::move(*other);
  const int64_t half = sizes_.copy_bytes / 2;
  // The copies up are what is waited for; there are more of the copies down than these take.
  Status failed;
  Result<double> seconds = Seconds(*up, 1, [&](int) {
    for (int i = 0; i < 4; ++i) {
      up->Copy(memory_->data(), pinned_->data(), static_cast<size_t>(half));
      down->Copy(pinned_->data() + half, memory_->data() + half, static_cast<size_t>(half));
    }
    if (Status s = down->Synchronize(); !s.ok()) failed = std::move(s);
  });
  if (!failed.ok()) return failed;
  if (!seconds.ok()) return seconds;
  return 4.0 * static_cast<double>(half) / *seconds;
}

Result<Prober::HostRate> Prober::RateOf(const std::function<Status()>& work, int64_t bytes,
                                        bool copying) {
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

Result<std::unique_ptr<Buffer>> Prober::HostMemory(Device& cpu, ThreadPool& pool) {
  const int64_t bytes = seconds_ < kShortSeconds ? kQuickScanBytes : kScanBytes;
  Result<std::unique_ptr<Buffer>> memory =
      cpu.Allocate(budget_, static_cast<size_t>(bytes), "probe");
  if (!memory.ok()) return memory;
  // Written first: pages that were never written share one page of zeros, which caches hold.
  pool.Run(bytes / kPieceBytes, 1, [&](int, int64_t begin, int64_t end) {
    std::memset((*memory)->data() + begin * kPieceBytes, kFilledWith,
                static_cast<size_t>((end - begin) * kPieceBytes));
  });
  return memory;
}

Result<Prober::HostRate> Prober::ReadHost(int threads, bool copying) {
  ThreadPool pool(threads);
  const std::unique_ptr<Device> cpu = NewCpuDevice(&env_, nullptr);
  const Result<std::unique_ptr<Buffer>> memory = HostMemory(*cpu, pool);
  if (!memory.ok()) return memory.status();
  const auto bytes = static_cast<int64_t>((*memory)->size());
  std::atomic<int> found = 0;
  const auto scan = [&] {
    pool.Run(bytes / kPieceBytes, 1, [&](int, int64_t begin, int64_t end) {
      const std::byte* data = (*memory)->data() + begin * kPieceBytes;
      found += Scan(data, (end - begin) * kPieceBytes) ? 1 : 0;
    });
    return OkStatus();
  };
  return RateOf(scan, bytes, copying);
}

Result<Prober::HostRate> Prober::AttendOnHost(int threads, bool copying) {
  // As the engine's.
  ThreadPool pool(threads, std::chrono::milliseconds(1));
  const std::unique_ptr<Device> cpu = NewCpuDevice(&env_, nullptr);
  const Result<std::unique_ptr<Buffer>> memory = HostMemory(*cpu, pool);
  if (!memory.ok()) return memory.status();
  HostAttentionLimits limits;
  limits.shape.layers = 1;
  limits.shape.kv_heads = sizes_.heads;
  limits.shape.query_heads = sizes_.heads * sizes_.group;
  limits.shape.head_dim = sizes_.head_dim;
  limits.format = {DType::kBF16, kDefaultPageSlots, sizes_.head_dim};
  limits.entries = 1;
  limits.length = sizes_.keys + 1;
  limits.segment_tokens = sizes_.keys;
  limits.activation = sizes_.activation;
  Result<std::unique_ptr<Kernels>> kernels = NewCpuKernels(&pool, nullptr, isa_);
  if (!kernels.ok()) return kernels.status();
  const Result<std::unique_ptr<HostAttention>> made =
      HostAttention::Create(limits, std::move(*kernels), *device_, budget_);
  if (!made.ok()) return made.status();
  HostAttention& host = **made;
  std::memset(host.Queries(0), kFilledWith,
              static_cast<size_t>(limits.shape.query_heads * limits.shape.head_dim) *
                  DTypeBytes(limits.activation));
  // Layers of keys fill the memory.
  const int64_t layer_bytes = sizes_.keys * sizes_.heads * 4 * sizes_.head_dim;
  std::vector<std::function<Status()>> works;
  for (int64_t at = 0; at + layer_bytes <= static_cast<int64_t>((*memory)->size());
       at += layer_bytes) {
    const KeyRun keys = Keys((*memory)->data() + at, sizes_.keys);
    host.Begin();
    host.Add(0, sizes_.keys, {0, sizes_.heads, 0}, {&keys, 1});
    works.push_back(host.Work(/*window=*/0));
  }
  const auto attend = [&] {
    Status status;
    for (size_t i = 0; i < works.size() && status.ok(); ++i) status = works[i]();
    host.ForgetPauses();
    return status;
  };
  return RateOf(attend, layer_bytes * static_cast<int64_t>(works.size()), copying);
}

}  // namespace headway
