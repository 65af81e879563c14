// Matrix products of whole models: decode in bytes of weights a second beside the read bandwidth,
// prefill in FLOP/s beside the f32 multiply-add peak (which tiles of AMX exceed), all measured in
// the same run.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/env.h"
#include "base/random.h"
#include "base/thread_pool.h"
#include "device/cpu/cpu_device.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/isa.h"
#include "peaks.h"

namespace headway::bench {
namespace {

struct Model {
  const char* name;
  int layers;
  int64_t d_model;
  int64_t q_width;   // of all query heads
  int64_t kv_width;  // of all KV heads
  int64_t d_ff;
  int64_t vocab;
};
constexpr Model kDemo = {"demo", 8, 384, 512, 256, 1024, 8192};
constexpr Model kLlama1B = {"llama-3.2-1b", 16, 2048, 2048, 512, 8192, 128256};

// The weights of a model's linear layers and the activations of `rows` tokens.
class Linears {
 public:
  Linears(const Model& model, Isa isa, int threads, int64_t rows)
      : model_(model), pool_(threads), rows_(rows) {
    Result<std::unique_ptr<Kernels>> kernels = NewCpuKernels(&pool_, nullptr, IsaName(isa));
    HEADWAY_CHECK(kernels.ok());
    kernels_ = std::move(*kernels);
    const int64_t widest = std::max(model.d_ff, model.q_width);
    const KernelLimits limits = {.rows = rows, .max_in = widest, .max_out = model.vocab};
    HEADWAY_CHECK(kernels_->Prepare(limits, *device_, budget_).ok());
    x_ = Floats(rows * widest);
    y_ = Floats(rows * std::max(2 * model.d_ff, model.vocab));
    weights_ = Allocate(WeightBytes());
    Random random(1);
    auto* weights = reinterpret_cast<uint16_t*>(weights_->data());
    // bf16 of 2^-7 to 2^-3: only their range matters here.
    for (int64_t i = 0; i < WeightBytes() / 2; i += 4) {
      const uint64_t bits = (random.Next() & 0x01FF01FF01FF01FFu) + 0x3C003C003C003C00u;
      std::memcpy(weights + i, &bits, sizeof(bits));
    }
    for (int64_t i = 0; i < rows * widest; ++i) Data(*x_)[i] = random.Normal();
  }

  int64_t LayerWeights() const {
    const Model& m = model_;
    return m.d_model * (2 * m.q_width + 2 * m.kv_width + 3 * m.d_ff);
  }
  int64_t Weights() const { return model_.layers * LayerWeights() + model_.d_model * model_.vocab; }
  int64_t WeightBytes() const { return 2 * Weights(); }

  // One step: all layers, and the head for the last token.
  void Step() {
    const Model& m = model_;
    std::byte* at = weights_->data();
    for (int layer = 0; layer < m.layers; ++layer) {
      at = Call(at, m.d_model, {m.q_width, m.kv_width, m.kv_width}, rows_);
      at = Call(at, m.q_width, {m.d_model}, rows_);
      at = Call(at, m.d_model, {m.d_ff, m.d_ff}, rows_);
      at = Call(at, m.d_ff, {m.d_model}, rows_);
    }
    Call(at, m.d_model, {m.vocab}, 1);
  }
  double StepFlops() const {
    return 2.0 * static_cast<double>(rows_ * model_.layers * LayerWeights() +
                                     model_.d_model * model_.vocab);
  }
  ThreadPool& pool() { return pool_; }

 private:
  static float* Data(const Buffer& buffer) { return reinterpret_cast<float*>(buffer.data()); }

  std::unique_ptr<Buffer> Allocate(int64_t bytes) {
    Result<std::unique_ptr<Buffer>> buffer =
        device_->Allocate(budget_, static_cast<size_t>(bytes), "benchmark");
    HEADWAY_CHECK(buffer.ok());
    return std::move(*buffer);
  }
  std::unique_ptr<Buffer> Floats(int64_t count) {
    return Allocate(count * static_cast<int64_t>(sizeof(float)));
  }

  std::byte* Call(std::byte* weights, int64_t in, const std::vector<int64_t>& outs, int64_t rows) {
    std::vector<LinearOp> ops;
    float* y = Data(*y_);
    for (const int64_t out : outs) {
      ops.push_back({.weight = {weights, DType::kBF16, out, in}, .y = y, .y_stride = out});
      weights += 2 * out * in;
      y += rows * out;
    }
    kernels_->Linear(*stream_, Data(*x_), rows, ops);
    return weights;
  }

  Model model_;
  ThreadPool pool_;
  int64_t rows_;
  Budget budget_{"benchmark", kUnlimited};
  std::unique_ptr<Device> device_ = NewCpuDevice(Env::Default(), nullptr);
  std::unique_ptr<Stream> stream_ = *device_->NewStream(Lane::kCompute);
  std::unique_ptr<Kernels> kernels_;
  std::unique_ptr<Buffer> weights_;
  std::unique_ptr<Buffer> x_;
  std::unique_ptr<Buffer> y_;
};

void Report(benchmark::State& state, const char* unit, double amount, const char* peak_name,
            double peak) {
  constexpr auto kRate = benchmark::Counter::kIsIterationInvariantRate;
  state.counters[unit] = benchmark::Counter(amount, kRate);
  state.counters[peak_name] = peak;
  state.counters["share"] = benchmark::Counter(amount / peak, kRate);
}

void Decode(benchmark::State& state, const Model& model, Isa isa, int threads, int64_t rows) {
  Linears linears(model, isa, threads, rows);
  linears.Step();
  const double peak = MeasureReadPeak(linears.pool());
  for (auto _ : state) linears.Step();
  Report(state, "bytes/s", static_cast<double>(linears.WeightBytes()), "read_peak", peak);
}

void Prefill(benchmark::State& state, const Model& model, Isa isa, int threads, int64_t rows) {
  Linears linears(model, isa, threads, rows);
  linears.Step();
  const double peak = MeasureFmaPeak(linears.pool(), isa);
  for (auto _ : state) linears.Step();
  Report(state, "FLOP/s", linears.StepFlops(), "fma_peak", peak);
}

void Register() {
  const int cores = ThreadPool(0).threads();
  for (const Isa isa : SupportedIsas()) {
    for (const Model& model : {kDemo, kLlama1B}) {
      for (const int threads : {1, cores}) {
        const std::string suffix = std::string("/") + IsaName(isa) + "/" + model.name +
                                   "/threads:" + std::to_string(threads) + "/rows:";
        const auto add = [&](const char* name, int64_t rows, auto run) {
          benchmark::RegisterBenchmark(
              (name + suffix + std::to_string(rows)).c_str(),
              [=](benchmark::State& state) { run(state, model, isa, threads, rows); })
              ->UseRealTime()
              ->Unit(benchmark::kMillisecond);
        };
        for (const int64_t rows : {1, 4, 12}) add("decode", rows, Decode);
        for (const int64_t rows : {16, 128, 512}) add("prefill", rows, Prefill);
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
