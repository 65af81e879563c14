// Which summaries are made of which pages of a slab.
#ifndef HEADWAY_KV_STEP_SUMMARIZE_H_
#define HEADWAY_KV_STEP_SUMMARIZE_H_

#include "kernels/selection.h"
#include "kv/pages/format.h"
#include "kv/tiers/slabs.h"

namespace headway::kv {

// Makes the summaries of whole pages of a slab that has a frame for them. `keys` are the pages of
// all heads of its group, of which the first one is page `first` of the slab.
SummarizeItem SummaryOf(const CacheFormat& format, const Slab& slab, const PageRun& keys,
                        int first);

}  // namespace headway::kv

#endif  // HEADWAY_KV_STEP_SUMMARIZE_H_
