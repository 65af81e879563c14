// ListedSegments: the segments of an entry and layer whose blocks may be listed, and how their
// blocks lie. Shared by the paths that select.
#ifndef HEADWAY_ENGINE_PATHS_LISTED_SEGMENTS_H_
#define HEADWAY_ENGINE_PATHS_LISTED_SEGMENTS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "engine/step/reads.h"
#include "engine/step/step_context.h"
#include "kernels/selection.h"
#include "kv/policy/selection.h"

namespace headway {

// How the blocks of any sequence and layer lie; which ones there are is not set.
BlockedKeys BlockedKeysIn(const kv::CacheFormat& format);
// The same keys with a page for a block, to be chosen by summaries of pages.
BlockedKeys PageKeysOf(const kv::CacheFormat& format, BlockedKeys keys);

class ListedSegments {
 public:
  explicit ListedSegments(const StepContext& context) : context_(context) {}

  // Finds those that lie in memory, or also those on disk, with their summaries where blocks are
  // scored by these, in all head groups.
  enum class Where : uint8_t { kInMemory, kAnywhere };
  void Find(int layer, int entry, std::span<const SlabRange> ranges, Where where);

  bool empty() const { return segments_.empty(); }
  bool Has(int segment) const;
  // Their blocks, in the order of positions.
  std::span<const kv::BlockSpan> spans() const { return spans_; }
  int64_t blocks() const { return blocks_; }
  int64_t end() const { return end_; }       // the position behind the last one
  bool on_disk() const { return on_disk_; }  // some lie there
  // Their slabs, by head group, then segment, appended to *reads.
  void AddReads(std::vector<kv::SlabRead>* reads) const;

 private:
  struct Segment {
    int segment = 0;
    int groups = 0;  // in which it was found
    int pages = 0;
    bool on_disk = false;  // in some group
  };
  std::vector<Segment>::iterator At(int segment);

  const StepContext& context_;
  int layer_ = 0;
  int entry_ = 0;
  std::vector<Segment> segments_;  // in their order
  std::vector<kv::BlockSpan> spans_;
  int64_t blocks_ = 0;
  int64_t end_ = 0;
  bool on_disk_ = false;
};

}  // namespace headway

#endif  // HEADWAY_ENGINE_PATHS_LISTED_SEGMENTS_H_
