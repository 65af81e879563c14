#include "support/delaying_device.h"

#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "device/host_stream.h"

namespace headway::testing {
namespace {

bool SameKind(std::optional<Lane> a, Lane b) {
  return a.has_value() && std::strcmp(LaneName(*a), LaneName(b)) == 0;
}

// Makes the stream itself sleep, or fail.
void Delay(Stream& stream, Delays* delays) {
  if (delays->Broken(stream.lane())) {
    const std::string what = std::string("the ") + LaneName(stream.lane()) + " lane is broken";
    stream.HostWork({"failure", 0, 0}, [what] { return Status(StatusCode::kIo, what); });
  }
  const int64_t us = delays->Draw(stream.lane());
  if (us == 0) return;
  stream.HostWork({"delay", 0, 0}, [us, delays] {
    delays->Sleep(us);
    return OkStatus();
  });
}

class DelayingStream final : public Stream {
 public:
  DelayingStream(std::unique_ptr<Stream> inner, Delays* delays)
      : inner_(std::move(inner)), delays_(delays) {}

  Lane lane() const override { return inner_->lane(); }
  void Copy(std::byte* to, const std::byte* from, size_t bytes) override {
    Delay(*inner_, delays_);
    inner_->Copy(to, from, bytes);
  }
  void CopyAll(std::span<const CopyPiece> pieces) override {
    Delay(*inner_, delays_);
    inner_->CopyAll(pieces);
  }
  void Copy2D(std::byte* to, size_t to_stride, const std::byte* from, size_t from_stride,
              size_t row_bytes, size_t rows) override {
    Delay(*inner_, delays_);
    inner_->Copy2D(to, to_stride, from, from_stride, row_bytes, rows);
  }
  void HostWork(const WorkCost& cost, std::function<Status()> work) override {
    Delay(*inner_, delays_);
    inner_->HostWork(cost, std::move(work));
  }
  void Record(Event& event) override { inner_->Record(event); }
  void Wait(Event& event) override { inner_->Wait(event); }
  Status Synchronize() override { return inner_->Synchronize(); }
  Status status() override { return inner_->status(); }

 private:
  const std::unique_ptr<Stream> inner_;
  Delays* const delays_;
};

class DelayingDevice final : public Device {
 public:
  DelayingDevice(std::unique_ptr<Device> inner, Env* env, Delays* delays)
      : inner_(std::move(inner)), env_(env), delays_(delays) {}

  std::string name() const override { return "delaying " + inner_->name(); }
  bool host_reads_memory() const override { return inner_->host_reads_memory(); }
  bool kernels_read_host_memory() const override { return inner_->kernels_read_host_memory(); }
  Result<std::unique_ptr<Buffer>> Allocate(Budget& budget, size_t bytes,
                                           const std::string& tag) override {
    return inner_->Allocate(budget, bytes, tag);
  }
  Result<std::unique_ptr<Buffer>> AllocateHost(Budget& budget, size_t bytes,
                                               const std::string& tag) override {
    return inner_->AllocateHost(budget, bytes, tag);
  }
  Result<std::unique_ptr<Stream>> NewStream(Lane lane) override {
    const bool compute = lane == Lane::kCompute;
    // A communicator, which launches kernels on its lane, knows the inner device's streams, too.
    const bool known = !host_reads_memory() && (compute || lane == Lane::kRanks);
    Result<std::unique_ptr<Stream>> stream = compute && host_reads_memory()
                                                 ? HostStream::Create(env_, nullptr, lane)
                                                 : inner_->NewStream(lane);
    if (!stream.ok() || known) return stream;
    return std::unique_ptr<Stream>(std::make_unique<DelayingStream>(std::move(*stream), delays_));
  }
  std::unique_ptr<Event> NewEvent() override { return inner_->NewEvent(); }

 private:
  const std::unique_ptr<Device> inner_;
  Env* const env_;
  Delays* const delays_;
};

template <typename T>
std::vector<std::remove_const_t<T>> CopyOf(std::span<T> items) {
  return {items.begin(), items.end()};
}

// The segments of items, whose spans end with the call, and those items with them.
template <typename Item>
std::vector<std::vector<SegmentPlace>> PlacesOf(std::span<const Item> items) {
  std::vector<std::vector<SegmentPlace>> places;
  for (const Item& item : items) places.push_back(CopyOf(item.keys.segments));
  return places;
}
template <typename Item>
std::vector<Item> WithPlaces(std::vector<Item> items,
                             const std::vector<std::vector<SegmentPlace>>& places) {
  for (size_t i = 0; i < items.size(); ++i) items[i].keys.segments = places[i];
  return items;
}

class DelayingKernels final : public Kernels {
 public:
  DelayingKernels(std::unique_ptr<Kernels> inner, Device& device, Delays* delays)
      : inner_(std::move(inner)), delays_(delays) {
    if (device.host_reads_memory()) at_once_ = *device.NewStream(Lane::kCompute);
  }

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
  Status Prepare(const KernelLimits& limits, Device& device, Budget& budget) override {
    return inner_->Prepare(limits, device, budget);
  }

  void Embed(Stream& stream, const WeightView& table, std::span<const TokenId> ids,
             EmbedResult result, float* x) override {
    Run(stream, [this, table, copy = CopyOf(ids), result, x](Stream& s) {
      inner_->Embed(s, table, copy, result, x);
    });
  }
  void Norm(Stream& stream, const float* x, const NormView& norm, int64_t rows, int64_t width,
            void* y) override {
    Run(stream, [=, this](Stream& s) { inner_->Norm(s, x, norm, rows, width, y); });
  }
  void NormInPlace(Stream& stream, const NormView& norm, int64_t rows, int64_t width,
                   float* x) override {
    Run(stream, [=, this](Stream& s) { inner_->NormInPlace(s, norm, rows, width, x); });
  }
  void HeadNorm(Stream& stream, const float* weight, float eps, const HeadRows& rows) override {
    Run(stream, [=, this](Stream& s) { inner_->HeadNorm(s, weight, eps, rows); });
  }
  void Linear(Stream& stream, const void* x, int64_t rows, std::span<const LinearOp> ops) override {
    Run(stream,
        [this, x, rows, copy = CopyOf(ops)](Stream& s) { inner_->Linear(s, x, rows, copy); });
  }
  void NormLinear(Stream& stream, const NormedInput& input,
                  std::span<const LinearOp> ops) override {
    Run(stream,
        [this, input, copy = CopyOf(ops)](Stream& s) { inner_->NormLinear(s, input, copy); });
  }
  void NormGatedLinear(Stream& stream, const NormedInput& input, const LinearOp& gate,
                       const LinearOp& up) override {
    Run(stream, [=, this](Stream& s) { inner_->NormGatedLinear(s, input, gate, up); });
  }
  void GatedLinear(Stream& stream, const void* x, int64_t rows, const LinearOp& gate,
                   const LinearOp& up) override {
    Run(stream, [=, this](Stream& s) { inner_->GatedLinear(s, x, rows, gate, up); });
  }
  void SwiGlu(Stream& stream, const void* gate, const void* up, int64_t count, void* y) override {
    Run(stream, [=, this](Stream& s) { inner_->SwiGlu(s, gate, up, count, y); });
  }
  void Convert(Stream& stream, const ConvertItem& item) override {
    Run(stream, [=, this](Stream& s) { inner_->Convert(s, item); });
  }
  void CorrectRows(Stream& stream, const CorrectRowsItem& item) override {
    Run(stream, [=, this](Stream& s) { inner_->CorrectRows(s, item); });
  }
  void RopeAngles(Stream& stream, const RopeAnglesItem& item) override {
    std::vector<float> frequencies(item.inv_freq, item.inv_freq + item.rotary_dim / 2);
    Run(stream,
        [=, this, copy = CopyOf(item.positions), frequencies = std::move(frequencies)](Stream& s) {
          RopeAnglesItem mine = item;
          mine.positions = copy;
          mine.inv_freq = frequencies.data();
          inner_->RopeAngles(s, mine);
        });
  }
  void Rope(Stream& stream, const RopeTable& table, const HeadRows& rows) override {
    Run(stream, [=, this](Stream& s) { inner_->Rope(s, table, rows); });
  }
  void StoreKv(Stream& stream, const PageFormat& format,
               std::span<const StoreKvItem> items) override {
    Run(stream,
        [this, format, copy = CopyOf(items)](Stream& s) { inner_->StoreKv(s, format, copy); });
  }
  void RopeStoreKv(Stream& stream, const PageFormat& format,
                   std::span<const RopeStoreItem> items) override {
    Run(stream,
        [this, format, copy = CopyOf(items)](Stream& s) { inner_->RopeStoreKv(s, format, copy); });
  }
  void TurnKeys(Stream& stream, const PageFormat& format, const TurnKeysItem& item) override {
    Run(stream, [=, this](Stream& s) { inner_->TurnKeys(s, format, item); });
  }
  bool TakesEncoding(Encoding encoding) const override { return inner_->TakesEncoding(encoding); }
  bool SupportsAttention(const AttentionRequest& request) const override {
    return inner_->SupportsAttention(request);
  }
  void EncodePages(Stream& stream, const PageFormat& format,
                   std::span<const EncodePagesItem> items) override {
    Run(stream,
        [this, format, copy = CopyOf(items)](Stream& s) { inner_->EncodePages(s, format, copy); });
  }
  void Attend(Stream& stream, const PageFormat& format, int group, const AttentionParams& params,
              std::span<const AttentionItem> items) override {
    Run(stream, [this, format, group, params, copy = CopyOf(items)](Stream& s) {
      inner_->Attend(s, format, group, params, copy);
    });
  }
  bool SupportsSelection(const PageFormat& format, const SummaryFormat& summary,
                         int group) const override {
    return inner_->SupportsSelection(format, summary, group);
  }
  bool SelectsInPrompts() const override { return inner_->SelectsInPrompts(); }
  void Summarize(Stream& stream, const PageFormat& format, const SummaryFormat& summary,
                 std::span<const SummarizeItem> items) override {
    Run(stream, [this, format, summary, copy = CopyOf(items)](Stream& s) {
      inner_->Summarize(s, format, summary, copy);
    });
  }
  void SelectBlocks(Stream& stream, const PageFormat& format, const SummaryFormat& summary,
                    int group, float scale, std::span<const SelectItem> items) override {
    Run(stream, [=, this, copy = CopyOf(items), places = PlacesOf(items)](Stream& s) {
      inner_->SelectBlocks(s, format, summary, group, scale, WithPlaces(copy, places));
    });
  }
  void AttendBlocks(Stream& stream, const PageFormat& format, const SummaryFormat& summary,
                    int group, float scale, std::span<const AttendBlocksItem> items) override {
    Run(stream, [=, this, copy = CopyOf(items), places = PlacesOf(items)](Stream& s) {
      inner_->AttendBlocks(s, format, summary, group, scale, WithPlaces(copy, places));
    });
  }
  void KeyLogits(Stream& stream, const PageFormat& format, int group, float scale,
                 std::span<const KeyLogitsItem> items) override {
    Run(stream, [=, this, copy = CopyOf(items)](Stream& s) {
      inner_->KeyLogits(s, format, group, scale, copy);
    });
  }
  void KeyWeights(Stream& stream, std::span<const KeyWeightsItem> items) override {
    Run(stream, [this, copy = CopyOf(items)](Stream& s) { inner_->KeyWeights(s, copy); });
  }
  void GatherSlots(Stream& stream, const PageFormat& format,
                   std::span<const GatherSlotsItem> items) override {
    Run(stream,
        [this, format, copy = CopyOf(items)](Stream& s) { inner_->GatherSlots(s, format, copy); });
  }
  void QueryMoments(Stream& stream, const PageFormat& format, int heads,
                    std::span<const QueryMomentsItem> items) override {
    Run(stream, [=, this, copy = CopyOf(items)](Stream& s) {
      inner_->QueryMoments(s, format, heads, copy);
    });
  }
  void ExpectedLogits(Stream& stream, const PageFormat& format, int group, float scale,
                      std::span<const ExpectedLogitsItem> items) override {
    Run(stream, [=, this, copy = CopyOf(items)](Stream& s) {
      inner_->ExpectedLogits(s, format, group, scale, copy);
    });
  }
  void ValueNorms(Stream& stream, const PageFormat& format,
                  std::span<const ValueNormsItem> items) override {
    Run(stream,
        [this, format, copy = CopyOf(items)](Stream& s) { inner_->ValueNorms(s, format, copy); });
  }
  void ProjectedNorms(Stream& stream, const PageFormat& format, int group,
                      std::span<const ProjectedNormsItem> items) override {
    Run(stream, [=, this, copy = CopyOf(items)](Stream& s) {
      inner_->ProjectedNorms(s, format, group, copy);
    });
  }
  void ScaleHeld(Stream& stream, int head_dim, int group,
                 std::span<const ScaleHeldItem> items) override {
    Run(stream, [=, this, copy = CopyOf(items)](Stream& s) {
      inner_->ScaleHeld(s, head_dim, group, copy);
    });
  }
  void Merge(Stream& stream, int head_dim, std::span<const MergeItem> items) override {
    Run(stream,
        [this, head_dim, copy = CopyOf(items)](Stream& s) { inner_->Merge(s, head_dim, copy); });
  }
  void Sample(Stream& stream, std::span<const SampleItem> items) override {
    std::vector<std::vector<TokenPenalty>> penalties;
    for (const SampleItem& item : items) penalties.push_back(CopyOf(item.penalties));
    Run(stream, [this, copy = CopyOf(items), penalties = std::move(penalties)](Stream& s) {
      std::vector<SampleItem> whole = copy;
      for (size_t i = 0; i < whole.size(); ++i) whole[i].penalties = penalties[i];
      inner_->Sample(s, whole);
    });
  }
  void Score(Stream& stream, std::span<const ScoreItem> items) override {
    Run(stream, [this, copy = CopyOf(items)](Stream& s) { inner_->Score(s, copy); });
  }

 private:
  template <typename Call>
  void Run(Stream& stream, Call call) {
    if (at_once_ == nullptr) {
      Delay(stream, delays_);
      call(stream);
      return;
    }
    stream.HostWork({"kernel", 0, 0}, [this, call = std::move(call)] {
      call(*at_once_);
      return OkStatus();
    });
  }

  const std::unique_ptr<Kernels> inner_;
  Delays* const delays_;
  std::unique_ptr<Stream> at_once_;  // null where the inner kernels only enqueue
};

}  // namespace

void Delays::Set(std::optional<Lane> lane, int every, int least_us, int most_us) {
  std::lock_guard lock(mutex_);
  lane_ = lane;
  every_ = every;
  least_us_ = least_us;
  most_us_ = most_us;
}

void Delays::Break(Lane lane) {
  std::lock_guard lock(mutex_);
  broken_ = lane;
}

bool Delays::Broken(Lane lane) {
  std::lock_guard lock(mutex_);
  return SameKind(broken_, lane);
}

int64_t Delays::Draw(Lane lane) {
  std::lock_guard lock(mutex_);
  if (!SameKind(lane_, lane)) return 0;
  if (random_.Below(every_) != 0) return 0;
  return least_us_ + random_.Below(most_us_ - least_us_ + 1);
}

void Delays::Sleep(int64_t us) {
  std::this_thread::sleep_for(std::chrono::microseconds(us));
  ++slept_;
}

std::unique_ptr<Device> NewDelayingDevice(std::unique_ptr<Device> inner, Env* env, Delays* delays) {
  return std::make_unique<DelayingDevice>(std::move(inner), env, delays);
}

std::unique_ptr<Kernels> NewDelayingKernels(std::unique_ptr<Kernels> inner, Device& device,
                                            Delays* delays) {
  return std::make_unique<DelayingKernels>(std::move(inner), device, delays);
}

}  // namespace headway::testing
