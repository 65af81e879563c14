// The kernels of a decode step at the shape of Llama-3-8B in bf16, one sequence: what each must
// move, the time that takes at the rate at which our own matrix × vector kernel reads the largest
// matrix, and the times measured:
//   alone     the kernel behind itself, other weights each time. Kernels that take less than their
//             launch does on the host show that instead
//   in step   what the step takes less without the kernel: its share where kernels overlap
//
// With an encoding all keys but the new one's are taken from encoded pages.
//
//   decode_kernels [DEVICE [CONTEXT [LAYERS [ENCODING [SPLIT]]]]]      by default cuda 1024 32 none
//
//   SPLIT      keys of a part of attention, a multiple of a page; by default what an engine takes
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/check.h"
#include "base/env.h"
#include "base/half.h"
#include "base/random.h"
#include "base/thread_pool.h"
#include "kernels/backend/backend.h"
#include "kernels/fitted_split.h"
#include "kernels/page_codec.h"
#include "unwrap.h"

namespace headway::bench {
namespace {

constexpr int64_t kModel = 4096, kFeedForward = 14336, kVocab = 128256;
constexpr int kKvHeads = 8, kGroup = 4, kHeadDim = 128;
constexpr int64_t kQ = int64_t{kKvHeads} * kGroup * kHeadDim;
constexpr int64_t kKv = int64_t{kKvHeads} * kHeadDim;
constexpr int64_t kQkv = kQ + 2 * kKv;
constexpr int64_t kLayerWeights = kModel * (kQkv + kQ + 3 * kFeedForward);
constexpr float kEps = 1e-5f;

struct Kernel {
  std::string name;
  int64_t bytes;
  std::function<void(int layer)> run;
};

class Step {
 public:
  Step(const std::string& device, int64_t context, int layers, Encoding encoding, int64_t split)
      : context_(context),
        layers_(layers),
        format_{DType::kBF16, kDefaultPageSlots, kHeadDim, encoding} {
    backend_ = Unwrap(NewBackend(device, "auto"));
    device_ = Unwrap(backend_->NewDevice(Env::Default(), nullptr, KernelTimes::kWhereFree));
    kernels_ = Unwrap(backend_->NewKernels(&pool_, nullptr));
    compute_ = Unwrap(device_->NewStream(Lane::kCompute));
    const DType activation = kernels_->ActivationDType(DType::kBF16);
    KernelLimits limits;
    limits.rows = 16;
    limits.max_in = kFeedForward;
    limits.max_out = kVocab;
    limits.head_dim = kHeadDim;
    limits.group = kGroup;
    limits.query_heads = kKvHeads * kGroup;
    limits.vocab = kVocab;
    limits.activation = activation;
    limits.encoding = encoding;
    Require(kernels_->Prepare(limits, *device_, budget_));
    activation_bytes_ = static_cast<int64_t>(DTypeBytes(activation));
    pages_ = CeilDiv(context_, format_.page_slots);
    split_ = split;
    if (split_ == 0) {
      split_ = FittedSplit({&context_, 1}, {.kv_heads = kKvHeads,
                                            .segment = context_,
                                            .page_slots = format_.page_slots,
                                            .least = kernels_->DecodeSplit(context_, kKvHeads),
                                            .at_once = kernels_->PartsAtOnce()});
    }
    parts_ = CeilDiv(context_, split_);
    weights_ = Fill((layers_ * kLayerWeights + kModel * kVocab) * 2);
    open_ = Fill(2 * kKvHeads * static_cast<int64_t>(format_.bytes()));
    kv_ = Fill(layers_ * 2 * kKvHeads * pages_ * static_cast<int64_t>(format_.closed_bytes()));
    if (encoded()) params_ = Fill(layers_ * kKvHeads * pages_ * ParamBytes(format_), true);
    x_ = Floats(kModel);
    norm_ = Floats(kModel);
    angles_ = Floats(kHeadDim);
    logits_ = Floats(kVocab);
    parts_memory_ = Floats(parts_ * kKvHeads * kGroup * (kHeadDim + 1));
    activations_ = Fill((kQkv + kQ + 2 * kFeedForward) * activation_bytes_);
    sampled_ = Floats(2);
    AddKernels();
  }

  const std::vector<Kernel>& layer_kernels() const { return layer_; }
  const std::vector<Kernel>& last_kernels() const { return last_; }
  // What attention of a layer reads.
  int64_t code_bytes() const {
    return 2 * kKvHeads * EncodedBytes(format_.encoding, format_.dtype, context_ * kHeadDim);
  }
  int64_t kv_bytes() const {
    return code_bytes() + (encoded() ? kKvHeads * pages_ * ParamBytes(format_) : 0);
  }
  int64_t split() const { return split_; }
  bool encoded() const { return format_.encoding != Encoding::kNone; }

  // Microseconds of one of `count` calls of work(i), the best of some rounds.
  double Measure(int count, const std::function<void(int)>& work) {
    double best = 0.0;
    for (int round = 0; round < 6; ++round) {
      Require(compute_->Synchronize());
      const int64_t start = Env::Default()->NowNanos();
      for (int i = 0; i < count; ++i) work(i);
      Require(compute_->Synchronize());
      const double us = static_cast<double>(Env::Default()->NowNanos() - start) * 1e-3 / count;
      if (round == 1 || (round > 1 && us < best)) best = us;  // the first warms up
    }
    return best;
  }
  // A step without one of its kernels; null: with all.
  double MeasureStep(const Kernel* without) {
    return Measure(8, [&](int) {
      for (int layer = 0; layer < layers_; ++layer) {
        for (const Kernel& kernel : layer_) {
          if (&kernel != without) kernel.run(layer);
        }
      }
      for (const Kernel& kernel : last_) {
        if (&kernel != without) kernel.run(0);
      }
    });
  }
  void Sample(const SampleItem& options) {
    SampleItem item = options;
    item.logits = F(logits_);
    item.vocab = kVocab;
    item.result = reinterpret_cast<Sampled*>(sampled_->data());
    kernels_->Sample(*compute_, {&item, 1});
  }

 private:
  // Memory of small normal numbers in bf16, or their sizes; as f32 they are numbers, too, and as
  // codes.
  std::unique_ptr<Buffer> Fill(int64_t bytes, bool sizes = false) {
    constexpr int64_t kPattern = int64_t{1} << 20;
    std::unique_ptr<Buffer>& pattern = patterns_[sizes ? 1 : 0];
    if (pattern == nullptr) {
      pattern = Unwrap(device_->AllocateHost(budget_, kPattern * 2, "pattern"));
      Random random(1);
      for (int64_t i = 0; i < kPattern; ++i) {
        const float number = 0.02f * random.Normal();
        StoreFloat(pattern->data(), i, DType::kBF16, sizes ? std::abs(number) : number);
        // As codes of fp8 these bytes are NaN.
        for (std::byte& byte : std::span(pattern->data() + i * 2, 2)) {
          if ((byte & std::byte{0x7F}) == std::byte{0x7F}) byte ^= std::byte{1};
        }
      }
    }
    std::unique_ptr<Buffer> buffer =
        Unwrap(device_->Allocate(budget_, static_cast<size_t>(bytes), "benchmark"));
    for (int64_t at = 0; at < bytes; at += 2 * kPattern) {
      compute_->Copy(buffer->data() + at, pattern->data(),
                     static_cast<size_t>(std::min(2 * kPattern, bytes - at)));
    }
    Require(compute_->Synchronize());
    return buffer;
  }
  std::unique_ptr<Buffer> Floats(int64_t count) { return Fill(count * 4); }
  static float* F(const std::unique_ptr<Buffer>& buffer) {
    return reinterpret_cast<float*>(buffer->data());
  }
  std::byte* Activation(int64_t index) const {
    return activations_->data() + index * activation_bytes_;
  }
  LinearOp Op(int layer, int64_t at, int64_t out, int64_t in, void* y, LinearResult result) const {
    LinearOp op;
    op.weight = {weights_->data() + (layer * kLayerWeights + at) * 2, DType::kBF16, out, in};
    op.y = y;
    op.y_stride = out;
    op.result = result;
    return op;
  }

  PageRun Pages(int layer) const {
    const auto page = static_cast<int64_t>(format_.closed_bytes());
    PageRun run;
    run.k = kv_->data() + layer * 2 * kKvHeads * pages_ * page;
    run.v = run.k + kKvHeads * pages_ * page;
    run.page_stride = page;
    run.head_stride = pages_ * page;
    run.count = context_;
    if (encoded()) {
      run.params_page_stride = ParamBytes(format_);
      run.params_head_stride = pages_ * run.params_page_stride;
      run.params = params_->data() + layer * kKvHeads * run.params_head_stride;
    }
    return run;
  }
  // Where the new key goes.
  PageRun OpenPage(int layer) const {
    if (!encoded()) {
      PageRun run = Pages(layer);
      run.first_slot = context_ - 1;
      run.count = 1;
      return run;
    }
    PageRun run;
    run.k = open_->data();
    run.page_stride = static_cast<int64_t>(format_.bytes());
    run.head_stride = run.page_stride;
    run.v = run.k + kKvHeads * run.head_stride;
    run.count = 1;
    return run;
  }
  void Rope(int layer) {
    RopeStoreItem item;
    item.q = Activation(0);
    item.q_stride = kQkv;
    item.query_heads = kKvHeads * kGroup;
    item.table = {F(angles_), F(angles_) + kHeadDim / 2, kHeadDim};
    item.kv = {Activation(kQ), Activation(kQ + kKv), kQkv, kKvHeads, OpenPage(layer)};
    kernels_->RopeStoreKv(*compute_, format_, {&item, 1});
  }
  void Attend(int layer) {
    const int64_t rows = int64_t{kKvHeads} * kGroup;
    AttentionItem item;
    item.q = Activation(0);
    item.q_stride = kQkv;
    item.tokens = 1;
    item.q_position = context_ - 1;
    item.heads = kKvHeads;
    item.keys.pages = Pages(layer);
    item.split = split_;
    item.o = F(parts_memory_);
    item.o_stride = kQ;
    item.o_part_stride = kQ;
    item.lse = item.o + parts_ * kQ;
    item.lse_stride = rows;
    item.lse_part_stride = rows;
    AttentionParams params;
    params.scale = 0.0884f;
    kernels_->Attend(*compute_, format_, kGroup, params, {&item, 1});
  }
  void Merge() {
    const int64_t rows = int64_t{kKvHeads} * kGroup;
    MergeItem merge;
    merge.part_o = F(parts_memory_);
    merge.o_part_stride = kQ;
    merge.part_lse = merge.part_o + parts_ * kQ;
    merge.lse_part_stride = rows;
    merge.parts = static_cast<int>(parts_);
    merge.rows = rows;
    merge.o = Activation(kQkv);
    kernels_->Merge(*compute_, kHeadDim, {&merge, 1});
  }

  NormedInput Normed() {
    return {F(x_), {NormKind::kRms, F(norm_), nullptr, kEps}, 1, Activation(kQkv)};
  }

  void AddKernels() {
    const auto linear = [&](const char* name, int64_t in, int64_t out, auto run) {
      layer_.push_back({name, in * out * 2, run});
    };
    const int64_t inside = kQkv + kQ;  // where the MLP's activations begin
    linear("norm, qkv", kModel, kQkv, [this](int layer) {
      const LinearOp op = Op(layer, 0, kQkv, kModel, Activation(0), LinearResult::kActivation);
      kernels_->NormLinear(*compute_, Normed(), {&op, 1});
    });
    layer_.push_back({"rope, store kv", 2 * kQkv * activation_bytes_, [this](int l) { Rope(l); }});
    layer_.push_back({"attention", kv_bytes(), [this](int l) { Attend(l); }});
    layer_.push_back({"merge", kQ * activation_bytes_, [this](int) { Merge(); }});
    linear("o", kQ, kModel, [this](int layer) {
      const LinearOp op = Op(layer, kModel * kQkv, kModel, kQ, F(x_), LinearResult::kAddFloat);
      kernels_->Linear(*compute_, Activation(kQkv), 1, {&op, 1});
    });
    linear("norm, gate, up", kModel, 2 * kFeedForward, [this, inside](int layer) {
      const int64_t at = kModel * (kQkv + kQ);
      const auto op = [&](int64_t i) {
        return Op(layer, at + i * kModel * kFeedForward, kFeedForward, kModel,
                  Activation(inside + i * kFeedForward), LinearResult::kActivation);
      };
      kernels_->NormGatedLinear(*compute_, Normed(), op(0), op(1));
    });
    linear("down", kFeedForward, kModel, [this, inside](int layer) {
      const LinearOp op = Op(layer, kModel * (kQkv + kQ + 2 * kFeedForward), kModel, kFeedForward,
                             F(x_), LinearResult::kAddFloat);
      kernels_->Linear(*compute_, Activation(inside), 1, {&op, 1});
    });
    last_.push_back({"norm, head", kModel * kVocab * 2, [this](int) {
                       const LinearOp op =
                           Op(layers_, 0, kVocab, kModel, F(logits_), LinearResult::kFloat);
                       kernels_->NormLinear(*compute_, Normed(), {&op, 1});
                     }});
    last_.push_back({"sample, greedy", kVocab * 4, [this](int) { Sample({}); }});
  }

  const int64_t context_;
  const int layers_;
  const PageFormat format_;
  int64_t activation_bytes_ = 0, pages_ = 0, split_ = 0, parts_ = 0;
  ThreadPool pool_{0};
  Budget budget_{"benchmark", kUnlimited};
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Kernels> kernels_;
  std::unique_ptr<Stream> compute_;
  std::array<std::unique_ptr<Buffer>, 2> patterns_;
  std::unique_ptr<Buffer> weights_, kv_, open_, params_, x_, norm_, angles_, logits_, parts_memory_;
  std::unique_ptr<Buffer> activations_, sampled_;
  std::vector<Kernel> layer_, last_;
};

void Run(const std::string& device, int64_t context, int layers, Encoding encoding, int64_t split) {
  Step step(device, context, layers, encoding, split);
  const Kernel& head = step.last_kernels().front();
  const double rate = static_cast<double>(head.bytes) / step.Measure(8, head.run) * 1e-6;  // TB/s
  const double whole = step.MeasureStep(nullptr);
  std::printf(
      "context %lld, %d layers, encoding %s, parts of %lld, %.2f TB/s\n%-18s %10s %9s %9s %9s %9s "
      "%6s\n",
      static_cast<long long>(context), layers, EncodingName(encoding),
      static_cast<long long>(step.split()), rate, "kernel", "MB", "floor µs", "alone µs", "in step",
      "× a step", "share");
  double floor = 0.0;
  const auto print = [&](const Kernel& kernel, int times) {
    const double least = static_cast<double>(kernel.bytes) / rate * 1e-6;
    const double alone =
        step.Measure(4 * times, [&](int i) { kernel.run(i % std::max(times, 1)); });
    const double inside = (whole - step.MeasureStep(&kernel)) / times;
    floor += least * times;
    std::printf("%-18s %10.3f %9.2f %9.2f %9.2f %9d %5.1f%%\n", kernel.name.c_str(),
                static_cast<double>(kernel.bytes) * 1e-6, least, alone, inside, times,
                100.0 * inside * times / whole);
    if (kernel.name != "attention") return;
    std::printf("  K and V %.2f TB/s, with parameters %.2f TB/s: %.1f %% of the floor\n",
                static_cast<double>(step.code_bytes()) / alone * 1e-6,
                static_cast<double>(kernel.bytes) / alone * 1e-6, 100.0 * least / alone);
  };
  for (const Kernel& kernel : step.layer_kernels()) print(kernel, layers);
  for (const Kernel& kernel : step.last_kernels()) print(kernel, 1);
  SampleItem all;
  all.temperature = 0.8f;
  all.top_k = 50;
  all.top_p = 0.95f;
  all.min_p = 0.02f;
  all.draw = uint64_t{1} << 63;
  std::printf("%-18s %31.2f\n", "sample, all", step.Measure(16, [&](int) { step.Sample(all); }));
  std::printf("step %.1f µs, floor %.1f µs: %.1f %%\n", whole, floor, 100.0 * floor / whole);
}

}  // namespace
}  // namespace headway::bench

int main(int argc, char** argv) {
  const std::string device = argc > 1 ? argv[1] : "cuda";
  const long long context = argc > 2 ? std::atoll(argv[2]) : 1024;
  const int layers = argc > 3 ? std::atoi(argv[3]) : 32;
  const auto encoding = headway::ParseEncoding(argc > 4 ? argv[4] : "none");
  const long long split = argc > 5 ? std::atoll(argv[5]) : 0;
  if (argc > 6 || split < 0 || split % headway::kDefaultPageSlots != 0 || !encoding.ok() ||
      context < 1 || context > (int64_t{1} << 24) || layers < 1 || layers > 1000) {
    std::fprintf(stderr, "usage: decode_kernels [DEVICE [CONTEXT [LAYERS [ENCODING [SPLIT]]]]]\n");
    return 2;
  }
  headway::bench::Run(device, context, layers, *encoding, split);
  return 0;
}
