#include "engine/paths/streaming_heads.h"

#include <algorithm>
#include <array>

namespace headway {
namespace {

class StreamingHeadsPath : public AttentionPath {
 public:
  explicit StreamingHeadsPath(const PathParts& parts) : parts_(parts) {}

  void Take(int /*layer*/, std::vector<SlabRange>* /*ranges*/) override {}

  Status Attend(int layer, int group) override {
    const kv::CacheFormat& cache = parts_.context.store.format();
    if (group != cache.StreamingGroup(layer) || cache.pattern.StreamingIn(layer) == 0) {
      return OkStatus();
    }
    ranges_.clear();
    for (int entry = 0; entry < parts_.batch.size(); ++entry) {
      ranges_.push_back(parts_.context.store.step().StreamingRanges(entry, layer));
    }
    // A model's own window hides the sink, too.
    const int64_t window = parts_.context.WindowOf(layer);
    const int64_t recent =
        window == 0 ? cache.pattern.recent : std::min(window, cache.pattern.recent);
    // A window is that of a call: ranges that need one come one after the other. Single queries
    // have no need of windows here, and are launched together.
    const bool together = parts_.batch.all_single();
    for (size_t i = 0; i < ranges_[0].size(); ++i) {
      for (const Mask mask : {Mask::kCausal, Mask::kWindow}) {
        AttendRanges(i, mask, layer, group);
        if (!together) parts_.board.FlushWithin(mask == Mask::kWindow ? recent : window);
      }
    }
    return OkStatus();
  }

 private:
  enum class Mask { kCausal, kWindow };

  // Range i of those entries whose queries see it under this mask.
  void AttendRanges(size_t i, Mask mask, int layer, int group) {
    for (size_t entry = 0; entry < ranges_.size(); ++entry) {
      const auto& ranges = ranges_[entry];
      const kv::StreamingRange& range = ranges[i];
      if (range.keys.pages.count == 0 || range.windowed != (mask == Mask::kWindow)) continue;
      const bool last =
          std::all_of(ranges.begin() + static_cast<ptrdiff_t>(i) + 1, ranges.end(),
                      [](const kv::StreamingRange& later) { return later.keys.pages.count == 0; });
      parts_.board.Attend(static_cast<int>(entry), parts_.context.RunsOf(layer, group), range.keys,
                          last ? RangeOrder::kLast : RangeOrder::kMoreFollow);
    }
  }

  const PathParts parts_;
  std::vector<std::array<kv::StreamingRange, 5>> ranges_;  // [entries], of the layer at hand
};

}  // namespace

const PathKind kStreamingHeadsPath = {
    .name = "streaming heads",
    .order = path_order::kStreamingHeads,
    .bytes = NoBytes,
    .make = [](const PathParts& parts) -> std::unique_ptr<AttentionPath> {
      if (!parts.context.limits.streaming_heads) return nullptr;
      return std::make_unique<StreamingHeadsPath>(parts);
    }};

}  // namespace headway
