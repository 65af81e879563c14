#include "kv/pages/page_table.h"

#include "base/check.h"

namespace headway::kv {

void PageTable::set_pages(int64_t pages) {
  HEADWAY_CHECK(positions_.empty() || pages <= pages_);
  pages_ = pages;
  if (!positions_.empty()) positions_.resize(static_cast<size_t>(pages * slots_));
}

SlabId PageTable::Exchange(int group, int segment, SlabId id) {
  if (segment >= segments_) Resize(segment + 1, [](SlabId) {});
  return std::exchange(slabs_[At(group, segment)], id);
}

std::span<const int32_t> PageTable::PositionsIn(int segment) const {
  if (positions_.empty()) return {};
  const auto first = static_cast<size_t>(int64_t{segment} * segment_pages_ * slots_);
  return std::span(positions_).subspan(first, static_cast<size_t>(PagesIn(segment) * slots_));
}

void PageTable::SetPositions(std::vector<int32_t> positions) {
  HEADWAY_CHECK(static_cast<int64_t>(positions.size()) == pages_ * slots_);
  HEADWAY_CHECK(std::is_sorted(positions.begin(), positions.end()));
  positions_ = std::move(positions);
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
