// The path `host` in decode at the shape of Llama-3-8B, one sequence, bf16 pages: what its threads
// read a second, beside a plain loop that reads the same memory with the same threads (the floor of
// the time). Layers follow each other as in a step, with the whole of a layer's work: queries to
// f32, attention, merge.
//
//   read        the plain loop
//   SET         attention on the instruction set of that name, and its share of `read`
//   µs a layer  what a layer takes longer than reading it would, on the best set
//   in cache    attention of one thread to pages that stay in its caches: arithmetic alone
//
//   host_attention_bench [CONTEXT [THREADS...]]     by default 131072 1 4 8 12 15 16
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/env.h"
#include "base/half.h"
#include "base/random.h"
#include "base/thread_pool.h"
#include "device/cpu/cpu_device.h"
#include "engine/host_attention.h"
#include "kernels/cpu/cpu_kernels.h"
#include "peaks.h"

namespace headway::bench {
namespace {

constexpr int kKvHeads = 8, kGroup = 4, kHeadDim = 128;
constexpr int64_t kLeastBytes = int64_t{5} << 28;  // 1.25 GiB: no cache holds it
constexpr int kRounds = 6;

template <typename T>
T Unwrap(Result<T> result) {
  if (!result.ok()) {
    std::fprintf(stderr, "%s\n", result.status().message().c_str());
    std::exit(1);
  }
  return std::move(*result);
}

// Layers of K and V as slabs hold them, in memory as a host's slabs have it.
class Layers {
 public:
  explicit Layers(int64_t context)
      : format_{DType::kBF16, kDefaultPageSlots, kHeadDim},
        pages_(CeilDiv(context, kDefaultPageSlots)),
        layer_bytes_(2 * kKvHeads * pages_ * page()),
        count_(CeilDiv(kLeastBytes, layer_bytes_)),
        data_(Unwrap(Env::Default()->AllocateMemory(static_cast<size_t>(bytes())))) {
    ThreadPool pool(0);
    std::vector<std::byte> pattern(static_cast<size_t>(kMiB));
    Random random(1);
    for (int64_t i = 0; i < kMiB / 2; ++i) {
      StoreFloat(pattern.data(), i, DType::kBF16, random.Normal());
    }
    pool.Run(bytes(), kMiB, [&](int, int64_t begin, int64_t end) {
      std::copy_n(pattern.data(), end - begin, data_ + begin);
    });
  }
  ~Layers() { Env::Default()->FreeMemory(data_, static_cast<size_t>(bytes())); }
  Layers(const Layers&) = delete;
  Layers& operator=(const Layers&) = delete;

  const PageFormat& format() const { return format_; }
  int64_t keys() const { return pages_ * format_.page_slots; }
  int64_t count() const { return count_; }
  int64_t layer_bytes() const { return layer_bytes_; }
  int64_t bytes() const { return count_ * layer_bytes_; }
  const std::byte* data() const { return data_; }

  KeyRun Keys(int64_t layer) const {
    KeyRun keys;
    keys.pages.k = data_ + layer * layer_bytes_;
    keys.pages.v = keys.pages.k + layer_bytes_ / 2;
    keys.pages.page_stride = page();
    keys.pages.head_stride = pages_ * page();
    keys.pages.count = this->keys();
    return keys;
  }
  // As many keys, all in one page.
  KeyRun KeysInCache() const {
    KeyRun keys = Keys(0);
    keys.pages.page_stride = 0;
    keys.pages.head_stride = 0;
    return keys;
  }

 private:
  int64_t page() const { return static_cast<int64_t>(format_.bytes()); }

  const PageFormat format_;
  const int64_t pages_;
  const int64_t layer_bytes_;
  const int64_t count_;
  std::byte* const data_;
};

double BestSeconds(const std::function<void()>& work) {
  int64_t best = std::numeric_limits<int64_t>::max();
  for (int round = 0; round < kRounds; ++round) {
    const int64_t start = Env::Default()->NowNanos();
    work();
    best = std::min(best, Env::Default()->NowNanos() - start);
  }
  return static_cast<double>(std::max<int64_t>(best, 1)) * 1e-9;
}

// Seconds of one layer.
double MeasureAttention(ThreadPool& pool, const std::string& isa, const Layers& layers,
                        bool in_cache) {
  Budget budget("benchmark", kUnlimited);
  const std::unique_ptr<Device> device = NewCpuDevice(Env::Default(), nullptr);
  HostAttentionLimits limits;
  limits.shape.layers = 1;
  limits.shape.query_heads = kKvHeads * kGroup;
  limits.shape.kv_heads = kKvHeads;
  limits.shape.head_dim = kHeadDim;
  limits.format = layers.format();
  limits.entries = 1;
  limits.length = layers.keys() + 1;
  limits.segment_tokens = layers.keys();
  limits.activation = DType::kBF16;
  const std::unique_ptr<HostAttention> host = Unwrap(
      HostAttention::Create(limits, Unwrap(NewCpuKernels(&pool, nullptr, isa)), *device, budget));
  Random random(2);
  std::vector<std::function<Status()>> works;
  for (int64_t layer = 0; layer < layers.count(); ++layer) {
    host->Begin();
    std::byte* q = host->Queries(0, 1);
    for (int64_t i = 0; i < kKvHeads * kGroup * kHeadDim; ++i) {
      StoreFloat(q, i, DType::kBF16, random.Normal());
    }
    const KeyRun keys = in_cache ? layers.KeysInCache() : layers.Keys(layer);
    host->Add(0, layers.keys(), {0, kKvHeads, 0}, {&keys, 1});
    works.push_back(host->Work(0));
  }
  const double seconds = BestSeconds([&] {
    for (const auto& work : works) {
      if (!work().ok()) std::exit(1);
    }
  });
  return seconds / static_cast<double>(layers.count());
}

void Run(int64_t context, const std::vector<int>& threads) {
  const Layers layers(context);
  const auto layer_gb = static_cast<double>(layers.layer_bytes()) * 1e-9;
  std::vector<std::string> isas = CpuIsas();  // best first
  isas.resize(std::min<size_t>(isas.size(), 2));
  std::printf("%lld keys, %lld layers of %.1f MB, GB/s\n%7s %8s", static_cast<long long>(context),
              static_cast<long long>(layers.count()), layer_gb * 1e3, "threads", "read");
  for (const std::string& isa : isas) std::printf(" %8s %6s", isa.c_str(), "");
  std::printf(" %11s\n", "µs a layer");
  for (const int count : threads) {
    ThreadPool pool(count, std::chrono::milliseconds(1));  // as the engine's
    const double read = BestSeconds([&] { ReadMemory(pool, layers.data(), layers.bytes()); }) /
                        static_cast<double>(layers.count());
    std::printf("%7d %8.1f", count, layer_gb / read);
    double best = 0.0;
    for (const std::string& isa : isas) {
      const double seconds = MeasureAttention(pool, isa, layers, /*in_cache=*/false);
      if (best == 0.0) best = seconds;
      std::printf(" %8.1f %5.1f%%", layer_gb / seconds, 100.0 * read / seconds);
    }
    std::printf(" %11.0f\n", (best - read) * 1e6);
    std::fflush(stdout);
  }
  ThreadPool one(1);
  std::printf("in cache, one thread:");
  for (const std::string& isa : isas) {
    std::printf("  %s %.1f", isa.c_str(),
                layer_gb / MeasureAttention(one, isa, layers, /*in_cache=*/true));
  }
  std::printf("\n");
}

}  // namespace
}  // namespace headway::bench

int main(int argc, char** argv) {
  const long long context = argc > 1 ? std::atoll(argv[1]) : 131072;
  std::vector<int> threads;
  for (int i = 2; i < argc; ++i) threads.push_back(std::atoi(argv[i]));
  if (threads.empty()) threads = {1, 4, 8, 12, 15, 16};
  if (context < 1 || context > (int64_t{1} << 24) ||
      *std::min_element(threads.begin(), threads.end()) < 1) {
    std::fprintf(stderr, "usage: host_attention_bench [CONTEXT [THREADS...]]\n");
    return 2;
  }
  headway::bench::Run(context, threads);
  return 0;
}
