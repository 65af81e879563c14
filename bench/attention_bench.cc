// Attention over pages: prefill in FLOP/s beside the multiply-add peak, decode in bytes/s of K and
// V beside the read bandwidth, both measured in the same run.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/check.h"
#include "base/env.h"
#include "base/half.h"
#include "base/random.h"
#include "kernels/cpu/attention.h"
#include "peaks.h"

namespace headway::bench {
namespace {

struct Shape {
  const char* name;
  int kv_heads;
  int group;
  int head_dim;
};
constexpr Shape kDemo = {"demo", 4, 2, 64};
constexpr Shape kLlama1B = {"llama-3.2-1b", 8, 4, 64};
constexpr Shape kLlama8B = {"llama-3-8b", 8, 4, 128};

// Keys of one item in decode, as the engine splits them.
constexpr int64_t kDecodeSplit = 512;

// Zeroed memory in huge pages where the system has them, as the engine's.
class Memory {
 public:
  explicit Memory(int64_t bytes) : bytes_(static_cast<size_t>(bytes)) {
    Result<std::byte*> memory = Env::Default()->AllocateMemory(bytes_);
    HEADWAY_CHECK(memory.ok());
    data_ = *memory;
  }
  ~Memory() { Env::Default()->FreeMemory(data_, bytes_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  std::byte* data() const { return data_; }
  float* floats() const { return reinterpret_cast<float*>(data_); }

 private:
  std::byte* data_ = nullptr;
  size_t bytes_;
};

// The cache of `layers` layers and the queries of `tokens` tokens at the end of `context` keys.
class Workload {
 public:
  Workload(const Shape& shape, int64_t context, int64_t tokens, int64_t layers)
      : shape_(shape),
        context_(context),
        tokens_(tokens),
        format_{DType::kBF16, kDefaultPageSlots, shape.head_dim},
        pages_(CeilDiv(context, kDefaultPageSlots)),
        kv_(2 * layers * shape.kv_heads * pages_ * static_cast<int64_t>(format_.bytes())),
        q_(Rows() * shape.head_dim * 4),
        o_(Rows() * Splits() * shape.head_dim * 4),
        lse_(Rows() * Splits() * 4) {
    Random random(1);
    // One head's worth of random numbers, repeated: only their range matters here.
    const int64_t head = 2 * pages_ * static_cast<int64_t>(format_.bytes());
    for (int64_t i = 0; i < head / 2; ++i) {
      StoreFloat(kv_.data(), i, DType::kBF16, static_cast<float>(random.Uniform() - 0.5));
    }
    for (int64_t h = 1; h < layers * shape.kv_heads; ++h) {
      std::memcpy(kv_.data() + h * head, kv_.data(), static_cast<size_t>(head));
    }
    for (int64_t i = 0; i < Rows() * shape.head_dim; ++i) q_.floats()[i] = random.Normal();
    params_.scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
  }

  // One item a head.
  std::vector<AttentionItem> Prefill() {
    std::vector<AttentionItem> items;
    for (int head = 0; head < shape_.kv_heads; ++head) items.push_back(Item(0, head, 0, context_));
    return items;
  }

  // One item a head and kDecodeSplit keys.
  std::vector<AttentionItem> Decode(int64_t layer) {
    std::vector<AttentionItem> items;
    for (int head = 0; head < shape_.kv_heads; ++head) {
      for (int64_t key = 0; key < context_; key += kDecodeSplit) {
        items.push_back(Item(layer, head, key, std::min(context_, key + kDecodeSplit)));
      }
    }
    return items;
  }

  double PrefillFlops() const {
    double pairs = 0;
    for (int64_t t = 0; t < tokens_; ++t) pairs += static_cast<double>(context_ - tokens_ + t + 1);
    return pairs * 4 * shape_.head_dim * shape_.group * shape_.kv_heads;
  }
  double LayerBytes() const {
    return static_cast<double>(2 * context_ * shape_.head_dim * 2 * shape_.kv_heads);
  }

  const PageFormat& format() const { return format_; }
  const AttentionParams& params() const { return params_; }

 private:
  int64_t Rows() const { return tokens_ * shape_.kv_heads * shape_.group; }
  int64_t Splits() const { return CeilDiv(context_, kDecodeSplit); }

  AttentionItem Item(int64_t layer, int head, int64_t begin, int64_t end) {
    const auto page = static_cast<int64_t>(format_.bytes());
    std::byte* k =
        kv_.data() +
        ((layer * shape_.kv_heads + head) * 2 * pages_ + begin / kDefaultPageSlots) * page;
    const int64_t row = shape_.kv_heads * shape_.group * shape_.head_dim;
    const int64_t part = begin / kDecodeSplit;
    const int64_t column = head * shape_.group;
    return {.q = q_.floats() + column * shape_.head_dim,
            .q_stride = row,
            .tokens = tokens_,
            .q_position = context_ - tokens_,
            .keys = {.pages = {.k = k,
                               .v = k + pages_ * page,
                               .page_stride = page,
                               .first_slot = begin % kDefaultPageSlots,
                               .count = end - begin},
                     .position = begin},
            .transform = {},
            .o = o_.floats() + part * Rows() * shape_.head_dim + column * shape_.head_dim,
            .o_stride = row,
            .lse = lse_.floats() + part * Rows() + column,
            .lse_stride = shape_.kv_heads * shape_.group};
  }

  Shape shape_;
  int64_t context_;
  int64_t tokens_;
  PageFormat format_;
  AttentionParams params_;
  int64_t pages_;
  Memory kv_;
  Memory q_;
  Memory o_;
  Memory lse_;
};

class Attender {
 public:
  Attender(Isa isa, int threads, const Shape& shape, int64_t tokens)
      : isa_(isa),
        shape_(shape),
        pool_(threads),
        limits_{.rows = tokens, .head_dim = shape.head_dim, .group = shape.group},
        memory_(cpu::AttentionScratchBytes(limits_, threads)),
        scratch_{memory_.data(), limits_, threads} {}

  void Attend(const Workload& work, std::span<const AttentionItem> items) {
    cpu::Attend(pool_, isa_, {work.format(), shape_.group, work.params(), items}, scratch_);
  }
  ThreadPool& pool() { return pool_; }

 private:
  Isa isa_;
  Shape shape_;
  ThreadPool pool_;
  KernelLimits limits_;
  Memory memory_;
  cpu::AttentionScratch scratch_;
};

void Prefill(benchmark::State& state, Isa isa, const Shape& shape, int threads, int64_t context,
             int64_t tokens) {
  Workload work(shape, context, tokens, 1);
  Attender attender(isa, threads, shape, tokens);
  const std::vector<AttentionItem> items = work.Prefill();
  attender.Attend(work, items);
  const double peak = MeasureFmaPeak(attender.pool(), isa);
  for (auto _ : state) attender.Attend(work, items);
  const double flops = work.PrefillFlops();
  state.counters["FLOP/s"] =
      benchmark::Counter(flops, benchmark::Counter::kIsIterationInvariantRate);
  state.counters["fma_peak"] = peak;
  state.counters["share"] =
      benchmark::Counter(flops / peak, benchmark::Counter::kIsIterationInvariantRate);
}

void Decode(benchmark::State& state, Isa isa, const Shape& shape, int threads, int64_t context) {
  // Layers enough that no cache holds them.
  const int64_t layers =
      std::max<int64_t>(1, 256 * kMiB / (4 * context * shape.head_dim * shape.kv_heads));
  Workload work(shape, context, 1, layers);
  Attender attender(isa, threads, shape, 1);
  std::vector<std::vector<AttentionItem>> items;
  for (int64_t layer = 0; layer < layers; ++layer) items.push_back(work.Decode(layer));
  for (const auto& layer : items) attender.Attend(work, layer);
  const double peak = MeasureReadPeak(attender.pool());
  for (auto _ : state) {
    for (const auto& layer : items) attender.Attend(work, layer);
  }
  const double bytes = work.LayerBytes() * static_cast<double>(layers);
  state.counters["bytes/s"] =
      benchmark::Counter(bytes, benchmark::Counter::kIsIterationInvariantRate);
  state.counters["read_peak"] = peak;
  state.counters["share"] =
      benchmark::Counter(bytes / peak, benchmark::Counter::kIsIterationInvariantRate);
}

void Register() {
  const int cores = ThreadPool(0).threads();
  for (Isa isa : SupportedIsas()) {
    for (const Shape& shape : {kDemo, kLlama1B, kLlama8B}) {
      for (int threads : {1, cores}) {
        const std::string suffix = std::string("/") + IsaName(isa) + "/" + shape.name +
                                   "/threads:" + std::to_string(threads);
        for (int64_t context : {2048, 16384}) {
          const std::string name = suffix + "/context:" + std::to_string(context);
          benchmark::RegisterBenchmark(
              ("prefill" + name).c_str(),
              [=](benchmark::State& state) { Prefill(state, isa, shape, threads, context, 512); })
              ->UseRealTime()
              ->Unit(benchmark::kMillisecond);
          benchmark::RegisterBenchmark(
              ("decode" + name).c_str(),
              [=](benchmark::State& state) { Decode(state, isa, shape, threads, context); })
              ->UseRealTime()
              ->Unit(benchmark::kMillisecond);
        }
      }
    }
  }
}

}  // namespace
}  // namespace headway::bench

int main(int argc, char** argv) {
  headway::bench::Register();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
