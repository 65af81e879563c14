// Sequence: what a cache has of one sequence: its length, and which slabs hold its closed pages.
#ifndef HEADWAY_KV_PAGES_SEQUENCE_H_
#define HEADWAY_KV_PAGES_SEQUENCE_H_

#include <cstdint>
#include <vector>

#include "kv/pages/slab_layout.h"

namespace headway::kv {

// The number of a slab in a store's table of slabs.
using SlabId = int32_t;
inline constexpr SlabId kNoSlab = -1;

struct Sequence {
  int64_t id = -1;  // -1: the place is free
  int64_t length = 0;
  int x_segments = 0;  // the number of its first segments that keep X instead of K and V
  // [layers * max_head_groups][segments]; kNoSlab where no query can see the segment any longer.
  std::vector<std::vector<SlabId>> slabs;
  // [layers]: segments before this one were freed, or never stored, for the window's sake.
  std::vector<int> freed;
  // Streaming heads: the first of the recent pages that are kept, and the area that they are in.
  int64_t recent_first = 0;
  int recent_area = 0;

  // What the slabs of a segment hold.
  SlabKind KindOf(int segment) const {
    return segment < x_segments ? SlabKind::kX : SlabKind::kKeysValues;
  }
  // Some segment has slabs of the kind. Pages that are not closed are of K and V in any case.
  bool Keeps(SlabKind kind) const { return kind == SlabKind::kKeysValues || x_segments > 0; }
};

}  // namespace headway::kv

#endif  // HEADWAY_KV_PAGES_SEQUENCE_H_
