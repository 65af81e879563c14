#include "engine/paths/listed_segments.h"

#include <algorithm>

namespace headway {

BlockedKeys BlockedKeysIn(const kv::CacheFormat& format) {
  BlockedKeys keys;
  keys.heads = format.kv_heads;
  keys.group_heads = format.group_heads;
  keys.segment_blocks = format.segment_blocks();
  keys.page_stride = format.closed_stride();
  keys.head_stride = format.head_stride();
  keys.v_offset = format.VOffset(0, 0) - format.KOffset(0, 0);
  keys.params_offset = format.ParamOffset(0);
  keys.params_page_stride = format.param_stride();
  keys.params_head_stride = format.param_bytes();
  keys.codes_head_stride = format.summary_head_stride();
  keys.scales_offset = format.summary_scales_offset();
  keys.scales_head_stride = 2 * format.segment_blocks();
  keys.sketch_head_stride = format.sketch_head_stride();
  return keys;
}

BlockedKeys PageKeysOf(const kv::CacheFormat& format, BlockedKeys keys) {
  keys.blocks /= format.page_blocks();
  keys.segment_blocks = format.segment_pages;
  keys.codes_offset = format.page_summary_offset();
  keys.codes_head_stride = format.page_summary_head_stride();
  keys.scales_offset = format.page_summary_scales_offset();
  keys.scales_head_stride = int64_t{2} * format.segment_pages;
  return keys;
}

std::vector<ListedSegments::Segment>::iterator ListedSegments::At(int segment) {
  const auto found =
      std::lower_bound(segments_.begin(), segments_.end(), segment,
                       [](const Segment& each, int number) { return each.segment < number; });
  return found != segments_.end() && found->segment == segment ? found : segments_.end();
}

bool ListedSegments::Has(int segment) const {
  return std::binary_search(
      segments_.begin(), segments_.end(), Segment{segment},
      [](const Segment& a, const Segment& b) { return a.segment < b.segment; });
}

void ListedSegments::Find(int layer, int entry, std::span<const SlabRange> ranges, Where where) {
  layer_ = layer;
  entry_ = entry;
  segments_.clear();
  for (const SlabRange& range : ranges) {
    if (range.slab.entry != entry || range.x) continue;
    const kv::SlabPlace place = context_.store.reads().PlaceOf(range.slab);
    const bool scored = place.summarised || !context_.limits.selection.summary.kept();
    const bool on_disk = place.tier == Tier::kDisk;
    if ((on_disk && where == Where::kInMemory) || !scored) continue;
    if (range.slab.group == 0) {
      segments_.push_back({range.slab.segment, 1, place.pages, on_disk});
      continue;
    }
    const auto found = At(range.slab.segment);
    if (found == segments_.end()) continue;
    ++found->groups;
    found->on_disk = found->on_disk || on_disk;
  }
  const kv::CacheFormat& format = context_.store.format();
  const int groups = format.head_groups(layer);
  std::erase_if(segments_, [&](const Segment& segment) { return segment.groups < groups; });
  spans_.clear();
  blocks_ = end_ = 0;
  on_disk_ = false;
  for (const Segment& segment : segments_) {
    const int64_t blocks = segment.pages * format.page_blocks();
    spans_.push_back({segment.segment * format.segment_tokens(), blocks});
    blocks_ += blocks;
    on_disk_ = on_disk_ || segment.on_disk;
    end_ = spans_.back().position + blocks * format.summary.block_slots;
  }
}

void ListedSegments::AddReads(std::vector<kv::SlabRead>* reads) const {
  for (int group = 0; group < context_.store.format().head_groups(layer_); ++group) {
    for (const Segment& segment : segments_) {
      reads->push_back({entry_, layer_, group, segment.segment, 0});
    }
  }
}

}  // namespace headway
