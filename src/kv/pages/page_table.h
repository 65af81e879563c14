// PageTable: which closed pages some head groups of a layer of a sequence have, in which slabs the
// pages lie, and at which positions their tokens are.
//
// The groups of a table share their number of pages and their positions. In a dense cache all
// groups of a layer share one table; a cache that keeps other tokens for each head has a table for
// each group of one head. Whoever wants to know where a sequence's pages are asks its PageTables.
#ifndef HEADWAY_KV_PAGES_PAGE_TABLE_H_
#define HEADWAY_KV_PAGES_PAGE_TABLE_H_

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "kv/pages/format.h"

namespace headway::kv {

// The number of a slab in a store's table of slabs.
using SlabId = int32_t;
inline constexpr SlabId kNoSlab = -1;

// Head groups [first, last) of a layer.
struct GroupSpan {
  int first = 0;
  int last = 0;

  int size() const { return last - first; }
};

class PageTable {
 public:
  PageTable(const CacheFormat& format, GroupSpan groups)
      : groups_(groups), slots_(format.page.page_slots), segment_pages_(format.segment_pages) {}

  GroupSpan groups() const { return groups_; }

  // --- Pages. Those of the segments before first_kept() are gone.
  int64_t pages() const { return pages_; }
  int PagesIn(int segment) const {
    return static_cast<int>(std::clamp<int64_t>(pages_ - int64_t{segment} * segment_pages_, 0,
                                                int64_t{segment_pages_}));
  }
  void set_pages(int64_t pages) { pages_ = pages; }

  // --- Slabs, by group of the layer and segment. A step has entries for the pages that it will
  // close before it closes them.
  int segments() const { return segments_; }
  SlabId slab(int group, int segment) const { return slabs_[At(group, segment)]; }
  // The table grows by what it needs; the old slab is the caller's.
  SlabId Exchange(int group, int segment, SlabId id);
  // Makes it `segments` long; `drop` gets the slabs behind them.
  template <typename Drop>
  void Resize(int segments, const Drop& drop) {
    Clear(segments, segments_, drop);
    slabs_.resize(static_cast<size_t>(segments) * static_cast<size_t>(groups_.size()), kNoSlab);
    segments_ = segments;
    first_kept_ = std::min(first_kept_, segments);
  }
  // Segments before this one were freed, or never stored, since no query can see them any longer.
  int first_kept() const { return first_kept_; }
  // Frees more of them; `drop` gets their slabs.
  template <typename Drop>
  void FreeBefore(int segment, const Drop& drop) {
    if (segment <= first_kept_) return;
    Clear(first_kept_, segment, drop);
    first_kept_ = segment;
  }
  // Calls visit(group, segment, slab) for every slab, group by group.
  template <typename Visit>
  void ForEachSlab(const Visit& visit) const {
    for (int group = groups_.first; group < groups_.last; ++group) {
      for (int segment = 0; segment < segments_; ++segment) {
        if (const SlabId id = slab(group, segment); id != kNoSlab) visit(group, segment, id);
      }
    }
  }

  // --- Positions: consecutive ones from 0, unless tokens of the first pages were left out.
  // Of the first token of a page. Those of its other tokens are consecutive, or greater than that.
  int64_t PositionOf(int64_t page) const {
    const int64_t slot = page * slots_;
    return slot < std::ssize(positions_) ? positions_[static_cast<size_t>(slot)]
                                         : slot + left_out_ * slots_;
  }
  // The table becomes one of some tokens of the sequence's first `closed` pages: those at these
  // positions, ascending, which fill whole pages. Pages behind them are of consecutive tokens;
  // there are none where it does not grow.
  void Keep(std::vector<int32_t> positions, int64_t closed, bool grows = true);
  // Whether what is appended to the sequence is here, too: not where another rank has it.
  bool grows() const { return grows_; }
  // Pages of the sequence that are not here; while the table has a page, those before the page
  // kept_pages() are not whole.
  int64_t left_out() const { return left_out_; }
  int64_t kept_pages() const { return std::ssize(positions_) / slots_; }
  std::span<const int32_t> positions() const { return positions_; }  // of these pages' tokens

 private:
  size_t At(int group, int segment) const {
    return static_cast<size_t>(segment) * static_cast<size_t>(groups_.size()) +
           static_cast<size_t>(group - groups_.first);
  }
  template <typename Drop>
  void Clear(int first, int last, const Drop& drop) {
    for (int segment = first; segment < std::min(last, segments_); ++segment) {
      for (int group = groups_.first; group < groups_.last; ++group) {
        SlabId& id = slabs_[At(group, segment)];
        if (id != kNoSlab) drop(std::exchange(id, kNoSlab));
      }
    }
  }

  GroupSpan groups_;
  int64_t slots_ = 0;
  int segment_pages_ = 0;
  int64_t pages_ = 0;
  int segments_ = 0;
  int first_kept_ = 0;
  std::vector<SlabId> slabs_;  // [segments][groups]
  int64_t left_out_ = 0;
  bool grows_ = true;
  std::vector<int32_t> positions_;  // [kept_pages * slots]
};

// The tables of a sequence.
class PageTables {
 public:
  enum class Sharing : uint8_t {
    kLayer,  // the groups of a layer have one table
    kGroup,  // each group has its own
  };
  PageTables() = default;
  PageTables(const CacheFormat& format, Sharing sharing);

  PageTable& of(int layer, int group) { return tables_[IndexOf(layer, group)]; }
  const PageTable& of(int layer, int group) const { return tables_[IndexOf(layer, group)]; }
  // Whether all grow with the sequence: true, unless it was said that some may not. Asked for each
  // head of each step, where a look at every table would be one at memory.
  bool all_grow() const { return all_grow_; }
  void SomeMayNotGrow() { all_grow_ = false; }
  // Every table once, by layer, and those of one layer.
  std::span<PageTable> all() { return tables_; }
  std::span<const PageTable> all() const { return tables_; }
  std::span<PageTable> of_layer(int layer) {
    return all().subspan(FirstOf(layer), FirstOf(layer + 1) - FirstOf(layer));
  }
  std::span<const PageTable> of_layer(int layer) const {
    return all().subspan(FirstOf(layer), FirstOf(layer + 1) - FirstOf(layer));
  }

 private:
  size_t FirstOf(int layer) const { return first_[static_cast<size_t>(layer)]; }
  size_t IndexOf(int layer, int group) const {
    return FirstOf(layer) + (sharing_ == Sharing::kLayer ? 0 : static_cast<size_t>(group));
  }

  Sharing sharing_ = Sharing::kLayer;
  bool all_grow_ = true;
  std::vector<size_t> first_;  // [layers + 1]: the first table of each layer
  std::vector<PageTable> tables_;
};

}  // namespace headway::kv

#endif  // HEADWAY_KV_PAGES_PAGE_TABLE_H_
