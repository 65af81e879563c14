#include "engine/paths/host.h"

#include <algorithm>

#include "base/check.h"
#include "engine/paths/host_queries.h"

namespace headway {
namespace {

class HostPath : public AttentionPath {
 public:
  explicit HostPath(const PathParts& parts)
      : parts_(parts), context_(parts.context), host_(*parts.host.attention) {}

  void BeginStep() override;
  void Take(int layer, std::vector<SlabRange>* ranges) override;
  void BeginLayer(int layer) override;
  Status Attend(int layer, int group) override;
  void EndLayer(int layer) override;
  void EndStep() override;
  void Abort() override { context_.store.reads().AwaitHost(); }

 private:
  // Of a layer, in the order of groups, then entries, then positions.
  std::span<const kv::HostRead> ReadsOf(int layer) const {
    const size_t first = first_[static_cast<size_t>(layer)];
    return std::span(reads_).subspan(first, first_[static_cast<size_t>(layer) + 1] - first);
  }
  HostStepTimes LaneTimes() const;

  const PathParts parts_;
  StepContext& context_;
  HostAttention& host_;
  HostStepTimes before_;             // the step
  double carry_ = 0.0;               // SplitLayer's, over the layers of a step
  std::vector<kv::HostRead> reads_;  // of the step, layer by layer
  std::vector<size_t> first_;        // [layers + 1]: the first of each layer
  std::vector<bool> on_host_;        // [entries]: it attends to keys of it in the layer at hand
  std::vector<HostSlab> slabs_;      // of the layer that is taken from
  std::vector<size_t> at_;           // [slabs]: where those are among its ranges
  std::vector<int> streamed_;        // [slabs]: pages that are left to others
};

// What the lanes have taken so far.
HostStepTimes HostPath::LaneTimes() const {
  if (parts_.host.trace == nullptr) return {};
  const Trace::LaneTotals bus = parts_.host.trace->totals(Lane::kHostToDevice);
  const Trace::LaneTotals host = parts_.host.trace->totals(Lane::kHostCompute);
  constexpr double kNano = 1e-9;
  return {.bus_seconds = static_cast<double>(bus.busy_ns) * kNano,
          .host_seconds = static_cast<double>(host.busy_ns) * kNano,
          .bus_bytes = static_cast<double>(bus.bytes) / 2.0,  // read, and written
          .host_bytes = static_cast<double>(host.bytes)};
}

void HostPath::BeginStep() {
  before_ = LaneTimes();
  host_.ForgetPauses();
  carry_ = 0.0;
  reads_.clear();
  first_.assign(static_cast<size_t>(context_.shape.layers) + 1, 0);
}

// Of the slabs in host memory that decode entries read, the share that the plan gives the host.
void HostPath::Take(int layer, std::vector<SlabRange>* ranges) {
  const double share = parts_.board.observer() == nullptr ? parts_.host.share->share() : 0.0;
  if (share > 0.0) {
    slabs_.clear();
    at_.clear();
    for (size_t i = 0; i < ranges->size(); ++i) {
      const SlabRange& range = (*ranges)[i];
      if (range.x || !parts_.batch[range.slab.entry].decode) continue;
      const kv::SlabPlace place = context_.store.reads().PlaceOf(range.slab);
      if (place.tier != Tier::kHost) continue;
      slabs_.push_back({place.pages, context_.store.format().HeadsIn(layer, range.slab.group)});
      at_.push_back(i);
    }
    SplitLayer(share, slabs_, &carry_, &streamed_);
    size_t slab = 0, kept = 0;
    for (size_t i = 0; i < ranges->size(); ++i) {
      SlabRange range = (*ranges)[i];
      if (slab < at_.size() && at_[slab] == i) {
        const int streamed = streamed_[slab];
        if (streamed != slabs_[slab].pages) {
          reads_.push_back({range.slab, streamed});
          parts_.reads.Hold(reads_.back());
          range.slab.pages = streamed;
        }
        ++slab;
        if (streamed == 0) continue;
      }
      (*ranges)[kept++] = range;
    }
    ranges->resize(kept);
  }
  first_[static_cast<size_t>(layer) + 1] = reads_.size();
}

// Sends the queries down and has the host begin.
void HostPath::BeginLayer(int layer) {
  const std::span<const kv::HostRead> reads = ReadsOf(layer);
  if (reads.empty()) return;
  on_host_.assign(parts_.batch.entries().size(), false);
  for (const kv::HostRead& read : reads) on_host_[static_cast<size_t>(read.slab.entry)] = true;
  host_.Begin();
  SendQueries(context_, parts_.batch, on_host_, host_);
  size_t next = 0;
  std::vector<KeyRun> keys;
  for (int group = 0; group < context_.store.format().head_groups(layer); ++group) {
    for (int entry = 0; entry < parts_.batch.size(); ++entry) {
      if (!on_host_[static_cast<size_t>(entry)]) continue;
      keys.clear();
      while (next < reads.size() && reads[next].slab.group == group &&
             reads[next].slab.entry == entry) {
        keys.push_back(context_.store.reads().KeysOnHost(reads[next++]));
      }
      for (const kv::HeadRun& run : context_.RunsOf(layer, group)) {
        const BatchEntry& queried = parts_.batch[entry];
        host_.Add({entry, queried.position, queried.tokens}, run, keys);
      }
    }
  }
  HEADWAY_CHECK(next == reads.size());
  const WorkCost cost = host_.Cost();
  context_.store.reads().RunOnHost(reads, cost, host_.Work(context_.WindowOf(layer)));
}

Status HostPath::Attend(int layer, int group) {
  if (ReadsOf(layer).empty() || group == context_.store.format().StreamingGroup(layer)) {
    return OkStatus();
  }
  for (int entry = 0; entry < parts_.batch.size(); ++entry) {
    if (!on_host_[static_cast<size_t>(entry)]) continue;
    parts_.board.AddLastState(entry, context_.RunsOf(layer, group), host_.o(entry),
                              host_.lse(entry));
  }
  return OkStatus();
}

void HostPath::EndLayer(int layer) {
  if (ReadsOf(layer).empty()) return;
  host_.StreamWaits(context_.compute);
  context_.store.reads().AwaitHost();
}

void HostPath::EndStep() {
  // A step that is still under way, or that streams for a prefill, says nothing.
  if (parts_.host.trace == nullptr || !parts_.batch.wants_logits() || !parts_.batch.all_decode()) {
    return;
  }
  const HostStepTimes now = LaneTimes();
  parts_.host.share->Observe({.bus_seconds = now.bus_seconds - before_.bus_seconds,
                              .host_seconds = now.host_seconds - before_.host_seconds,
                              .bus_bytes = now.bus_bytes - before_.bus_bytes,
                              .host_bytes = now.host_bytes - before_.host_bytes,
                              .gap_seconds = host_.PauseSeconds()});
}

}  // namespace

const PathKind kHostPath = {.name = "host",
                            .order = path_order::kHost,
                            .bytes = NoBytes,
                            .make = [](const PathParts& parts) -> std::unique_ptr<AttentionPath> {
                              if (parts.host.attention == nullptr) return nullptr;
                              return std::make_unique<HostPath>(parts);
                            }};

}  // namespace headway
