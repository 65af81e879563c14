// Where the time of a prefill on a GPU goes: every kernel of a layer of Llama 3 8B, on a chunk of
// 8,192 tokens, beside what it must move and compute. The floor of a kernel is the longer of its
// bytes at the speed of a copy and its FLOPs at the best rate that a product, or an attention,
// reaches in the same run.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/check.h"
#include "base/env.h"
#include "base/half.h"
#include "base/random.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/cuda_stream.h"
#include "kernels/cost.h"
#include "kernels/cuda/attention_prefill.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/merge.h"

namespace headway::bench {
namespace {

constexpr int64_t kTokens = 8192;
constexpr int kLayers = 32;
constexpr int kKvHeads = 8, kGroup = 4, kHeadDim = 128;
constexpr int kHeads = kKvHeads * kGroup;
constexpr int64_t kModel = int64_t{kHeads} * kHeadDim;
constexpr int64_t kKv = int64_t{kKvHeads} * kHeadDim;
constexpr int64_t kQkv = kModel + 2 * kKv;
constexpr int64_t kFf = 14336;
constexpr int64_t kWindow = 4096;
constexpr DType kDType = DType::kBF16;

void Must(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.message().c_str());
  std::exit(1);
}
void Must(cudaError_t error, const char* what) { Must(cuda::StatusOf(error, what)); }

enum class Kind { kMemory, kProduct, kAttention };

struct Row {
  std::string name;
  Kind kind = Kind::kMemory;
  double bytes = 0;
  double flops = 0;
  double seconds = 0;
  // How often a layer does it, of a chunk with no keys before it and of one with one segment of
  // kTokens keys more; 0: for comparison only.
  int first = 0, segment = 0;
};

class Bench {
 public:
  Bench() {
    Result<std::unique_ptr<Device>> device = NewCudaDevice({}, Env::Default(), nullptr);
    Must(device.status());
    device_ = std::move(*device);
    Result<std::unique_ptr<Kernels>> kernels = NewCudaKernels(0);
    Must(kernels.status());
    kernels_ = std::move(*kernels);
    stream_ = *device_->NewStream(Lane::kCompute);
    KernelLimits limits;
    limits.rows = kTokens;
    limits.max_in = kFf;
    limits.max_out = kFf;
    limits.head_dim = kHeadDim;
    limits.group = kGroup;
    limits.query_heads = kHeads;
    limits.activation = kDType;
    Must(kernels_->Prepare(limits, *device_, budget_));
    FillPattern();
    weights_ = Random16(kQkv * kModel + kModel * kModel + 3 * kFf * kModel);
    normed_ = Random16(kTokens * kModel);
    qkv_ = Random16(kTokens * kQkv);
    ff_ = Random16(2 * kTokens * kFf);
    // Every row of a head is a key: 2 segments.
    pages_ = Random16(2 * 2 * kTokens * kKv);
    x_ = Floats(kTokens * kModel);
    o_ = Floats(kTokens * kModel);
    lse_ = Floats(kTokens * kHeads);
    vector_ = Floats(kFf);
    angles_ = Floats(kTokens * kHeadDim);
  }

  void Run() {
    Products();
    Attentions();
    Choices();
    Merges();
    Elementwise();  // last: it leaves numbers that no model has
    Print();
  }

 private:
  std::byte* Random16(int64_t count) { return Take(count * 2); }
  float* Floats(int64_t count) {
    std::byte* memory = Take(count * 4);
    Must(cudaMemset(memory, 0, static_cast<size_t>(count) * 4), "clearing");
    return reinterpret_cast<float*>(memory);
  }
  std::byte* Take(int64_t bytes) {
    Result<std::unique_ptr<Buffer>> made =
        device_->Allocate(budget_, static_cast<size_t>(bytes), "bench");
    Must(made.status());
    std::byte* to = (*made)->data();
    const auto step = static_cast<int64_t>(pattern_.size());
    for (int64_t at = 0; at < bytes; at += step) {
      Must(cudaMemcpy(to + at, pattern_.data(), static_cast<size_t>(std::min(step, bytes - at)),
                      cudaMemcpyHostToDevice),
           "filling");
    }
    buffers_.push_back(std::move(*made));
    return to;
  }
  // Normal numbers: products of zeros are faster than those of a model.
  void FillPattern() {
    Random random(1);
    constexpr int64_t kCount = int64_t{1} << 20;
    pattern_.resize(kCount * 2);
    for (int64_t i = 0; i < kCount; ++i) StoreFloat(pattern_.data(), i, kDType, random.Normal());
  }

  // Seconds of one call: the median of rounds of about 20 ms, behind one that warms up.
  double Seconds(const std::function<void()>& work) {
    int count = 1;
    std::vector<double> rounds;
    while (rounds.size() < 6) {
      Must(stream_->Synchronize());
      const int64_t start = Env::Default()->NowNanos();
      for (int i = 0; i < count; ++i) work();
      Must(stream_->Synchronize());
      const double seconds = static_cast<double>(Env::Default()->NowNanos() - start) * 1e-9;
      if (rounds.empty()) count = std::max(1, static_cast<int>(0.02 * count / seconds));
      rounds.push_back(seconds / count);
      if (rounds.size() == 1) rounds[0] = 1e9;  // with another count, and cold
    }
    std::sort(rounds.begin(), rounds.end());
    return rounds[2];
  }
  void Add(Row row, const std::function<void()>& work) {
    row.seconds = Seconds(work);
    rows_.push_back(std::move(row));
  }
  cudaStream_t native() const { return static_cast<cuda::CudaStream&>(*stream_).native(); }

  // ---- Products.

  LinearOp Op(int64_t weight_at, int64_t out, int64_t in, void* y, LinearResult result) {
    LinearOp op;
    op.weight = {weights_ + weight_at * 2, kDType, out, in};
    op.y = y;
    op.y_stride = out;
    op.result = result;
    return op;
  }
  void Product(const std::string& name, int count, const void* x, std::vector<LinearOp> ops) {
    const WorkCost cost = LinearCost(kTokens, ops, 2);
    Add({name, Kind::kProduct, static_cast<double>(cost.bytes), static_cast<double>(cost.flops), 0,
         count, 0},
        [&] { kernels_->Linear(*stream_, x, kTokens, ops); });
  }
  static constexpr int64_t kOAt = kQkv * kModel;
  static constexpr int64_t kGateAt = kOAt + kModel * kModel;
  static constexpr int64_t kUpAt = kGateAt + kFf * kModel;
  static constexpr int64_t kDownAt = kUpAt + kFf * kModel;

  std::vector<LinearOp> QkvOps(const float* bias) {
    std::vector<LinearOp> ops;
    int64_t column = 0;
    for (const int64_t out : {kModel, kKv, kKv}) {
      ops.push_back(Op(column * kModel, out, kModel, qkv_ + column * 2, LinearResult::kActivation));
      ops.back().y_stride = kQkv;
      ops.back().bias = bias;
      column += out;
    }
    return ops;
  }
  void Products() {
    const auto activation = LinearResult::kActivation;
    Product("qkv", 1, normed_, QkvOps(nullptr));
    Product("qkv with biases", 0, normed_, QkvOps(vector_));
    Product("o, added to the residual", 1, normed_,
            {Op(kOAt, kModel, kModel, x_, LinearResult::kAddFloat)});
    Product("o as an activation", 0, normed_, {Op(kOAt, kModel, kModel, qkv_, activation)});
    Product("gate, up", 1, normed_,
            {Op(kGateAt, kFf, kModel, ff_, activation),
             Op(kUpAt, kFf, kModel, ff_ + kTokens * kFf * 2, activation)});
    Product("gate and up as one", 0, normed_, {Op(kGateAt, 2 * kFf, kModel, ff_, activation)});
    Product("down, added to the residual", 1, ff_,
            {Op(kDownAt, kModel, kFf, x_, LinearResult::kAddFloat)});
    Product("down as an activation", 0, ff_, {Op(kDownAt, kModel, kFf, qkv_, activation)});
  }
  // Whether another of cuBLASLt's proposals would have been better than its first.
  void Choices() {
    std::byte* workspace = Take(cuda::kGemmWorkspaceBytes);
    const std::vector<std::pair<std::string, LinearOp>> ops = {
        {"qkv", Op(0, kQkv, kModel, qkv_, LinearResult::kActivation)},
        {"o", Op(kOAt, kModel, kModel, x_, LinearResult::kAddFloat)},
        {"gate", Op(kGateAt, kFf, kModel, ff_, LinearResult::kActivation)},
        {"down", Op(kDownAt, kModel, kFf, x_, LinearResult::kAddFloat)}};
    std::printf("cuBLASLt's proposals, first to eighth, us:\n");
    for (const auto& [name, op] : ops) {
      std::printf("  %-5s", name.c_str());
      for (int choice = 0; choice < 8; ++choice) {
        Result<std::unique_ptr<cuda::Gemm>> gemm = cuda::Gemm::Create(choice);
        Must(gemm.status());
        const void* x = op.weight.in == kFf ? ff_ : normed_;
        const double seconds =
            Seconds([&] { Must((*gemm)->Run(native(), x, kTokens, op, nullptr, workspace)); });
        std::printf(" %8.1f", seconds * 1e6);
      }
      std::printf("\n");
    }
    std::printf("\n");
  }

  // ---- Attention.

  // The chunk against a segment of kTokens keys: `own` are its own keys, others lie before it.
  AttentionItem Item(bool own, bool merge, bool result) {
    AttentionItem item;
    item.q = qkv_;
    item.q_stride = kQkv;
    item.tokens = kTokens;
    item.q_position = kTokens;
    item.heads = kKvHeads;
    const int64_t plane = kTokens * kKv * 2;
    item.keys.pages = {.k = pages_ + (own ? 2 * plane : 0),
                       .v = pages_ + (own ? 3 * plane : plane),
                       .page_stride = static_cast<int64_t>(format_.bytes()),
                       .head_stride = kTokens * kHeadDim * 2,
                       .count = kTokens,
                       .readable = kTokens};
    item.keys.position = own ? kTokens : 0;
    item.o = o_;
    item.o_stride = kModel;
    item.lse = lse_;
    item.lse_stride = kHeads;
    item.merge = merge;
    if (result) item.result = normed_;
    item.result_stride = kModel;
    return item;
  }
  void Attention(const std::string& name, int first, int segment, const AttentionParams& params,
                 const AttentionItem& item, bool tiles) {
    const WorkCost cost = AttendCost(format_, kGroup, params, {&item, 1}, 2);
    Add({name, Kind::kAttention, static_cast<double>(cost.bytes), static_cast<double>(cost.flops),
         0, first, segment},
        [&] {
          if (tiles) {
            Must(cuda::AttendTiles(native(), format_, kDType, kGroup, params, item), "attention");
          } else {
            kernels_->Attend(*stream_, format_, kGroup, params, {&item, 1});
          }
        });
  }
  void Attentions() {
    AttentionParams params;
    params.scale = 0.001f;  // the queries are products of many terms; no softmax of one key
    Attention("attention, own keys, alone", 1, 0, params, Item(true, false, true), false);
    Attention("attention, own keys, merged last", 0, 0, params, Item(true, true, true), false);
    Attention("attention, segment, first", 0, 0, params, Item(false, false, false), false);
    Attention("attention, segment, merged", 0, 1, params, Item(false, true, false), false);
    Attention("tile kernel, own keys, alone", 0, 0, params, Item(true, false, true), true);
    Attention("tile kernel, segment, merged", 0, 0, params, Item(false, true, false), true);
    params.window = kWindow;
    Attention("window 4096, own keys", 0, 0, params, Item(true, false, true), true);
  }

  // ---- The rest.

  // A state of all query heads merged as prefill merges those of cuDNN, whose logarithms lie head
  // by head: the first becomes f32, the last is added to that and becomes activations.
  void Merges() {
    cuda::StateMerge merge;
    merge.o = o_;
    merge.o_stride = kModel;
    merge.lse = lse_;
    merge.lse_stride = kHeads;
    merge.part_o = ff_;
    merge.part_o_token_stride = kModel;
    merge.part_o_head_stride = kHeadDim;
    merge.part_lse = angles_;
    merge.part_lse_token_stride = 1;
    merge.part_lse_head_stride = kTokens;
    merge.tokens = kTokens;
    merge.heads = kHeads;
    merge.first = true;
    const double states = static_cast<double>(kTokens * kHeads);
    Memory("merge, first state", 0, states * (kHeadDim * 6 + 8),
           [&, merge] { Must(cuda::MergeState(native(), kDType, kHeadDim, merge), "merge"); });
    merge.first = false;
    merge.result = normed_;
    merge.result_stride = kModel;
    Memory("merge, last state", 0, states * (kHeadDim * 8 + 8),
           [&, merge] { Must(cuda::MergeState(native(), kDType, kHeadDim, merge), "merge"); });
  }

  void Memory(const std::string& name, int count, double bytes, const std::function<void()>& work) {
    Add({name, Kind::kMemory, bytes, 0, 0, count, 0}, work);
  }
  void Elementwise() {
    const double tokens = kTokens;
    Memory("rmsnorm", 2, tokens * kModel * 6, [&] {
      kernels_->Norm(*stream_, x_, {NormKind::kRms, vector_, nullptr, 1e-5f}, kTokens, kModel,
                     normed_);
    });
    RopeStoreItem item;
    item.q = qkv_;
    item.q_stride = kQkv;
    item.query_heads = kHeads;
    item.table = {angles_, angles_ + kTokens * kHeadDim / 2, kHeadDim};
    item.kv.k = qkv_ + kModel * 2;
    item.kv.v = qkv_ + (kModel + kKv) * 2;
    item.kv.kv_stride = kQkv;
    item.kv.heads = kKvHeads;
    item.kv.to = Item(true, false, false).keys.pages;
    Memory("rope, store kv", 1, tokens * (2 * kModel + 5 * kKv) * 2 + tokens * kHeadDim * 4, [&] {
      kernels_->RopeStoreKv(*stream_, format_, {&item, 1});
    });
    Memory("swiglu", 1, tokens * kFf * 6,
           [&] { kernels_->SwiGlu(*stream_, ff_, ff_ + kTokens * kFf * 2, kTokens * kFf, ff_); });
    const int64_t half = kTokens * kFf;  // elements of 16 bits
    Memory("copy", 0, 4.0 * static_cast<double>(half), [&] {
      Must(cudaMemcpyAsync(ff_ + half * 2, ff_, static_cast<size_t>(half) * 2,
                           cudaMemcpyDeviceToDevice, native()),
           "copying");
    });
  }

  // ---- The table.

  double Best(Kind kind) const {
    double best = 0;
    for (const Row& row : rows_) {
      if (row.kind == kind) {
        best = std::max(best, (kind == Kind::kMemory ? row.bytes : row.flops) / row.seconds);
      }
    }
    return best;
  }
  void Print() const {
    const double memory = rows_.back().bytes / rows_.back().seconds;  // the copy's
    const double product = Best(Kind::kProduct);
    const double attention = Best(Kind::kAttention);
    std::printf("copy %.2f TB/s, products %.0f TFLOP/s, attention %.0f TFLOP/s\n\n", memory * 1e-12,
                product * 1e-12, attention * 1e-12);
    std::printf("%-34s %8s %8s %9s %9s %6s %7s\n", "kernel, 8,192 tokens of a layer", "MB", "GFLOP",
                "floor us", "us", "share", "TFLOP/s");
    double first = 0, segment = 0, first_floor = 0, segment_floor = 0;
    for (const Row& row : rows_) {
      const double peak = row.kind == Kind::kAttention ? attention : product;
      const double floor = std::max(row.bytes / memory, row.flops / peak);
      std::printf("%-34s %8.0f %8.0f %9.1f %9.1f %5.0f%% %7.0f%s\n", row.name.c_str(),
                  row.bytes * 1e-6, row.flops * 1e-9, floor * 1e6, row.seconds * 1e6,
                  100 * floor / row.seconds, row.flops / row.seconds * 1e-12,
                  row.first + row.segment > 0 ? "" : "   (not in the sums)");
      first += row.first * row.seconds;
      segment += row.segment * row.seconds;
      // As `bench` counts it: products and attention alone.
      first_floor += row.first * row.flops / peak;
      segment_floor += row.segment * row.flops / peak;
    }
    std::printf("\n");
    for (const int chunks : {1, 4, 16}) {
      const double segments = chunks * (chunks - 1) / 2.0;
      const double seconds = kLayers * (chunks * first + segments * segment);
      const double floor = kLayers * (chunks * first_floor + segments * segment_floor);
      std::printf("%6lld tokens: %6.0f tokens/s by these sums, %2.0f %% of the floor's %.0f\n",
                  static_cast<long long>(chunks * kTokens),
                  static_cast<double>(chunks * kTokens) / seconds, 100 * floor / seconds,
                  static_cast<double>(chunks * kTokens) / floor);
    }
  }

  const PageFormat format_ = {kDType, kDefaultPageSlots, kHeadDim};
  Budget budget_{"bench", kUnlimited};
  std::unique_ptr<Device> device_;
  std::unique_ptr<Kernels> kernels_;
  std::unique_ptr<Stream> stream_;
  std::vector<std::unique_ptr<Buffer>> buffers_;
  std::vector<std::byte> pattern_;
  std::byte *weights_, *normed_, *qkv_, *ff_, *pages_;
  float *x_, *o_, *lse_, *vector_, *angles_;
  std::vector<Row> rows_;
};

}  // namespace
}  // namespace headway::bench

int main() {
  headway::bench::Bench().Run();
  return 0;
}
