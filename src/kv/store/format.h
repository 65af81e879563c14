// CacheFormat: how a cache is cut into head groups, segments, slabs and pages, and where in a slab
// each page lies.
//
// A slab holds one segment (segment_pages pages in a row) of one head group of one layer of one
// sequence: first a plane of K, then a plane of V; in a plane, head by head, page by page. Slabs of
// all tiers have this one layout, so a move between tiers is a plain copy.
#ifndef HEADWAY_KV_STORE_FORMAT_H_
#define HEADWAY_KV_STORE_FORMAT_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/bytes.h"
#include "base/env.h"
#include "kernels/kernels.h"

namespace headway::kv {

struct CacheFormat {
  int layers = 0;
  int kv_heads = 0;  // that this rank holds
  PageFormat page;
  int group_heads = 1;    // heads of a head group; the last group may have fewer
  int segment_pages = 1;  // pages of a segment
  // Tokens that a layer's queries look back, 0 for all; [layers] or empty for all zero. Slabs that
  // no later query can see are freed.
  std::vector<int64_t> window;

  int head_groups() const { return static_cast<int>(CeilDiv(kv_heads, group_heads)); }
  int HeadsIn(int group) const { return std::min(group_heads, kv_heads - group * group_heads); }
  int64_t segment_tokens() const { return int64_t{segment_pages} * page.page_slots; }
  // Pages start on multiples of what direct disk I/O needs.
  int64_t page_stride() const {
    return RoundUp(static_cast<int64_t>(page.bytes()), static_cast<int64_t>(kDirectAlignment));
  }
  int64_t head_stride() const { return segment_pages * page_stride(); }  // in a slab
  int64_t slab_bytes() const { return 2 * group_heads * head_stride(); }
  int64_t KOffset(int head_in_group, int page_in_segment) const {
    return head_in_group * head_stride() + page_in_segment * page_stride();
  }
  int64_t VOffset(int head_in_group, int page_in_segment) const {
    return slab_bytes() / 2 + KOffset(head_in_group, page_in_segment);
  }
  int64_t WindowOf(int layer) const {
    return window.empty() ? 0 : window[static_cast<size_t>(layer)];
  }
};

}  // namespace headway::kv

#endif  // HEADWAY_KV_STORE_FORMAT_H_
