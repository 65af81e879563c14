// What a step of a cache is told and what it hands out.
#ifndef HEADWAY_KV_STEP_STEP_TYPES_H_
#define HEADWAY_KV_STEP_STEP_TYPES_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "base/types.h"
#include "kernels/kernels.h"

namespace headway::kv {

using SequenceId = int64_t;

struct StepEntry {
  SequenceId sequence = 0;
  int64_t tokens = 0;  // that the step appends, >= 1
  // The rotation that summaries are made without, of the slots of the pages that the step closes;
  // with a rotary_dim of 0 they are made of keys as they are.
  RopeTable rotated = {};
  // Of the tokens the last ones, that Store::TakeBack may take back until the sequence's next step;
  // where all are drafts, those of the step before may still be taken back with them. Where there
  // are some, the open page takes all tokens and does not close.
  int64_t drafts = 0;
};

// What a head keeps of a prompt.
struct KeptTokens {
  std::vector<int32_t> positions;  // ascending, whole pages of them
  // Whether it has what is appended behind the prompt, too; not where another rank has that.
  bool grows = true;
};

// The rotation that summaries are made without, of any slots of a sequence.
struct SlotAngles {
  int64_t slots = 0;  // that one table has rows for; whole pages
  // A row for each of `count` slots from a position on, until it is called again. Not given, or
  // with a rotary_dim of 0, summaries are made of keys as they are.
  std::function<RopeTable(int64_t position, int64_t count)> of;
};

// Pages of one segment of one head group, readable by kernels: of the heads of the group in order.
struct SlabView {
  int segment = 0;
  KeyRun keys;  // closed tokens of the heads of the group
  // Not null: there is X of these tokens instead, [keys.pages.count, x_width] in the pages' dtype;
  // `keys` has their number and position, no pages. The slabs of a gather follow one another in
  // memory; they are there, and are finished together, when the last was handed out.
  const std::byte* x = nullptr;
  bool ends_gather = false;
  Tier tier = Tier::kDevice;  // where it came from
  int staging = -1;           // Reader's
};

// One slab to be read in a step; entry indexes the entries of the step.
struct SlabRead {
  int entry = 0;
  int layer = 0;
  int group = 0;
  int segment = 0;
  int pages = 0;  // the number of its first pages to be read; 0: all closed ones
};

// A page of a slab, of all heads of its group.
struct PageRead {
  SlabRead slab;
  int page = 0;
};

// The rest of a slab, which the host's cores attend to where it lies: its closed pages of before
// the step from `first_page` on.
struct HostRead {
  SlabRead slab;  // `pages` has no meaning
  int first_page = 0;
};

// Keys of the streaming heads of a layer, those heads in order.
struct StreamingRange {
  KeyRun keys;            // perhaps none
  bool windowed = false;  // of them, some queries see only recent ones (CacheFormat.pattern)
};

// Segments [first, last); those before x_last keep X.
struct SegmentSpan {
  int first = 0;
  int last = 0;
  int x_last = 0;
};

struct SlabPlace {
  Tier tier = Tier::kDevice;
  int pages = 0;  // closed before the step
  bool x = false;
  bool summarised = false;  // every closed page has its blocks' summaries
};

}  // namespace headway::kv

#endif  // HEADWAY_KV_STEP_STEP_TYPES_H_
