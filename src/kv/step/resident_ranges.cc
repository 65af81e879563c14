#include "kv/step/resident_ranges.h"

#include <algorithm>

namespace headway::kv {

ResidentRanges::ResidentRanges(Cache* cache)
    : cache_(*cache),
      known_(static_cast<size_t>(cache->options.max_sequences) *
             static_cast<size_t>(cache->format.layers)) {}

bool ResidentRanges::Usable() const {
  const auto elsewhere = [&](SlabKind kind) {
    return cache_.slabs->Count(kind, Tier::kHost) + cache_.slabs->Count(kind, Tier::kDisk);
  };
  const std::vector<int64_t>& windows = cache_.format.window;
  return elsewhere(SlabKind::kKeysValues) + elsewhere(SlabKind::kX) +
                 cache_.slabs->Count(SlabKind::kX, Tier::kDevice) ==
             0 &&
         cache_.options.placement != PlacementKind::kLru &&
         std::all_of(windows.begin(), windows.end(), [](int64_t window) { return window == 0; });
}

std::span<const ResidentRange> ResidentRanges::Of(const Sequence& sequence, int place, int layer) {
  Known& known = known_[static_cast<size_t>(layer * cache_.options.max_sequences + place)];
  const int64_t closed = cache_.math.ClosedPages(sequence.length);
  const int64_t changes = cache_.slabs->changes();
  if (known.sequence != sequence.id || known.closed != closed || known.changes != changes) {
    Find(sequence, layer, &known.ranges);
    known.sequence = sequence.id;
    known.closed = closed;
    known.changes = changes;
  }
  return known.ranges;
}

void ResidentRanges::Find(const Sequence& sequence, int layer,
                          std::vector<ResidentRange>* ranges) const {
  ranges->clear();
  Fence written;
  const int64_t segment_pages = cache_.format.segment_pages;
  for (int group = 0; group < cache_.format.head_groups(layer); ++group) {
    const PageTable& table = sequence.tables.of(layer, group);
    const int segments = cache_.math.Segments(table.pages());
    for (int segment = table.first_kept(); segment < segments; ++segment) {
      const Slab& slab = (*cache_.slabs)[table.slab(group, segment)];
      written.Join(slab.written);
      ResidentRange& range = ranges->emplace_back();
      range.group = group;
      range.keys.position = table.PositionOf(segment * segment_pages);
      range.keys.pages = RunIn(cache_.format, slab.data, 0, table.PagesIn(segment));
      range.keys.pages.readable = cache_.format.segment_tokens();
    }
  }
  cache_.lanes.Wait(Lane::kCompute, written);
}

}  // namespace headway::kv
