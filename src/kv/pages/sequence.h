// Sequence: what a cache has of one sequence: its length, and its closed pages.
#ifndef HEADWAY_KV_PAGES_SEQUENCE_H_
#define HEADWAY_KV_PAGES_SEQUENCE_H_

#include <cstdint>
#include <vector>

#include "kv/pages/page_table.h"
#include "kv/pages/slab_layout.h"

namespace headway::kv {

struct Sequence {
  int64_t id = -1;  // -1: the place is free
  int64_t length = 0;
  int64_t drafts = 0;  // the number of its last tokens that may be taken back
  int x_segments = 0;  // the number of its first segments that keep X instead of K and V
  PageTables tables;
  // [layers], within a stretch (Step): tokens behind `length` that a layer has, and not all layers
  // have yet.
  std::vector<int64_t> ahead;
  // Streaming heads: the first of the recent pages that are kept, and the area that they are in.
  int64_t recent_first = 0;
  int recent_area = 0;

  // Tokens that a layer has.
  int64_t LengthIn(int layer) const {
    return length + (ahead.empty() ? 0 : ahead[static_cast<size_t>(layer)]);
  }
  // What the slabs of a segment hold.
  SlabKind KindOf(int segment) const {
    return segment < x_segments ? SlabKind::kX : SlabKind::kKeysValues;
  }
  // Some segment has slabs of the kind. Pages that are not closed are of K and V in any case.
  bool Keeps(SlabKind kind) const { return kind == SlabKind::kKeysValues || x_segments > 0; }
};

}  // namespace headway::kv

#endif  // HEADWAY_KV_PAGES_SEQUENCE_H_
