#include "kernels/cpu/cpu_kernels.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "base/env.h"
#include "base/half.h"
#include "kernels/cost.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/eviction.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/linear.h"
#include "kernels/cpu/selection.h"
#include "kernels/decode_rest.h"
#include "kernels/host_sampler.h"
#include "kernels/items.h"
#include "kernels/lossless_codec.h"

namespace headway {
namespace {

// Below this many bytes touched, handing work to the pool costs more than it saves.
constexpr int64_t kParallelBytes = 128 * kKiB;

constexpr int64_t kFloat = static_cast<int64_t>(sizeof(float));

// Adds what a call cost to the trace when it ends.
class Traced {
 public:
  Traced(Trace* trace, Lane lane, const char* name, int64_t bytes, int64_t flops)
      : Traced(trace, lane, WorkCost{.name = name, .bytes = bytes, .flops = flops}) {}
  Traced(Trace* trace, Lane lane, const WorkCost& cost) : trace_(trace), lane_(lane), cost_(cost) {
    if (trace_ != nullptr) start_ns_ = Env::Default()->NowNanos();
  }
  ~Traced() {
    if (trace_ == nullptr) return;
    trace_->Add(lane_, cost_, trace_->place(), start_ns_, Env::Default()->NowNanos());
  }
  Traced(const Traced&) = delete;
  Traced& operator=(const Traced&) = delete;

 private:
  Trace* trace_;
  Lane lane_;
  WorkCost cost_;
  int64_t start_ns_ = 0;
};

class CpuKernels : public Kernels {
 public:
  CpuKernels(ThreadPool* pool, Trace* trace, Isa isa)
      : pool_(*pool),
        trace_(trace),
        isa_(isa),
        elementwise_(cpu::ElementwiseFor(isa)),
        linear_(cpu::LinearCodeFor(isa)) {}

  std::string name() const override { return std::string("cpu ") + IsaName(isa_); }
  DType ActivationDType(DType) const override { return DType::kF32; }
  int64_t DecodeSplit(int64_t, int) const override { return 512; }

  // One call runs at a time, so Linear and Attend use the same memory.
  int64_t WorkspaceBytes(const KernelLimits& limits) const override {
    const int64_t linear = cpu::LinearScratchBytes(linear_, limits, pool_.threads());
    const int64_t attention = cpu::AttentionScratchBytes(limits, pool_.threads());
    return RoundUp(std::max(linear, attention), kDirectAlignment);
  }

  Status Prepare(const KernelLimits& limits, Device& device, Budget& budget) override {
    const int64_t bytes = WorkspaceBytes(limits);
    if (bytes == 0) return OkStatus();
    Result<std::unique_ptr<Buffer>> buffer =
        device.Allocate(budget, static_cast<size_t>(bytes), "kernel workspace");
    if (!buffer.ok()) return buffer.status();
    scratch_ = std::move(*buffer);
    limits_ = limits;
    return OkStatus();
  }

  void Embed(Stream& stream, const WeightView& table, std::span<const TokenId> ids,
             EmbedResult result, float* x) override {
    const int64_t tokens = static_cast<int64_t>(ids.size());
    const int64_t row_bytes = table.in * static_cast<int64_t>(DTypeBytes(table.dtype));
    const int64_t bytes = tokens * (row_bytes + table.in * kFloat);
    const Traced traced(trace_, stream.lane(), "embed", bytes, 0);
    OverRows(tokens, bytes, [&](int64_t row) {
      const TokenId id = ids[static_cast<size_t>(row)];
      HEADWAY_CHECK(id >= 0 && id < table.out);
      const auto embed = result == EmbedResult::kAdd ? elementwise_.add_f32 : elementwise_.to_f32;
      embed(table.data + id * row_bytes, table.dtype, table.in, x + row * table.in);
    });
  }

  void Norm(Stream& stream, const float* x, const NormView& norm, int64_t rows, int64_t width,
            void* y) override {
    const Traced traced(trace_, stream.lane(), NormCost(norm, rows * width, kFloat));
    OverRows(rows, 2 * rows * width * kFloat, [&](int64_t row) {
      elementwise_.norm(x + row * width, norm, width, static_cast<float*>(y) + row * width);
    });
  }

  void NormInPlace(Stream& stream, const NormView& norm, int64_t rows, int64_t width,
                   float* x) override {
    Norm(stream, x, norm, rows, width, x);
  }

  void HeadNorm(Stream& stream, const float* weight, float eps, const HeadRows& rows) override {
    const int64_t elements = rows.tokens * rows.heads * rows.head_dim;
    const Traced traced(trace_, stream.lane(), "head norm", 2 * elements * kFloat, 4 * elements);
    const NormView norm = {NormKind::kRms, weight, nullptr, eps};
    OverRows(rows.tokens, 2 * elements * kFloat, [&](int64_t t) {
      float* row = static_cast<float*>(rows.x) + t * rows.stride;
      for (int head = 0; head < rows.heads; ++head, row += rows.head_dim) {
        elementwise_.norm(row, norm, rows.head_dim, row);
      }
    });
  }

  void Linear(Stream& stream, const void* x, int64_t rows, std::span<const LinearOp> ops) override {
    const Traced traced(trace_, stream.lane(), LinearCost(rows, ops, kFloat));
    cpu::Linear(pool_, linear_, static_cast<const float*>(x), rows, ops, Scratch());
  }

  void SwiGlu(Stream& stream, const void* gate, const void* up, int64_t count, void* y) override {
    const int64_t bytes = 3 * count * kFloat;
    // The exponential and the division count as about ten.
    const Traced traced(trace_, stream.lane(), "swiglu", bytes, 14 * count);
    constexpr int64_t kPiece = 4096;
    OverRows(CeilDiv(count, kPiece), bytes, [&](int64_t piece) {
      const int64_t first = piece * kPiece;
      elementwise_.swiglu(static_cast<const float*>(gate) + first,
                          static_cast<const float*>(up) + first, std::min(kPiece, count - first),
                          static_cast<float*>(y) + first);
    });
  }

  void Convert(Stream& stream, const ConvertItem& item) override {
    const auto from_bytes = static_cast<int64_t>(DTypeBytes(item.from_dtype));
    const int64_t bytes =
        item.rows * item.width * (from_bytes + static_cast<int64_t>(DTypeBytes(item.to_dtype)));
    const Traced traced(trace_, stream.lane(), "convert", bytes, 0);
    OverRows(item.rows, bytes, [&](int64_t row) {
      const auto* from =
          static_cast<const std::byte*>(item.from) + row * item.from_stride * from_bytes;
      const int64_t to = row * item.to_stride;
      if (item.to_dtype == DType::kF32) {
        elementwise_.to_f32(from, item.from_dtype, item.width, static_cast<float*>(item.to) + to);
        return;
      }
      for (int64_t i = 0; i < item.width; ++i) {
        StoreFloat(item.to, to + i, item.to_dtype, LoadAsFloat(from, i, item.from_dtype));
      }
    });
  }

  void CorrectRows(Stream& stream, const CorrectRowsItem& item) override {
    const int64_t bytes = (2 * item.rows + item.blocks()) * item.width * kFloat;
    const Traced traced(trace_, stream.lane(), "correct rows", bytes, item.rows * item.width);
    OverRows(item.blocks(), bytes, [&](int64_t block) {
      const float* const exact = item.exact + block * item.width;
      float* const first = static_cast<float*>(item.x) + block * item.every * item.width;
      const int64_t rows = std::min(item.every, item.rows - block * item.every);
      for (int64_t row = 1; row < rows; ++row) {
        float* const x = first + row * item.width;
        for (int64_t i = 0; i < item.width; ++i) x[i] += exact[i] - first[i];
      }
      std::copy_n(exact, item.width, first);
    });
  }

  void RopeAngles(Stream& stream, const RopeAnglesItem& item) override {
    const int64_t half = item.rotary_dim / 2;
    const int64_t tokens = static_cast<int64_t>(item.positions.size());
    const Traced traced(trace_, stream.lane(), "rope angles", 2 * tokens * half * kFloat,
                        40 * tokens * half);
    // A cosine and a sine take as long as touching some hundred bytes.
    OverRows(tokens, tokens * half * 128, [&](int64_t t) {
      const int32_t position = item.positions[static_cast<size_t>(t)];
      for (int64_t i = 0; i < half; ++i) {
        const double angle = RopeAngle(item.product, position, item.inv_freq[i]);
        // A rounded angle is a float, whose cosine is that of Transformers.
        const bool exact = item.product == RopeProduct::kExact;
        const auto rounded = static_cast<float>(angle);
        const float cos = exact ? static_cast<float>(std::cos(angle)) : std::cos(rounded);
        const float sin = exact ? static_cast<float>(std::sin(angle)) : std::sin(rounded);
        item.cos[t * half + i] = cos * item.scale;
        item.sin[t * half + i] = sin * item.scale;
      }
    });
  }

  void Rope(Stream& stream, const RopeTable& table, const HeadRows& rows) override {
    const int half = table.rotary_dim / 2;
    if (half == 0) return;
    const int64_t elements = rows.tokens * rows.heads * table.rotary_dim;
    const Traced traced(trace_, stream.lane(), "rope", 2 * elements * kFloat, 3 * elements);
    OverRows(rows.tokens, 2 * elements * kFloat, [&](int64_t t) {
      elementwise_.rope(table.cos + t * half, table.sin + t * half, half, rows.heads, rows.head_dim,
                        static_cast<float*>(rows.x) + t * rows.stride);
    });
  }

  void StoreKv(Stream& stream, const PageFormat& format,
               std::span<const StoreKvItem> items) override {
    const Traced traced(trace_, stream.lane(), StoreKvCost(format, items, kFloat));
    cpu::StoreKv(pool_, isa_, format, items);
  }

  void TurnKeys(Stream& stream, const PageFormat& format, const TurnKeysItem& item) override {
    const Traced traced(trace_, stream.lane(), TurnKeysCost(format, item));
    cpu::TurnKeys(pool_, isa_, format, item);
  }

  bool TakesEncoding(Encoding) const override { return true; }
  bool SupportsAttention(const AttentionRequest& request) const override {
    return cpu::SupportsAttention(request);
  }

  void EncodePages(Stream& stream, const PageFormat& format,
                   std::span<const EncodePagesItem> items) override {
    if (format.head_dim % 2 != 0) return Refuse(stream, "encoding pages takes even head sizes");
    if (format.encoding == Encoding::kLossless && !lossless::Takes(format)) {
      return Refuse(stream, "lossless pages are of bf16, and of heads of a multiple of 8");
    }
    const Traced traced(trace_, stream.lane(), EncodePagesCost(format, items));
    cpu::EncodePages(pool_, isa_, format, items);
  }

  void Attend(Stream& stream, const PageFormat& format, int group, const AttentionParams& params,
              std::span<const AttentionItem> items) override {
    for (const AttentionItem& item : items) {
      if (SupportsAttention(RequestOf(format, group, params, item))) continue;
      return Refuse(stream,
                    "attention on a CPU takes encoded pages of even head sizes, and pages on "
                    "multiples of their elements");
    }
    const WorkCost cost =
        trace_ == nullptr ? WorkCost() : AttendCost(format, group, params, items, kFloat);
    const Traced traced(trace_, stream.lane(), cost);
    const cpu::AttentionScratch scratch = {
        .data = Scratch().data(), .limits = limits_, .threads = pool_.threads()};
    cpu::Attend(pool_, isa_, {format, group, params, items}, scratch);
  }

  void Merge(Stream& stream, int head_dim, std::span<const MergeItem> items) override {
    const Traced traced(trace_, stream.lane(), MergeCost(head_dim, items, kFloat));
    cpu::Merge(pool_, head_dim, items);
  }

  void ScaleHeld(Stream& stream, int head_dim, int group,
                 std::span<const ScaleHeldItem> items) override {
    const Traced traced(trace_, stream.lane(), ScaleHeldCost(head_dim, group, items, kFloat));
    cpu::ScaleHeld(pool_, head_dim, group, items);
  }

  bool SupportsSelection(const PageFormat& format, const SummaryFormat& summary,
                         int group) const override {
    return SelectionFits(format, summary, group);
  }
  bool SelectsInPrompts() const override { return true; }

  void Summarize(Stream& stream, const PageFormat& format, const SummaryFormat& summary,
                 std::span<const SummarizeItem> items) override {
    const Traced traced(trace_, stream.lane(), SummarizeCost(format, summary, items));
    cpu::Summarize(pool_, isa_, format, summary, items);
  }

  void SelectBlocks(Stream& stream, const PageFormat& format, const SummaryFormat& summary,
                    int group, float scale, std::span<const SelectItem> items) override {
    const Traced traced(trace_, stream.lane(), SelectCost(format, summary, group, items, kFloat));
    cpu::SelectBlocks(pool_, isa_, {format, summary, group, scale}, items);
  }

  void AttendBlocks(Stream& stream, const PageFormat& format, const SummaryFormat& summary,
                    int group, float scale, std::span<const AttendBlocksItem> items) override {
    int64_t listed = 0;
    for (const AttendBlocksItem& item : items) {
      if (item.attended) continue;
      const int64_t lists = CeilDiv(item.rows, kSelectRows) * item.keys.heads;
      listed = std::accumulate(item.counts, item.counts + lists, listed);
    }
    const Traced traced(trace_, stream.lane(),
                        AttendBlocksCost(format, summary, group, items, listed, kFloat));
    const cpu::AttentionScratch scratch = {
        .data = Scratch().data(), .limits = limits_, .threads = pool_.threads()};
    cpu::AttendBlocks(pool_, isa_, {format, summary, group, scale}, items, scratch);
    const RestCalls rest = RestOf(format, group, items);
    if (rest.merge.empty()) return;
    const AttentionParams params = {.scale = scale};
    cpu::Attend(pool_, isa_, {format, group, params, rest.attend}, scratch);
    cpu::Merge(pool_, format.head_dim, rest.merge);
  }

  void KeyLogits(Stream& stream, const PageFormat& format, int group, float scale,
                 std::span<const KeyLogitsItem> items) override {
    const Traced traced(trace_, stream.lane(), KeyLogitsCost(format, group, items, kFloat));
    cpu::KeyLogits(pool_, elementwise_, {format, group, scale}, items);
  }

  void KeyWeights(Stream& stream, std::span<const KeyWeightsItem> items) override {
    const Traced traced(trace_, stream.lane(), KeyWeightsCost(items));
    cpu::KeyWeights(pool_, items);
  }

  void GatherSlots(Stream& stream, const PageFormat& format,
                   std::span<const GatherSlotsItem> items) override {
    const Traced traced(trace_, stream.lane(), GatherSlotsCost(format, items));
    cpu::GatherSlots(pool_, format, items);
  }

  void QueryMoments(Stream& stream, const PageFormat& format, int heads,
                    std::span<const QueryMomentsItem> items) override {
    const Traced traced(trace_, stream.lane(), QueryMomentsCost(format, heads, items, kFloat));
    cpu::QueryMoments(pool_, {format.head_dim, heads}, items);
  }

  void ExpectedLogits(Stream& stream, const PageFormat& format, int group, float scale,
                      std::span<const ExpectedLogitsItem> items) override {
    const Traced traced(trace_, stream.lane(), ExpectedLogitsCost(format, group, items));
    cpu::ExpectedLogits(pool_, elementwise_, {format, group, scale}, items);
  }

  void ValueNorms(Stream& stream, const PageFormat& format,
                  std::span<const ValueNormsItem> items) override {
    const Traced traced(trace_, stream.lane(), ValueNormsCost(format, items));
    cpu::ValueNorms(pool_, elementwise_, format, items);
  }

  void ProjectedNorms(Stream& stream, const PageFormat& format, int group,
                      std::span<const ProjectedNormsItem> items) override {
    const Traced traced(trace_, stream.lane(), ProjectedNormsCost(format, group, items));
    cpu::ProjectedNorms(pool_, elementwise_, {format, group, 1.0f}, items);
  }

  void Sample(Stream& stream, std::span<const SampleItem> items) override {
    const Traced traced(trace_, stream.lane(), SampleCost(items));
    for (const SampleItem& item : items) *item.result = sampler_.Sample(item);
  }

  void Score(Stream& stream, std::span<const ScoreItem> items) override {
    const WorkCost cost = ScoreCost(items);
    const Traced traced(trace_, stream.lane(), cost);
    OverRows(static_cast<int64_t>(items.size()), cost.bytes, [&](int64_t row) {
      const ScoreItem& item = items[static_cast<size_t>(row)];
      *item.result = elementwise_.score(item);
    });
  }

 private:
  // An error of the stream.
  static void Refuse(Stream& stream, const char* why) {
    stream.HostWork({}, [why] { return Status(StatusCode::kUnsupported, why); });
  }

  // fn(row) for each row, over the pool where `bytes` in all are worth it.
  template <typename Fn>
  void OverRows(int64_t rows, int64_t bytes, const Fn& fn) {
    const int64_t pieces = std::min<int64_t>(4 * pool_.threads(), CeilDiv(bytes, kParallelBytes));
    if (pieces <= 1) {
      for (int64_t row = 0; row < rows; ++row) fn(row);
      return;
    }
    pool_.Run(rows, CeilDiv(rows, pieces), [&](int, int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) fn(row);
    });
  }

  std::span<std::byte> Scratch() {
    if (scratch_ == nullptr) return {};
    return {scratch_->data(), scratch_->size()};
  }

  ThreadPool& pool_;
  Trace* trace_;
  const Isa isa_;
  const cpu::Elementwise& elementwise_;
  const cpu::LinearCode linear_;
  std::unique_ptr<Buffer> scratch_;
  KernelLimits limits_;
  HostSampler sampler_;
};

}  // namespace

std::vector<std::string> CpuIsas() {
  std::vector<std::string> names;
  for (const Isa isa : SupportedIsas()) names.push_back(IsaName(isa));
  return names;
}

Result<std::unique_ptr<Kernels>> NewCpuKernels(ThreadPool* pool, Trace* trace,
                                               std::string_view isa) {
  const std::vector<Isa> supported = SupportedIsas();
  if (supported.empty()) {
    return Status(StatusCode::kUnsupported,
                  "this processor has no AVX2, which Headway's kernels need; use another machine");
  }
  std::string known;
  for (const Isa candidate : supported) {
    if (isa == "auto" || isa == IsaName(candidate)) {
      return std::unique_ptr<Kernels>(std::make_unique<CpuKernels>(pool, trace, candidate));
    }
    known += std::string(", ") + IsaName(candidate);
  }
  return Status(StatusCode::kInvalidArgument, "unknown or missing instruction set '" +
                                                  std::string(isa) + "'; this machine runs auto" +
                                                  known);
}

}  // namespace headway
