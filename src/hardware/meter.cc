#include "hardware/meter.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/bytes.h"
#include "base/half.h"
#include "base/random.h"
#include "hardware/profiles.h"
#include "hardware/rates.h"
#include "kernels/fitted_split.h"

namespace headway::hardware {
namespace {

constexpr MeterSizes kOfGpu = {.rows = 8192,
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
constexpr MeterSizes kOfCpu = {.rows = 512,
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

}  // namespace

Result<double> Meter::Seconds(Stream& stream, int count, const std::function<void(int)>& work) {
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

Result<std::unique_ptr<Meter>> Meter::Create(Env& env, const Target& target, double seconds) {
  std::unique_ptr<Meter> p(new Meter(env, seconds, target));
  Result<std::unique_ptr<Backend>> backend = NewBackend(target.device, target.isa_name());
  if (!backend.ok()) return backend.status();
  p->backend_ = std::move(*backend);
  p->sizes_ = p->info().own_memory ? kOfGpu : kOfCpu;
  if (!p->info().own_memory) {
    // Enough rows that no thread waits for long.
    p->sizes_.rows = int64_t{64} * p->pool_.threads();
    // Matrices, and keys in their place, that no cache holds, unless time or memory are short.
    const auto most = static_cast<int64_t>(hardware::HostMemory(env)) / 8;
    const int64_t bytes = std::min(seconds < kShortSeconds ? 0 : kBeyondCaches, most);
    p->sizes_.weights = std::max(kOfCpu.weights, bytes / p->WeightBytes());
  }
  Result<std::unique_ptr<Device>> device =
      p->backend_->NewDevice(&env, nullptr, KernelTimes::kWhereFree);
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

Status Meter::Allocate() {
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

void Meter::Product(int64_t rows, int64_t out) {
  const int64_t part = out * sizes_.in * 2;  // bytes
  const int64_t parts = sizes_.weights * WeightBytes() / part;
  LinearOp op;
  op.weight = {memory_->data() + next_product_++ % parts * part, DType::kBF16, out, sizes_.in};
  op.y = y();
  op.y_stride = out;
  kernels_->Linear(*compute_, x(), rows, {&op, 1});
}

Result<double> Meter::ProductSeconds(int64_t rows, int64_t out) {
  return Seconds(*compute_, rows > 64 ? 4 : 64, [&](int) { Product(rows, out); });
}

KeyRun Meter::Keys(std::byte* data, int64_t keys) const {
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

Result<double> Meter::AttentionSeconds(int64_t tokens, int heads) {
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

Result<double> Meter::DecodeSeconds(int64_t keys) {
  const PageFormat format = {DType::kBF16, kDefaultPageSlots, sizes_.head_dim};
  const int64_t query_heads = int64_t{sizes_.heads} * sizes_.group;
  AttentionItem item;
  item.q = x();
  item.q_stride = query_heads * sizes_.head_dim;
  item.tokens = 1;
  item.q_position = keys;
  item.heads = sizes_.heads;
  item.split = FittedSplit({&keys, 1}, {.kv_heads = sizes_.heads,
                                        .segment = keys,
                                        .page_slots = kDefaultPageSlots,
                                        .least = kernels_->DecodeSplit(keys, sizes_.heads),
                                        .at_once = kernels_->PartsAtOnce()});
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

void Meter::SmallestKernel() {
  MergeItem merge;
  merge.part_o = states();
  merge.part_lse = states() + sizes_.head_dim;
  merge.parts = 1;
  merge.rows = 1;
  merge.o = y();
  kernels_->Merge(*compute_, sizes_.head_dim, {&merge, 1});
}

Result<double> Meter::SyncSeconds() {
  return Seconds(*compute_, 1, [&](int) { SmallestKernel(); });
}

Result<double> Meter::LaunchSeconds() {
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

Result<double> Meter::CopySeconds(Lane lane, int64_t bytes) {
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

Result<double> Meter::BothDirections() {
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

}  // namespace headway::hardware
