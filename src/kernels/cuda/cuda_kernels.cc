#include "kernels/cuda/cuda_kernels.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/check.h"
#include "base/log.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/cuda_stream.h"
#include "device/cuda/waiting_kernels.h"
#include "kernels/cost.h"
#include "kernels/cuda/attention_decode.h"
#include "kernels/cuda/call.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/eviction_kernels.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/matvec.h"
#include "kernels/cuda/merge.h"
#include "kernels/cuda/page_codec.h"
#include "kernels/cuda/prefill.h"
#include "kernels/cuda/sampling.h"
#include "kernels/cuda/scoring.h"
#include "kernels/cuda/sdpa.h"
#include "kernels/cuda/selection.h"
#include "kernels/cuda/uploads.h"
#include "kernels/cuda/workspace.h"
#include "kernels/items.h"

namespace headway {
namespace {

using cuda::Call;
using cuda::CudaStream;
using cuda::kJoinedMax;
using cuda::kUploads;
using Layout = cuda::WorkspaceLayout;

class CudaKernels final : public cuda::EvictionKernels {
 public:
  CudaKernels(int device, std::string name, std::unique_ptr<cuda::Gemm> gemm,
              std::unique_ptr<cuda::Sdpa> sdpa)
      : device_(device),
        name_(std::move(name)),
        gemm_(std::move(gemm)),
        sdpa_(std::move(sdpa)),
        choices_(device) {}

  std::string name() const override { return name_; }
  DType ActivationDType(DType weights) const override { return weights; }
  int64_t DecodeSplit(int64_t keys, int kv_heads) const override {
    return cuda::DecodeSplitOf(keys, kv_heads);
  }
  int64_t ListedSplit(int heads, int64_t keys) const override {
    return cuda::ListedSplitOf(heads, keys);
  }

  bool TakesEncoding(Encoding) const override { return true; }
  bool SupportsAttention(const AttentionRequest& request) const override {
    return cuda::SupportsAttention(request);
  }
  bool SupportsSelection(const PageFormat& format, const SummaryFormat& summary,
                         int group) const override {
    return cuda::SupportsSelection(format, summary, group);
  }
  bool SelectsInPrompts() const override { return true; }

  int64_t WorkspaceBytes(const KernelLimits& limits) const override { return Layout(limits).total; }

  Status Prepare(const KernelLimits& limits, Device& device, Budget& budget) override {
    const Layout layout(limits);
    Result<std::unique_ptr<Buffer>> buffer =
        device.Allocate(budget, static_cast<size_t>(layout.total), "kernel workspace");
    if (!buffer.ok()) return buffer.status();
    workspace_ = std::move(*buffer);
    std::byte* at = workspace_->data();
    const auto take = [&at](int64_t bytes) { return std::exchange(at, at + bytes); };
    gemm_workspace_ = take(cuda::kGemmWorkspaceBytes);
    std::byte* const uploads = take(kUploads * layout.upload);
    prefill_memory_ = take(layout.prefill);
    bias_ = take(layout.bias);
    sample_memory_ = take(layout.sample);
    decoded_ = take(layout.decoded);
    score_memory_ = take(cuda::kScoreMemoryBytes);
    arrived_ = reinterpret_cast<uint32_t*>(take(layout.arrived));
    Result<std::unique_ptr<Buffer>> pinned =
        device.AllocateHost(host_budget_, static_cast<size_t>(kUploads * layout.upload), "uploads");
    if (!pinned.ok()) return pinned.status();
    pinned_ = std::move(*pinned);
    cudaSetDevice(device_);
    limits_ = limits;
    dtype_ = limits.activation;
    parts_at_once_ = cuda::DecodeBlocksAtOnce(limits.activation, limits.encoding,
                                              static_cast<int>(limits.head_dim));
    const auto by =
        device.kernels_read_host_memory() ? cuda::Uploads::By::kKernel : cuda::Uploads::By::kCopy;
    return cuda::StatusOf(uploads_.Prepare(pinned_->data(), uploads, layout.upload, by), "uploads");
  }

  int64_t PartsAtOnce() const override { return parts_at_once_; }

  void Embed(Stream& stream, const WeightView& table, std::span<const TokenId> ids,
             EmbedResult result, float* x) override {
    const auto tokens = static_cast<int64_t>(ids.size());
    const int64_t element_bytes = result == EmbedResult::kAdd ? 12 : 8;
    Call call(stream, {"embed", tokens * table.in * element_bytes, 0});
    const auto* on_device = static_cast<const TokenId*>(ToDevice(call, std::as_bytes(ids)));
    call.Check(cuda::Embed(call.native(), table, {on_device, ids.size()}, result, x), "embed");
  }

  void Norm(Stream& stream, const float* x, const NormView& norm, int64_t rows, int64_t width,
            void* y) override {
    Call call(stream, NormCost(norm, rows * width, Bytes()));
    call.Check(cuda::Norm(call.native(), {x, rows, width}, norm, dtype_, y), "norm");
  }

  void NormInPlace(Stream& stream, const NormView& norm, int64_t rows, int64_t width,
                   float* x) override {
    Call call(stream, NormCost(norm, rows * width, 4));
    call.Check(cuda::Norm(call.native(), {x, rows, width}, norm, DType::kF32, x), "norm");
  }

  void HeadNorm(Stream& stream, const float* weight, float eps, const HeadRows& rows) override {
    const int64_t elements = rows.tokens * rows.heads * rows.head_dim;
    Call call(stream, {"head norm", 2 * elements * Bytes(), 4 * elements});
    call.Check(cuda::HeadNorm(call.native(), dtype_, weight, eps, rows), "head norm");
  }

  void Linear(Stream& stream, const void* x, int64_t rows, std::span<const LinearOp> ops) override {
    Call call(stream, LinearCost(rows, ops, Bytes()));
    if (rows <= cuda::kMatVecRowsMax) {
      call.Check(cuda::MatVec(call.native(), dtype_, x, rows, ops), "matrix × vector");
      return;
    }
    while (!ops.empty()) {
      LinearOp joined = ops.front();
      size_t count = 1;
      while (count < std::min<size_t>(ops.size(), kJoinedMax) && Follows(joined, ops[count])) {
        joined.weight.out += ops[count++].weight.out;
      }
      const std::span<const LinearOp> same = ops.first(count);
      ops = ops.subspan(count);
      if (joined.weight.dtype == dtype_) {
        call.Check(gemm_->Run(call.native(), x, rows, joined, Bias(call, same), gemm_workspace_));
        if (!IsGelu(joined.result)) continue;
        const cuda::ActivationRows y = {joined.y, rows, joined.weight.out, joined.y_stride};
        call.Check(cuda::GeluInPlace(call.native(), dtype_, joined.result, y), "gelu");
      } else {
        SlowLinear(call, x, rows, same);
      }
    }
  }

  void LeaveMultiprocessors(int count) override { gemm_->Leave(count); }

  void NormLinear(Stream& stream, const NormedInput& input,
                  std::span<const LinearOp> ops) override {
    const cuda::MatVecNorm fused = {input.x, input.norm};
    if (input.rows != 1 || !cuda::CanNormMatVec(fused, ops)) {
      return Kernels::NormLinear(stream, input, ops);
    }
    Call call(stream, LinearCost(input.rows, ops, Bytes()));
    call.Check(cuda::NormMatVec(call.native(), dtype_, fused, ops), "norm, matrix × vector");
  }

  void NormGatedLinear(Stream& stream, const NormedInput& input, const LinearOp& gate,
                       const LinearOp& up) override {
    const cuda::MatVecNorm fused = {input.x, input.norm};
    const std::array<LinearOp, 2> ops = {gate, up};
    if (input.rows != 1 || !cuda::CanNormMatVec(fused, ops)) {
      return Kernels::NormGatedLinear(stream, input, gate, up);
    }
    Call call(stream, LinearCost(input.rows, ops, Bytes()));
    call.Check(cuda::NormMatVecSwiGlu(call.native(), dtype_, fused, gate, up),
               "norm, gated matrix × vector");
  }

  void GatedLinear(Stream& stream, const void* x, int64_t rows, const LinearOp& gate,
                   const LinearOp& up) override {
    if (rows > cuda::kMatVecRowsMax) return Kernels::GatedLinear(stream, x, rows, gate, up);
    const std::array<LinearOp, 2> ops = {gate, up};
    Call call(stream, LinearCost(rows, ops, Bytes()));
    call.Check(cuda::MatVecSwiGlu(call.native(), dtype_, x, rows, gate, up),
               "gated matrix × vector");
  }

  void SwiGlu(Stream& stream, const void* gate, const void* up, int64_t count, void* y) override {
    Call call(stream, {"swiglu", 3 * count * Bytes(), 14 * count});
    call.Check(cuda::SwiGlu(call.native(), dtype_, gate, up, count, y), "swiglu");
  }

  void CorrectRows(Stream& stream, const CorrectRowsItem& item) override {
    const int64_t elements = item.rows * item.width;
    Call call(stream,
              {"correct rows", 2 * elements * Bytes() + item.blocks() * item.width * 4, elements});
    call.Check(cuda::CorrectRows(call.native(), dtype_, item), "correct rows");
  }

  void RopeAngles(Stream& stream, const RopeAnglesItem& item) override {
    const auto angles = static_cast<int64_t>(item.positions.size()) * item.rotary_dim;
    Call call(stream, {"rope angles", angles * 4, 20 * angles});
    const std::span frequencies(item.inv_freq, static_cast<size_t>(item.rotary_dim / 2));
    RopeAnglesItem on_device = item;
    on_device.positions = {
        static_cast<const int32_t*>(ToDevice(call, std::as_bytes(item.positions))),
        item.positions.size()};
    on_device.inv_freq = static_cast<const float*>(ToDevice(call, std::as_bytes(frequencies)));
    call.Check(cuda::RopeAngles(call.native(), on_device), "rope angles");
  }

  void Rope(Stream& stream, const RopeTable& table, const HeadRows& rows) override {
    const int64_t elements = rows.tokens * rows.heads * table.rotary_dim;
    Call call(stream, {"rope", 2 * elements * Bytes(), 3 * elements});
    call.Check(cuda::Rope(call.native(), dtype_, table, rows), "rope");
  }

  void StoreKv(Stream& stream, const PageFormat& format,
               std::span<const StoreKvItem> items) override {
    Call call(stream, StoreKvCost(format, items, Bytes()));
    call.Check(cuda::StoreKv(call.native(), dtype_, format, items), "store kv");
  }

  void RopeStoreKv(Stream& stream, const PageFormat& format,
                   std::span<const RopeStoreItem> items) override {
    WorkCost cost = {.name = "rope, store kv"};
    for (const RopeStoreItem& item : items) {
      const int64_t elements =
          item.kv.to.count * item.table.rotary_dim * (item.query_heads + item.kv.heads);
      cost.bytes += StoreKvCost(format, {&item.kv, 1}, Bytes()).bytes + 2 * elements * Bytes();
      cost.flops += 3 * elements;
    }
    Call call(stream, cost);
    call.Check(cuda::RopeStoreKv(call.native(), dtype_, format, items), "rope and store kv");
  }

  void TurnKeys(Stream& stream, const PageFormat& format, const TurnKeysItem& item) override {
    Call call(stream, TurnKeysCost(format, item));
    call.Check(cuda::TurnKeys(call.native(), format, item), "turning keys");
  }

  void ExpandWeights(Stream& stream, const std::byte* code, int64_t bytes, std::byte* to) override {
    Call call(stream, ExpandWeightsCost(bytes));
    call.Check(cuda::ExpandWeights(call.native(), code, bytes, to), "expanding weights");
  }

  void EncodePages(Stream& stream, const PageFormat& format,
                   std::span<const EncodePagesItem> items) override {
    Call call(stream, EncodePagesCost(format, items));
    call.Check(cuda::EncodePages(call.native(), format, items), "encoding pages");
  }

  void Attend(Stream& stream, const PageFormat& format, int group, const AttentionParams& params,
              std::span<const AttentionItem> items) override {
    Call call(stream, [&] { return AttendCost(format, group, params, items, Bytes()); });
    const auto supported = [&](const AttentionItem& item) {
      return SupportsAttention(RequestOf(format, group, params, item));
    };
    // Of decode steps, and others that are too few for cuDNN.
    const auto few_queries = [&](const AttentionItem& item) {
      return item.result == nullptr &&
             (item.tokens == 1 || item.split != 0 || item.tokens * group <= cuda::kFewQueriesMax);
    };
    std::span<const AttentionItem> few = items;
    // Mostly all are: a step of many sequences has thousands, which are not copied.
    if (!std::all_of(items.begin(), items.end(), [&](const AttentionItem& item) {
          return few_queries(item) && supported(item);
        })) {
      few_.clear();
      for (const AttentionItem& item : items) {
        if (!supported(item)) {
          call.Check(
              Status(StatusCode::kUnsupported,
                     "attention on a GPU takes head sizes of multiples of 8 up to 256 and pages on "
                     "16 bytes, without key transform and key mass"));
        } else if (few_queries(item)) {
          few_.push_back(item);
        } else {
          const cuda::PrefillResources resources = {prefill_memory_, decoded_, limits_,
                                                    sdpa_.get()};
          call.Check(cuda::AttendPrefill(call.native(), resources, format, group, params, item));
        }
      }
      few = few_;
    }
    if (few.empty()) return;
    call.Check(cuda::AttendDecode({call.native(), &uploads_}, format, dtype_, group, params, few),
               "decode attention");
  }

  void Merge(Stream& stream, int head_dim, std::span<const MergeItem> items) override {
    Call call(stream, [&] { return MergeCost(head_dim, items, Bytes()); });
    call.Check(cuda::Merge(call.native(), dtype_, head_dim, items), "merge");
  }
  void ScaleHeld(Stream& stream, int head_dim, int group,
                 std::span<const ScaleHeldItem> items) override {
    Call call(stream, [&] { return ScaleHeldCost(head_dim, group, items, Bytes()); });
    call.Check(cuda::ScaleHeld(call.native(), dtype_, {head_dim, group}, items), "scale held");
  }

  void Summarize(Stream& stream, const PageFormat& format, const SummaryFormat& summary,
                 std::span<const SummarizeItem> items) override {
    if (!TakesSelection(stream, format, summary, 1)) return;
    Call call(stream, SummarizeCost(format, summary, items));
    for (const SummarizeItem& item : items) {
      call.Check(cuda::Summarize(call.native(), format, summary, item), "summarizing blocks");
    }
  }

  void SelectBlocks(Stream& stream, const PageFormat& format, const SummaryFormat& summary,
                    int group, float scale, std::span<const SelectItem> items) override {
    if (!TakesSelection(stream, format, summary, group)) return;
    Call call(stream, SelectCost(format, summary, group, items, Bytes()));
    const cuda::WaitingKernels::Turn turn = choices_.Take(call.native());
    const cuda::SelectionShape shape = {format, summary, group, scale, dtype_};
    for (const SelectItem& item : items) {
      call.Check(cuda::SelectBlocks(call.native(), shape, item, turn.alone), "selecting blocks");
    }
  }

  void AttendBlocks(Stream& stream, const PageFormat& format, const SummaryFormat& summary,
                    int group, float scale, std::span<const AttendBlocksItem> items) override {
    if (!TakesSelection(stream, format, summary, group)) return;
    int64_t listed = 0;  // at most: how many only the device knows
    for (const AttendBlocksItem& item : items) {
      if (item.attended) continue;
      listed += CeilDiv(item.rows, kSelectRows) * item.keys.heads *
                std::min(item.capacity, item.keys.blocks);
    }
    Call call(stream, AttendBlocksCost(format, summary, group, items, listed, Bytes()));
    for (const AttendBlocksItem& item : items) {
      call.Check(cuda::AttendBlocks(call.native(), {format, summary, group, scale, dtype_}, item,
                                    {arrived_, static_cast<size_t>(limits_.query_heads)}),
                 "attention to blocks");
    }
  }

  void Sample(Stream& stream, std::span<const SampleItem> items) override {
    Call call(stream, SampleCost(items));
    for (const SampleItem& item : items) {
      HEADWAY_CHECK(item.vocab <= limits_.vocab);
      const auto at_once = static_cast<size_t>(uploads_.bytes()) / sizeof(TokenPenalty);
      for (std::span<const TokenPenalty> rest = item.penalties; !rest.empty();) {
        const std::span<const TokenPenalty> some = rest.first(std::min(rest.size(), at_once));
        rest = rest.subspan(some.size());
        const void* on_device = ToDevice(call, std::as_bytes(some));
        call.Check(cuda::Penalise(call.native(), item, static_cast<const TokenPenalty*>(on_device),
                                  static_cast<int64_t>(some.size())),
                   "penalties");
      }
    }
    for (size_t at = 0; at < items.size(); at += cuda::kSampleRowsMax) {
      const auto rows = std::min<size_t>(items.size() - at, cuda::kSampleRowsMax);
      call.Check(cuda::Sample(call.native(), items.subspan(at, rows), sample_memory_), "sampling");
    }
  }

  void Score(Stream& stream, std::span<const ScoreItem> items) override {
    Call call(stream, ScoreCost(items));
    for (size_t at = 0; at < items.size(); at += cuda::kScoreRowsMax) {
      const auto rows = std::min<size_t>(items.size() - at, cuda::kScoreRowsMax);
      call.Check(cuda::Score(call.native(), items.subspan(at, rows), score_memory_), "scoring");
    }
  }

 protected:
  DType dtype() const override { return dtype_; }

 private:
  int64_t Bytes() const { return static_cast<int64_t>(DTypeBytes(dtype_)); }

  // Whether these pages and blocks are supported; others are an error of the stream.
  static bool TakesSelection(Stream& stream, const PageFormat& format, const SummaryFormat& summary,
                             int group) {
    if (cuda::SupportsSelection(format, summary, group)) return true;
    static_cast<CudaStream&>(stream).Fail(
        Status(StatusCode::kUnsupported,
               "selection on a GPU takes head sizes of multiples of 8 up to 256, groups of up to "
               "16 and blocks of multiples of 8 slots up to 64"));
    return false;
  }

  // A copy of small host data for kernels of this call.
  const void* ToDevice(Call& call, std::span<const std::byte> bytes) {
    HEADWAY_CHECK(static_cast<int64_t>(bytes.size()) <= uploads_.bytes());
    const std::byte* on_device = nullptr;
    call.Check(uploads_.Put(call.native(), bytes, &on_device), "an upload");
    return on_device;
  }

  // Whether `next` continues the product `op`: rows of one matrix, columns of one result.
  bool Follows(const LinearOp& op, const LinearOp& next) const {
    const auto element = static_cast<int64_t>(DTypeBytes(op.weight.dtype));
    const int64_t y_element = IsActivation(op.result) ? Bytes() : 4;
    return next.weight.dtype == op.weight.dtype && next.weight.in == op.weight.in &&
           next.weight.data == op.weight.data + op.weight.out * op.weight.in * element &&
           next.result == op.result && next.y_stride == op.y_stride &&
           next.y == static_cast<std::byte*>(op.y) + op.weight.out * y_element;
  }

  // What joined ops add to their product, as Gemm takes it; null: nothing.
  const void* Bias(Call& call, std::span<const LinearOp> ops) {
    if (std::all_of(ops.begin(), ops.end(),
                    [](const LinearOp& op) { return op.bias == nullptr; })) {
      return nullptr;
    }
    const DType dtype = IsActivation(ops.front().result) ? dtype_ : DType::kF32;
    if (ops.size() == 1 && dtype == DType::kF32 &&
        reinterpret_cast<uintptr_t>(ops.front().bias) % 16 == 0) {
      return ops.front().bias;  // as it is
    }
    int64_t out = 0;
    for (const LinearOp& op : ops) out += op.weight.out;
    HEADWAY_CHECK(out <= kJoinedMax * limits_.max_out);
    call.Check(cuda::JoinBiases(call.native(), dtype, ops, bias_), "biases");
    return bias_;
  }

  // Rows a few at a time, for weights whose dtype is not the activations'.
  void SlowLinear(Call& call, const void* x, int64_t rows, std::span<const LinearOp> ops) {
    for (int64_t row = 0; row < rows; row += cuda::kMatVecRowsMax) {
      std::vector<LinearOp> part(ops.begin(), ops.end());
      for (LinearOp& op : part) {
        const int64_t y_element = IsActivation(op.result) ? Bytes() : 4;
        op.y = static_cast<std::byte*>(op.y) + row * op.y_stride * y_element;
      }
      call.Check(
          cuda::MatVec(call.native(), dtype_,
                       static_cast<const std::byte*>(x) + row * ops.front().weight.in * Bytes(),
                       std::min(cuda::kMatVecRowsMax, rows - row), part),
          "matrix × vector");
    }
  }

  const int device_;
  const std::string name_;
  const std::unique_ptr<cuda::Gemm> gemm_;
  const std::unique_ptr<cuda::Sdpa> sdpa_;  // null without cuDNN
  cuda::WaitingKernels choices_;            // outlives the memory that they work on
  DType dtype_ = DType::kBF16;
  int parts_at_once_ = 0;
  KernelLimits limits_;
  std::unique_ptr<Buffer> workspace_;
  Budget host_budget_{"uploads", kUnlimited};  // kUploads of them
  std::unique_ptr<Buffer> pinned_;
  void* gemm_workspace_ = nullptr;
  void* bias_ = nullptr;  // of the product at hand
  std::byte* prefill_memory_ = nullptr;
  std::byte* sample_memory_ = nullptr;
  std::byte* score_memory_ = nullptr;
  uint32_t* arrived_ = nullptr;   // [query heads]: 0 between calls
  std::byte* decoded_ = nullptr;  // keys and values of encoded pages, for a prefill
  cuda::Uploads uploads_;
  std::vector<AttentionItem> few_;
};

}  // namespace

Result<std::unique_ptr<Kernels>> NewCudaKernels(int device) {
  Result<CudaInfo> info = DescribeCudaDevice(device);
  if (!info.ok()) return info.status();
  Result<std::unique_ptr<cuda::Gemm>> gemm = cuda::Gemm::Create();
  if (!gemm.ok()) return gemm.status();
  Result<std::unique_ptr<cuda::Sdpa>> sdpa = cuda::Sdpa::Create(device);
  if (!sdpa.ok())
    Log(LogLevel::kWarning,
        "attention of prefill is slower than it could be: " + sdpa.status().message());
  return std::unique_ptr<Kernels>(std::make_unique<CudaKernels>(
      device, "cuda sm_" + std::to_string(info->major) + std::to_string(info->minor),
      std::move(*gemm), sdpa.ok() ? std::move(*sdpa) : nullptr));
}

}  // namespace headway
