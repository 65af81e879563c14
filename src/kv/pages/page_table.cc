#include "kv/pages/page_table.h"

#include "base/check.h"

namespace headway::kv {

SlabId PageTable::Exchange(int group, int segment, SlabId id) {
  if (segment >= segments_) Resize(segment + 1, [](SlabId) {});
  return std::exchange(slabs_[At(group, segment)], id);
}

void PageTable::Keep(std::vector<int32_t> positions, int64_t closed, bool grows) {
  HEADWAY_CHECK(std::ssize(positions) % slots_ == 0 && std::ssize(positions) <= closed * slots_ &&
                std::is_sorted(positions.begin(), positions.end()));
  positions_ = std::move(positions);
  pages_ = kept_pages();
  left_out_ = closed - pages_;
  grows_ = grows;
}

PageTables::PageTables(const CacheFormat& format, Sharing sharing) : sharing_(sharing) {
  for (int layer = 0; layer < format.layers; ++layer) {
    first_.push_back(tables_.size());
    const int groups = format.head_groups(layer);
    if (sharing == Sharing::kLayer) {
      tables_.emplace_back(format, GroupSpan{0, groups});
      continue;
    }
    for (int group = 0; group < groups; ++group) {
      tables_.emplace_back(format, GroupSpan{group, group + 1});
    }
  }
  first_.push_back(tables_.size());
}

}  // namespace headway::kv
