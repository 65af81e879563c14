// ForwardingKernels: kernels that do what others do. A test changes one call of them.
#ifndef HEADWAY_TESTS_SUPPORT_FORWARDING_KERNELS_H_
#define HEADWAY_TESTS_SUPPORT_FORWARDING_KERNELS_H_

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/kernels.h"

namespace headway::testing {

class ForwardingKernels : public Kernels {
 public:
  explicit ForwardingKernels(std::unique_ptr<Kernels> inner) : inner_(std::move(inner)) {}

  std::string name() const override { return inner_->name(); }
  DType ActivationDType(DType weights) const override { return inner_->ActivationDType(weights); }
  int64_t DecodeSplit(int64_t keys, int kv_heads) const override {
    return inner_->DecodeSplit(keys, kv_heads);
  }
  int64_t ListedSplit(int heads, int64_t keys) const override {
    return inner_->ListedSplit(heads, keys);
  }
  int64_t WorkspaceBytes(const KernelLimits& limits) const override {
    return inner_->WorkspaceBytes(limits);
  }
  bool TakesEncoding(Encoding encoding) const override { return inner_->TakesEncoding(encoding); }
  bool SupportsAttention(const AttentionRequest& request) const override {
    return inner_->SupportsAttention(request);
  }
  bool SupportsSelection(const PageFormat& format, const SummaryFormat& summary,
                         int group) const override {
    return inner_->SupportsSelection(format, summary, group);
  }
  bool SelectsInPrompts() const override { return inner_->SelectsInPrompts(); }
  Status Prepare(const KernelLimits& limits, Device& device, Budget& budget) override {
    return inner_->Prepare(limits, device, budget);
  }
  int64_t PartsAtOnce() const override { return inner_->PartsAtOnce(); }
  void Embed(Stream& s, const WeightView& table, std::span<const TokenId> ids, EmbedResult result,
             float* x) override {
    inner_->Embed(s, table, ids, result, x);
  }
  void Norm(Stream& s, const float* x, const NormView& norm, int64_t rows, int64_t width,
            void* y) override {
    inner_->Norm(s, x, norm, rows, width, y);
  }
  void NormInPlace(Stream& s, const NormView& norm, int64_t rows, int64_t width,
                   float* x) override {
    inner_->NormInPlace(s, norm, rows, width, x);
  }
  void HeadNorm(Stream& s, const float* weight, float eps, const HeadRows& rows) override {
    inner_->HeadNorm(s, weight, eps, rows);
  }
  void Linear(Stream& s, const void* x, int64_t rows, std::span<const LinearOp> ops) override {
    inner_->Linear(s, x, rows, ops);
  }
  void SwiGlu(Stream& s, const void* gate, const void* up, int64_t count, void* y) override {
    inner_->SwiGlu(s, gate, up, count, y);
  }
  void Convert(Stream& s, const ConvertItem& item) override { inner_->Convert(s, item); }
  void CorrectRows(Stream& s, const CorrectRowsItem& item) override {
    inner_->CorrectRows(s, item);
  }
  void RopeAngles(Stream& s, const RopeAnglesItem& item) override { inner_->RopeAngles(s, item); }
  void Rope(Stream& s, const RopeTable& table, const HeadRows& rows) override {
    inner_->Rope(s, table, rows);
  }
  void StoreKv(Stream& s, const PageFormat& format, std::span<const StoreKvItem> items) override {
    inner_->StoreKv(s, format, items);
  }
  void EncodePages(Stream& s, const PageFormat& format,
                   std::span<const EncodePagesItem> items) override {
    inner_->EncodePages(s, format, items);
  }
  void TurnKeys(Stream& s, const PageFormat& format, const TurnKeysItem& item) override {
    inner_->TurnKeys(s, format, item);
  }
  void Attend(Stream& s, const PageFormat& format, int group, const AttentionParams& params,
              std::span<const AttentionItem> items) override {
    inner_->Attend(s, format, group, params, items);
  }
  void ScaleHeld(Stream& s, int head_dim, int group,
                 std::span<const ScaleHeldItem> items) override {
    inner_->ScaleHeld(s, head_dim, group, items);
  }
  void Merge(Stream& s, int head_dim, std::span<const MergeItem> items) override {
    inner_->Merge(s, head_dim, items);
  }
  void Summarize(Stream& s, const PageFormat& format, const SummaryFormat& summary,
                 std::span<const SummarizeItem> items) override {
    inner_->Summarize(s, format, summary, items);
  }
  void SelectBlocks(Stream& s, const PageFormat& format, const SummaryFormat& summary, int group,
                    float scale, std::span<const SelectItem> items) override {
    inner_->SelectBlocks(s, format, summary, group, scale, items);
  }
  void AttendBlocks(Stream& s, const PageFormat& format, const SummaryFormat& summary, int group,
                    float scale, std::span<const AttendBlocksItem> items) override {
    inner_->AttendBlocks(s, format, summary, group, scale, items);
  }
  void KeyLogits(Stream& s, const PageFormat& format, int group, float scale,
                 std::span<const KeyLogitsItem> items) override {
    inner_->KeyLogits(s, format, group, scale, items);
  }
  void KeyWeights(Stream& s, std::span<const KeyWeightsItem> items) override {
    inner_->KeyWeights(s, items);
  }
  void GatherSlots(Stream& s, const PageFormat& format,
                   std::span<const GatherSlotsItem> items) override {
    inner_->GatherSlots(s, format, items);
  }
  void QueryMoments(Stream& s, const PageFormat& format, int heads,
                    std::span<const QueryMomentsItem> items) override {
    inner_->QueryMoments(s, format, heads, items);
  }
  void ExpectedLogits(Stream& s, const PageFormat& format, int group, float scale,
                      std::span<const ExpectedLogitsItem> items) override {
    inner_->ExpectedLogits(s, format, group, scale, items);
  }
  void ValueNorms(Stream& s, const PageFormat& format,
                  std::span<const ValueNormsItem> items) override {
    inner_->ValueNorms(s, format, items);
  }
  void ProjectedNorms(Stream& s, const PageFormat& format, int group,
                      std::span<const ProjectedNormsItem> items) override {
    inner_->ProjectedNorms(s, format, group, items);
  }
  void Sample(Stream& s, std::span<const SampleItem> items) override { inner_->Sample(s, items); }
  void Score(Stream& s, std::span<const ScoreItem> items) override { inner_->Score(s, items); }

 protected:
  const std::unique_ptr<Kernels> inner_;
};

// Notes what is chosen for, in prompts and in decode.
class SeesChoices : public ForwardingKernels {
 public:
  SeesChoices(std::unique_ptr<Kernels> inner, std::vector<SelectItem>* seen)
      : ForwardingKernels(std::move(inner)), seen_(*seen) {}

  void SelectBlocks(Stream& stream, const PageFormat& format, const SummaryFormat& summary,
                    int group, float scale, std::span<const SelectItem> items) override {
    seen_.insert(seen_.end(), items.begin(), items.end());
    ForwardingKernels::SelectBlocks(stream, format, summary, group, scale, items);
  }

 private:
  std::vector<SelectItem>& seen_;
};

}  // namespace headway::testing

#endif  // HEADWAY_TESTS_SUPPORT_FORWARDING_KERNELS_H_
