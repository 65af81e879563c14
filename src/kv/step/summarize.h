// Which summaries are made of which pages of a slab.
#ifndef HEADWAY_KV_STEP_SUMMARIZE_H_
#define HEADWAY_KV_STEP_SUMMARIZE_H_

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/selection.h"
#include "kv/pages/format.h"
#include "kv/pages/page_table.h"
#include "kv/step/cache.h"
#include "kv/step/step_types.h"
#include "kv/tiers/slabs.h"

namespace headway::kv {

// Closed pages whose summaries are made together.
class PagesToSummarize {
 public:
  explicit PagesToSummarize(Cache& cache) : cache_(cache) {}

  // Pages of a slab that has a frame for their summaries. `keys` are those of all heads of its
  // group, of which the first one is page `first` of the slab; `rotated` has a row for each slot.
  void Add(const Slab& slab, const PageRun& keys, int first, RopeTable rotated = {});
  // On the compute lane.
  void Summarize();

 private:
  Cache& cache_;
  std::vector<SummarizeItem> blocks_;
  std::vector<SummarizeItem> pages_;  // the same keys, by whole pages
};

// Whether closed pages of a slab that has a frame for their summaries do not have them yet.
bool LacksSummaries(const Slab& slab);

// Makes the summaries that pages of slabs in memory do not have yet: those of a session, once they
// came up from disk. The slabs are of one segment, whose first slot has this position.
void SummarizeSegment(Cache& cache, std::span<const SlabId> slabs, int64_t position,
                      const SlotAngles& angles);

}  // namespace headway::kv

#endif  // HEADWAY_KV_STEP_SUMMARIZE_H_
