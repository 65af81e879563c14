// Attention of streaming heads.
#include <algorithm>
#include <array>
#include <vector>

#include "engine/executor.h"

namespace headway {

void Executor::AttendStreaming(int layer) {
  const kv::CacheFormat& cache = store_.format();
  const int group = cache.StreamingGroup(layer);
  // A model's own window hides the sink, too.
  const int64_t window = WindowOf(layer);
  const int64_t recent =
      window == 0 ? cache.pattern.recent : std::min(window, cache.pattern.recent);
  std::vector<std::array<kv::StreamingRange, 5>> ranges;
  for (int e = 0; e < static_cast<int>(entries_.size()); ++e) {
    ranges.push_back(store_.StreamingRanges(e, layer));
  }
  // The ranges of prefill come one after the other, and a window is that of a call; decode has no
  // need of windows here, and is launched together.
  const bool decode = std::all_of(entries_.begin(), entries_.end(),
                                  [](const Entry& entry) { return entry.decode; });
  BeginStates();
  for (size_t i = 0; i < ranges[0].size(); ++i) {
    for (const bool windowed : {false, true}) {
      for (size_t e = 0; e < ranges.size(); ++e) {
        const kv::StreamingRange& range = ranges[e][i];
        if (range.keys.pages.count == 0 || range.windowed != windowed) continue;
        const bool last = std::all_of(
            ranges[e].begin() + static_cast<ptrdiff_t>(i) + 1, ranges[e].end(),
            [](const kv::StreamingRange& later) { return later.keys.pages.count == 0; });
        AttendRange(static_cast<int>(e), layer, group, range.keys, last);
      }
      if (!decode) Flush(windowed ? recent : window);
    }
  }
  Flush(window);
  AddMerges(RunsOf(layer, group), false);
}

}  // namespace headway
