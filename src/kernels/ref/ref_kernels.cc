#include "kernels/ref/ref_kernels.h"

#include <cmath>
#include <cstring>
#include <memory>
#include <numbers>
#include <string>

#include "base/check.h"
#include "base/half.h"
#include "kernels/decode_rest.h"
#include "kernels/ref/ref_attention.h"
#include "kernels/ref/ref_eviction.h"
#include "kernels/ref/ref_sampling.h"
#include "kernels/ref/ref_selection.h"

namespace headway {
namespace {

// What becomes of the sum that a product is. A NaN stays.
double ResultOf(LinearResult result, double sum) {
  switch (result) {
    case LinearResult::kRelu:
      return sum < 0.0 ? 0.0 : sum;
    case LinearResult::kGelu:
      return 0.5 * sum * std::erfc(-sum / std::numbers::sqrt2);
    case LinearResult::kGeluTanh: {
      const double angle = std::sqrt(2.0 / std::numbers::pi) * (sum + 0.044715 * sum * sum * sum);
      return 0.5 * sum * (1.0 + std::tanh(angle));
    }
    case LinearResult::kActivation:
    case LinearResult::kFloat:
    case LinearResult::kAddFloat:
      break;
  }
  return sum;
}

class RefKernels : public Kernels {
 public:
  std::string name() const override { return "ref"; }
  DType ActivationDType(DType) const override { return DType::kF32; }
  int64_t DecodeSplit(int64_t, int) const override { return 512; }

  int64_t WorkspaceBytes(const KernelLimits&) const override { return 0; }
  Status Prepare(const KernelLimits&, Device&, Budget&) override { return OkStatus(); }

  void Embed(Stream&, const WeightView& table, std::span<const TokenId> ids, EmbedResult result,
             float* x) override {
    for (size_t i = 0; i < ids.size(); ++i) {
      HEADWAY_CHECK(ids[i] >= 0 && ids[i] < table.out);
      for (int64_t j = 0; j < table.in; ++j) {
        float& to = x[static_cast<int64_t>(i) * table.in + j];
        to = LoadAsFloat(table.data, ids[i] * table.in + j, table.dtype) +
             (result == EmbedResult::kAdd ? to : 0.0f);
      }
    }
  }

  void Norm(Stream&, const float* x, const NormView& norm, int64_t rows, int64_t width,
            void* y) override {
    for (int64_t row = 0; row < rows; ++row) {
      NormRow(x + row * width, norm, width, static_cast<float*>(y) + row * width);
    }
  }

  void NormInPlace(Stream& stream, const NormView& norm, int64_t rows, int64_t width,
                   float* x) override {
    Norm(stream, x, norm, rows, width, x);
  }

  void HeadNorm(Stream&, const float* weight, float eps, const HeadRows& rows) override {
    for (int64_t t = 0; t < rows.tokens; ++t) {
      for (int head = 0; head < rows.heads; ++head) {
        float* row = HeadOf(rows, t, head);
        NormRow(row, {NormKind::kRms, weight, nullptr, eps}, rows.head_dim, row);
      }
    }
  }

  void Linear(Stream&, const void* x, int64_t rows, std::span<const LinearOp> ops) override {
    for (const LinearOp& op : ops) {
      for (int64_t row = 0; row < rows; ++row) {
        for (int64_t out = 0; out < op.weight.out; ++out) {
          float& y = static_cast<float*>(op.y)[row * op.y_stride + out];
          const double sum = Dot(op, static_cast<const float*>(x) + row * op.weight.in, out) +
                             (op.bias != nullptr ? op.bias[out] : 0.0) +
                             (op.result == LinearResult::kAddFloat ? y : 0.0);
          y = static_cast<float>(ResultOf(op.result, sum));
        }
      }
    }
  }

  void SwiGlu(Stream&, const void* gate, const void* up, int64_t count, void* y) override {
    for (int64_t i = 0; i < count; ++i) {
      const double g = static_cast<const float*>(gate)[i];
      static_cast<float*>(y)[i] =
          static_cast<float>(g / (1.0 + std::exp(-g)) * static_cast<const float*>(up)[i]);
    }
  }

  void Convert(Stream&, const ConvertItem& item) override {
    for (int64_t row = 0; row < item.rows; ++row) {
      for (int64_t i = 0; i < item.width; ++i) {
        StoreFloat(item.to, row * item.to_stride + i, item.to_dtype,
                   LoadAsFloat(item.from, row * item.from_stride + i, item.from_dtype));
      }
    }
  }

  void CorrectRows(Stream&, const CorrectRowsItem& item) override {
    auto* const x = static_cast<float*>(item.x);
    for (int64_t column = 0; column < item.width; ++column) {
      float change = 0.0f;
      for (int64_t row = 0; row < item.rows; ++row) {
        float& value = x[row * item.width + column];
        if (row % item.every != 0) {
          value += change;
          continue;
        }
        const float exact = item.exact[row / item.every * item.width + column];
        change = exact - value;
        value = exact;
      }
    }
  }

  void RopeAngles(Stream&, const RopeAnglesItem& item) override {
    const int half = item.rotary_dim / 2;
    for (size_t t = 0; t < item.positions.size(); ++t) {
      for (int i = 0; i < half; ++i) {
        const double angle = RopeAngle(item.product, item.positions[t], item.inv_freq[i]);
        const size_t at = t * static_cast<size_t>(half) + static_cast<size_t>(i);
        item.cos[at] = static_cast<float>(std::cos(angle) * item.scale);
        item.sin[at] = static_cast<float>(std::sin(angle) * item.scale);
      }
    }
  }

  void Rope(Stream&, const RopeTable& table, const HeadRows& rows) override {
    const int half = table.rotary_dim / 2;
    for (int64_t t = 0; t < rows.tokens; ++t) {
      for (int head = 0; head < rows.heads; ++head) {
        float* values = HeadOf(rows, t, head);
        for (int i = 0; i < half; ++i) {
          const double c = table.cos[t * half + i];
          const double s = table.sin[t * half + i];
          const double low = values[i];
          const double high = values[i + half];
          values[i] = static_cast<float>(low * c - high * s);
          values[i + half] = static_cast<float>(high * c + low * s);
        }
      }
    }
  }

  void StoreKv(Stream&, const PageFormat& format, std::span<const StoreKvItem> items) override {
    ref::StoreKv(format, items);
  }

  void TurnKeys(Stream&, const PageFormat& format, const TurnKeysItem& item) override {
    ref::TurnKeys(format, item);
  }

  bool TakesEncoding(Encoding) const override { return true; }
  bool SupportsAttention(const AttentionRequest& request) const override {
    return request.encoding == Encoding::kNone ||
           (request.head_dim % 2 == 0 &&
            (request.encoding != Encoding::kLossless ||
             (request.dtype == DType::kBF16 && request.head_dim % 8 == 0)));
  }
  void EncodePages(Stream&, const PageFormat& format,
                   std::span<const EncodePagesItem> items) override {
    ref::EncodePages(format, items);
  }

  void Attend(Stream&, const PageFormat& format, int group, const AttentionParams& params,
              std::span<const AttentionItem> items) override {
    ref::Attend(format, group, params, items);
  }

  void ScaleHeld(Stream&, int head_dim, int group, std::span<const ScaleHeldItem> items) override {
    ref::ScaleHeld(head_dim, group, items);
  }
  void Merge(Stream&, int head_dim, std::span<const MergeItem> items) override {
    ref::Merge(head_dim, items);
  }

  bool SupportsSelection(const PageFormat& format, const SummaryFormat& summary,
                         int group) const override {
    return SelectionFits(format, summary, group);
  }
  bool SelectsInPrompts() const override { return true; }
  void Summarize(Stream&, const PageFormat& format, const SummaryFormat& summary,
                 std::span<const SummarizeItem> items) override {
    ref::Summarize(format, summary, items);
  }
  void SelectBlocks(Stream&, const PageFormat& format, const SummaryFormat& summary, int group,
                    float scale, std::span<const SelectItem> items) override {
    ref::SelectBlocks(format, summary, group, scale, items);
  }
  void AttendBlocks(Stream&, const PageFormat& format, const SummaryFormat& summary, int group,
                    float scale, std::span<const AttendBlocksItem> items) override {
    ref::AttendBlocks(format, summary, group, scale, items);
    const RestCalls rest = RestOf(format, group, items);
    ref::Attend(format, group, {.scale = scale}, rest.attend);
    ref::Merge(format.head_dim, rest.merge);
  }

  void KeyLogits(Stream&, const PageFormat& format, int group, float scale,
                 std::span<const KeyLogitsItem> items) override {
    ref::KeyLogits(format, group, scale, items);
  }
  void KeyWeights(Stream&, std::span<const KeyWeightsItem> items) override {
    ref::KeyWeights(items);
  }
  void GatherSlots(Stream&, const PageFormat& format,
                   std::span<const GatherSlotsItem> items) override {
    ref::GatherSlots(format, items);
  }
  void QueryMoments(Stream&, const PageFormat& format, int heads,
                    std::span<const QueryMomentsItem> items) override {
    ref::QueryMoments(format, heads, items);
  }
  void ExpectedLogits(Stream&, const PageFormat& format, int group, float scale,
                      std::span<const ExpectedLogitsItem> items) override {
    ref::ExpectedLogits(format, group, scale, items);
  }
  void ValueNorms(Stream&, const PageFormat& format,
                  std::span<const ValueNormsItem> items) override {
    ref::ValueNorms(format, items);
  }
  void ProjectedNorms(Stream&, const PageFormat& format, int group,
                      std::span<const ProjectedNormsItem> items) override {
    ref::ProjectedNorms(format, group, items);
  }

  void Sample(Stream&, std::span<const SampleItem> items) override {
    for (const SampleItem& item : items) *item.result = ref::Sample(item);
  }

  void Score(Stream&, std::span<const ScoreItem> items) override {
    for (const ScoreItem& item : items) *item.result = ref::Score(item);
  }

 private:
  static float* HeadOf(const HeadRows& rows, int64_t token, int head) {
    return static_cast<float*>(rows.x) + token * rows.stride + int64_t{head} * rows.head_dim;
  }

  static void NormRow(const float* x, const NormView& norm, int64_t width, float* y) {
    double mean = 0;
    if (norm.kind == NormKind::kLayer) {
      for (int64_t i = 0; i < width; ++i) mean += x[i];
      mean /= static_cast<double>(width);
    }
    double scale = 1;
    if (norm.kind != NormKind::kNone) {
      double squares = 0;
      for (int64_t i = 0; i < width; ++i) squares += (x[i] - mean) * (x[i] - mean);
      scale = 1.0 / std::sqrt(squares / static_cast<double>(width) + norm.eps);
    }
    for (int64_t i = 0; i < width; ++i) {
      y[i] = static_cast<float>((x[i] - mean) * scale *
                                    (norm.weight != nullptr ? norm.weight[i] : 1.0) +
                                (norm.bias != nullptr ? norm.bias[i] : 0.0));
    }
  }

  static double Dot(const LinearOp& op, const float* x, int64_t out) {
    double sum = 0;
    for (int64_t i = 0; i < op.weight.in; ++i) {
      sum += static_cast<double>(x[i]) *
             LoadAsFloat(op.weight.data, out * op.weight.in + i, op.weight.dtype);
    }
    return sum;
  }
};

}  // namespace

std::unique_ptr<Kernels> NewRefKernels() { return std::make_unique<RefKernels>(); }

}  // namespace headway
