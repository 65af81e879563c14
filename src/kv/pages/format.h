// CacheFormat: how a cache is cut into head groups, segments, slabs and pages, and where in a slab
// each page lies.
//
// A slab holds one segment (segment_pages pages in a row) of one head group of one layer of one
// sequence: first a plane of K, then a plane of V; in a plane, head by head, page by page. Slabs of
// encoded pages have a third plane, of their parameters: page by page, in each head by head, padded
// to whole blocks of direct I/O once a page. Slabs of all tiers have this one layout, so a move
// between tiers is a plain copy.
//
// Heads that a pattern marks as streaming have no slabs (see streaming_heads.h). In each layer they
// come behind the others, and head groups are cut from that order, so that slabs are full whatever
// the pattern is; heads of a group are then not neighbours in the model everywhere.
#ifndef HEADWAY_KV_PAGES_FORMAT_H_
#define HEADWAY_KV_PAGES_FORMAT_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/bytes.h"
#include "base/env.h"
#include "kernels/kernels.h"
#include "kernels/page_codec.h"
#include "kv/policy/head_pattern.h"

namespace headway::kv {

// Neighbouring KV heads of a layer that are neighbours in a head group, too.
struct HeadRun {
  int head = 0;   // the first
  int heads = 0;  // how many
  int index = 0;  // of the first in its group
};

// The part of a group's pages that belongs to a run of its heads.
inline PageRun PagesOf(PageRun pages, const HeadRun& run) {
  pages.k += run.index * pages.head_stride;
  pages.v += run.index * pages.head_stride;
  if (pages.params != nullptr) pages.params += run.index * pages.params_head_stride;
  return pages;
}

struct CacheFormat {
  int layers = 0;
  int kv_heads = 0;  // that this rank holds
  PageFormat page;
  int group_heads = 1;    // heads of a head group; the last group may have fewer
  int segment_pages = 1;  // pages of a segment
  // Tokens that a layer's queries look back, 0 for all; [layers] or empty for all zero. Slabs that
  // no later query can see are freed.
  std::vector<int64_t> window;
  HeadPattern pattern;
  // Elements of a token's X, the normed input of a layer's K/V projection, which the first segments
  // of a sequence may keep instead of K and V (Store::CreateSequence); 0: none does. A slab of X is
  // [segment_tokens, x_width] in the pages' dtype, of all heads: there is one head group then.
  int64_t x_width = 0;
  // Of the blocks of closed pages; none unless a policy selects by them. Whole pages may have
  // summaries, too, which are searched in front of theirs.
  SummaryFormat summary;
  bool page_summaries = false;

  // Head groups with slabs: of a layer, and the most that one may have.
  int head_groups(int layer) const {
    return static_cast<int>(CeilDiv(SlabHeads(layer), group_heads));
  }
  int max_head_groups() const { return static_cast<int>(CeilDiv(kv_heads, group_heads)); }
  // The streaming heads of a layer are one more group, behind those with slabs; it may be empty.
  int StreamingGroup(int layer) const { return head_groups(layer); }
  int HeadsIn(int layer, int group) const {
    return group == StreamingGroup(layer)
               ? pattern.StreamingIn(layer)
               : std::min(group_heads, SlabHeads(layer) - group * group_heads);
  }
  // Heads of the groups before.
  int HeadsBefore(int layer, int group) const {
    return std::min(group * group_heads, SlabHeads(layer));
  }
  // Which heads of the model a group has, in its order.
  std::vector<HeadRun> Runs(int layer, int group) const;
  int SlabHeads(int layer) const { return kv_heads - pattern.StreamingIn(layer); }

  int64_t segment_tokens() const { return int64_t{segment_pages} * page.page_slots; }
  // Pages start on multiples of what direct disk I/O needs. Of open pages, and in a slab:
  int64_t page_stride() const { return Padded(static_cast<int64_t>(page.bytes())); }
  int64_t closed_stride() const { return Padded(static_cast<int64_t>(page.closed_bytes())); }
  bool encoded() const { return page.encoding != Encoding::kNone; }
  int64_t param_bytes() const { return encoded() ? ParamBytes(page) : 0; }  // of a page
  int64_t param_stride() const { return Padded(group_heads * param_bytes()); }
  int64_t head_stride() const { return segment_pages * closed_stride(); }  // in a slab
  int64_t plane_bytes() const { return group_heads * head_stride(); }
  int64_t slab_bytes() const { return 2 * plane_bytes() + segment_pages * param_stride(); }
  int64_t KOffset(int head_in_group, int page_in_segment) const {
    return head_in_group * head_stride() + page_in_segment * closed_stride();
  }
  int64_t VOffset(int head_in_group, int page_in_segment) const {
    return plane_bytes() + KOffset(head_in_group, page_in_segment);
  }
  int64_t ParamOffset(int page_in_segment) const {
    return 2 * plane_bytes() + page_in_segment * param_stride();
  }
  // Bytes of closed pages without padding: `pages` of each of `heads`.
  int64_t ClosedBytes(int64_t heads, int64_t pages) const {
    return heads * pages * (2 * static_cast<int64_t>(page.closed_bytes()) + param_bytes());
  }
  // Of a page of all heads of a group, with padding, as it is read from disk.
  int64_t PageBytes(int layer, int group) const {
    return 2 * HeadsIn(layer, group) * closed_stride() + param_stride();
  }
  bool keeps_x() const { return x_width > 0; }
  int64_t XBytes(int64_t tokens) const {
    return tokens * x_width * static_cast<int64_t>(DTypeBytes(page.dtype));
  }
  int64_t x_page_bytes() const { return XBytes(page.page_slots); }
  int64_t x_slab_bytes() const { return XBytes(segment_tokens()); }
  // A segment's summaries, of the heads of its group: their codes head by head, then their scales,
  // then codes and scales of whole pages. Its sketches are a piece of their own, head by head.
  int64_t page_blocks() const { return page.page_slots / summary.block_slots; }
  int64_t segment_blocks() const { return segment_pages * page_blocks(); }
  int64_t summary_head_stride() const {
    return segment_blocks() * summary.code_bytes(page.head_dim);
  }
  int64_t summary_scales_offset() const { return group_heads * summary_head_stride(); }
  int64_t sketch_head_stride() const {
    return segment_blocks() * summary.sketch_bytes(page.head_dim);
  }
  int64_t sketch_bytes() const {
    if (!summary.sketched()) return 0;
    return RoundUp(group_heads * sketch_head_stride(), 256);
  }
  SummaryFormat page_summary() const { return {summary.kind, page.page_slots}; }
  int64_t page_summary_head_stride() const {
    return segment_pages * summary.code_bytes(page.head_dim);
  }
  int64_t page_summary_offset() const {
    return RoundUp(
        summary_scales_offset() + group_heads * segment_blocks() * SummaryFormat::scale_bytes(),
        256);
  }
  int64_t page_summary_scales_offset() const {
    return page_summary_offset() + group_heads * page_summary_head_stride();
  }
  int64_t page_summary_bytes() const {
    if (!page_summaries) return 0;
    const int64_t scales = int64_t{group_heads} * segment_pages * SummaryFormat::scale_bytes();
    return RoundUp(group_heads * page_summary_head_stride() + scales, 256);
  }
  int64_t summary_bytes() const {
    return summary.kept() ? page_summary_offset() + page_summary_bytes() : 0;
  }
  static int64_t Padded(int64_t bytes) {
    return RoundUp(bytes, static_cast<int64_t>(kDirectAlignment));
  }
  int64_t WindowOf(int layer) const {
    return window.empty() ? 0 : window[static_cast<size_t>(layer)];
  }
};

// Whether slabs of one are slabs of the other.
bool SameFormat(const CacheFormat& a, const CacheFormat& b);

// The K and V of a slab's pages from `first_page` on, `pages` of them, as kernels read them.
PageRun RunIn(const CacheFormat& format, std::byte* slab, int first_page, int pages);

// Rows of pages, one page run a row: of a head group first its K rows, then its V rows, groups in
// order. Slabs, open pages and the append buffer have this order in common, so that the pages of a
// group move in one strided copy.
inline int FirstRow(const CacheFormat& format, int layer, int group) {
  return 2 * format.HeadsBefore(layer, group);
}

}  // namespace headway::kv

#endif  // HEADWAY_KV_PAGES_FORMAT_H_
