// The path `host` in decode at the shape of a model, all of a layer's work of some sequences: what
// its threads read a second, beside a plain loop that reads the same memory with the same threads
// (the floor of the time). Layers follow each other as in a step: queries to f32, attention, merge.
//
//   read        the plain loop
//   SET         attention on the instruction set of that name, and its share of `read`
//   µs a layer  what a layer takes longer than reading it would, on the best set
//   in cache    attention of one thread to pages that stay in its caches: arithmetic alone
//
//   host_attention_bench [--shape llama|opt] [--pages PAGES] [--tokens N] [CONTEXT [THREADS...]]
//
//   llama       Llama-3-8B, one sequence, by default of 131072 keys, bf16
//   opt         OPT-6.7B, the 17 sequences that cores attend to of a batch of 64, by default of 320
//               keys each, f16
//   N           tokens of each sequence, as drafts are verified; by default 1
//   PAGES       what the pages hold: bf16, f16, f32, int8, fp8, int4 or lossless
//   THREADS     by default 1 4 8 12 15 16
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <iterator>
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
#include "engine/paths/host_attention.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/page_codec.h"
#include "peaks.h"
#include "unwrap.h"

namespace headway::bench {
namespace {

struct Shape {
  const char* name;
  int kv_heads;
  int group;
  int head_dim;
  DType dtype;
  int sequences;
  int64_t context;
  int64_t tokens = 1;

  int query_heads() const { return kv_heads * group; }
  int64_t width() const { return int64_t{query_heads()} * head_dim; }
};
constexpr Shape kShapes[] = {{"llama", 8, 4, 128, DType::kBF16, 1, 131072},
                             {"opt", 32, 1, 128, DType::kF16, 17, 320}};

constexpr int64_t kLeastBytes = int64_t{5} << 28;  // 1.25 GiB: no cache holds it
constexpr int kRounds = 6;

// Layers of K and V as slabs hold them, in memory as a host's slabs have it. Pages of codes hold
// any, and have the parameters of one.
class Layers {
 public:
  Layers(const Shape& shape, Encoding encoding)
      : shape_(shape),
        format_{shape.dtype, kDefaultPageSlots, shape.head_dim, encoding},
        pages_(CeilDiv(shape.context, kDefaultPageSlots)),
        plane_(shape.kv_heads * pages_ * page()),
        layer_bytes_(2 * shape.sequences * plane_),
        count_(CeilDiv(kLeastBytes, layer_bytes_)),
        data_(Unwrap(Env::Default()->AllocateMemory(static_cast<size_t>(bytes())))),
        params_(static_cast<size_t>(ParamBytes(format_))) {
    ThreadPool pool(0);
    std::vector<std::byte> pattern(static_cast<size_t>(kMiB));
    Random random(1);
    const auto numbers = kMiB / static_cast<int64_t>(DTypeBytes(shape.dtype));
    for (int64_t i = 0; i < numbers; ++i) {
      StoreFloat(pattern.data(), i, shape.dtype, random.Normal());
    }
    pool.Run(bytes(), kMiB, [&](int, int64_t begin, int64_t end) {
      std::copy_n(pattern.data(), end - begin, data_ + begin);
    });
    if (encoding == Encoding::kNone) return;
    std::vector<std::byte> codes(2 * format_.closed_bytes());
    EncodePage(format_, pattern.data(), pattern.data(), codes.data(),
               codes.data() + format_.closed_bytes(), params_.data());
  }
  ~Layers() { Env::Default()->FreeMemory(data_, static_cast<size_t>(bytes())); }
  Layers(const Layers&) = delete;
  Layers& operator=(const Layers&) = delete;

  const Shape& shape() const { return shape_; }
  const PageFormat& format() const { return format_; }
  int64_t keys() const { return pages_ * format_.page_slots; }  // of a sequence
  int64_t count() const { return count_; }
  int64_t layer_bytes() const { return layer_bytes_; }
  int64_t bytes() const { return count_ * layer_bytes_; }
  const std::byte* data() const { return data_; }

  KeyRun Keys(int64_t layer, int64_t sequence) {
    KeyRun keys;
    keys.pages.k = data_ + layer * layer_bytes_ + sequence * 2 * plane_;
    keys.pages.v = keys.pages.k + plane_;
    keys.pages.page_stride = page();
    keys.pages.head_stride = pages_ * page();
    keys.pages.count = this->keys();
    if (format_.encoding != Encoding::kNone) keys.pages.params = params_.data();
    return keys;
  }
  // As many keys, all in one page.
  KeyRun KeysInCache() {
    KeyRun keys = Keys(0, 0);
    keys.pages.page_stride = 0;
    keys.pages.head_stride = 0;
    return keys;
  }

 private:
  int64_t page() const { return static_cast<int64_t>(format_.closed_bytes()); }

  const Shape shape_;
  const PageFormat format_;
  const int64_t pages_;  // of a head
  const int64_t plane_;  // bytes of K, or of V, of a sequence
  const int64_t layer_bytes_;
  const int64_t count_;
  std::byte* const data_;
  std::vector<std::byte> params_;
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
double MeasureAttention(ThreadPool& pool, const std::string& isa, Layers& layers, bool in_cache) {
  Budget budget("benchmark", kUnlimited);
  const std::unique_ptr<Device> device = NewCpuDevice(Env::Default(), nullptr);
  const Shape& shape = layers.shape();
  HostAttentionLimits limits;
  limits.shape.layers = 1;
  limits.shape.query_heads = shape.query_heads();
  limits.shape.kv_heads = shape.kv_heads;
  limits.shape.head_dim = shape.head_dim;
  limits.format = layers.format();
  limits.entries = shape.sequences;
  limits.tokens = shape.tokens;
  limits.length = layers.keys() + shape.tokens;
  limits.segment_tokens = layers.keys();
  limits.activation = shape.dtype;
  const std::unique_ptr<HostAttention> host = Unwrap(
      HostAttention::Create(limits, Unwrap(NewCpuKernels(&pool, nullptr, isa)), *device, budget));
  Random random(2);
  std::vector<std::function<Status()>> works;
  for (int64_t layer = 0; layer < layers.count(); ++layer) {
    host->Begin();
    std::byte* q = host->Queries(0);
    for (int64_t i = 0; i < shape.sequences * shape.tokens * shape.width(); ++i) {
      StoreFloat(q, i, shape.dtype, random.Normal());
    }
    for (int sequence = 0; sequence < shape.sequences; ++sequence) {
      const KeyRun keys = in_cache ? layers.KeysInCache() : layers.Keys(layer, sequence);
      host->Add({sequence, layers.keys(), shape.tokens}, {0, shape.kv_heads, 0}, {&keys, 1});
    }
    works.push_back(host->Work(0));
  }
  const auto run = [](const std::function<Status()>& work) {
    if (!work().ok()) std::exit(1);
  };
  if (in_cache) {  // a round is short, so that some are undisturbed
    double best = std::numeric_limits<double>::max();
    for (const auto& work : works) best = std::min(best, BestSeconds([&] { run(work); }));
    return best;
  }
  const double seconds = BestSeconds([&] { std::for_each(works.begin(), works.end(), run); });
  return seconds / static_cast<double>(layers.count());
}

void Run(const Shape& shape, Encoding encoding, const std::vector<int>& threads) {
  Layers layers(shape, encoding);
  const auto layer_gb = static_cast<double>(layers.layer_bytes()) * 1e-9;
  std::vector<std::string> isas = CpuIsas();  // best first
  isas.resize(std::min<size_t>(isas.size(), 2));
  std::printf("%s, %d x %lld keys of %s, %lld layers of %.1f MB, GB/s\n%7s %8s", shape.name,
              shape.sequences, static_cast<long long>(layers.keys()),
              encoding == Encoding::kNone ? DTypeName(shape.dtype) : EncodingName(encoding),
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
  using headway::bench::kShapes;
  const std::vector<std::string> args(argv + 1, argv + argc);
  size_t at = 0;
  bool ok = true;
  const auto option = [&](const char* name) {
    if (at + 1 >= args.size() || args[at] != name) return std::string();
    at += 2;
    return args[at - 1];
  };
  headway::bench::Shape shape = kShapes[0];
  if (const std::string name = option("--shape"); !name.empty()) {
    const auto* found =
        std::find_if(std::begin(kShapes), std::end(kShapes),
                     [&](const headway::bench::Shape& known) { return name == known.name; });
    ok = found != std::end(kShapes);
    if (ok) shape = *found;
  }
  headway::Encoding encoding = headway::Encoding::kNone;
  if (const std::string pages = option("--pages"); !pages.empty()) {
    using headway::DType;
    if (const auto parsed = headway::ParseEncoding(pages); parsed.ok()) {
      encoding = *parsed;
    } else {
      const DType dtypes[] = {DType::kF32, DType::kF16, DType::kBF16};
      const auto* found = std::find_if(std::begin(dtypes), std::end(dtypes), [&](DType dtype) {
        return pages == headway::DTypeName(dtype);
      });
      ok = ok && found != std::end(dtypes);
      if (ok) shape.dtype = *found;
    }
  }
  if (const std::string tokens = option("--tokens"); !tokens.empty()) {
    shape.tokens = std::atoll(tokens.c_str());
    ok = ok && shape.tokens >= 1 && shape.tokens <= 64;
  }
  if (at < args.size()) shape.context = std::atoll(args[at++].c_str());
  std::vector<int> threads;
  for (; at < args.size(); ++at) threads.push_back(std::atoi(args[at].c_str()));
  if (threads.empty()) threads = {1, 4, 8, 12, 15, 16};
  if (!ok || shape.context < 1 || shape.context > (int64_t{1} << 24) ||
      *std::min_element(threads.begin(), threads.end()) < 1) {
    std::fprintf(stderr,
                 "usage: host_attention_bench [--shape llama|opt] "
                 "[--pages bf16|f16|f32|int8|fp8|int4|lossless] [--tokens N] "
                 "[CONTEXT [THREADS...]]\n");
    return 2;
  }
  headway::bench::Run(shape, encoding, threads);
  return 0;
}
