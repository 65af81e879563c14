#include "kv/step/summarize.h"

#include <algorithm>

#include "base/check.h"

namespace headway::kv {
namespace {

// Those of pages [first, last) of a slab that do not have them, on the compute lane. The table
// begins with the slots of page `first`.
void SummarizePages(Cache& cache, Slab& slab, int first, int last, RopeTable rotated) {
  const CacheFormat& format = cache.format;
  const int from = std::max(first, slab.summarised);
  last = std::min(last, slab.pages);
  if (slab.frames.summary == nullptr || from >= last) return;
  slab.summarised = last;
  const int64_t skipped = (from - first) * cache.math.slots() * (rotated.rotary_dim / 2);
  PagesToSummarize pages(cache);
  pages.Add(slab, RunIn(format, slab.data, from, last - from), from,
            {rotated.cos + skipped, rotated.sin + skipped, rotated.rotary_dim});
  cache.lanes.Wait(Lane::kCompute, slab.written);
  pages.Summarize();
  slab.used.Add(Lane::kCompute, cache.lanes.Soon(Lane::kCompute));
}

}  // namespace

bool LacksSummaries(const Slab& slab) {
  return slab.frames.summary != nullptr && slab.summarised < slab.pages;
}

void PagesToSummarize::Add(const Slab& slab, const PageRun& keys, int first, RopeTable rotated) {
  const CacheFormat& format = cache_.format;
  const int64_t block = first * format.page_blocks();
  std::byte* const summary = slab.frames.summary;
  SummarizeItem item;
  item.keys = keys;
  item.rotated = rotated;
  item.heads = format.HeadsIn(slab.layer, slab.group);
  item.codes = summary + block * format.summary.code_bytes(format.page.head_dim);
  item.scales = reinterpret_cast<float*>(summary + format.summary_scales_offset() +
                                         block * SummaryFormat::scale_bytes());
  if (format.summary.sketched()) {
    item.sketch = slab.frames.sketch + block * format.summary.sketch_bytes(format.page.head_dim);
    item.sketch_head_stride = format.sketch_head_stride();
  }
  item.codes_head_stride = format.summary_head_stride();
  item.scales_head_stride = 2 * format.segment_blocks();
  blocks_.push_back(item);
  if (!format.page_summaries) return;
  item.codes = summary + format.page_summary_offset() +
               first * format.summary.code_bytes(format.page.head_dim);
  item.scales = reinterpret_cast<float*>(summary + format.page_summary_scales_offset() +
                                         first * SummaryFormat::scale_bytes());
  item.sketch = nullptr;
  item.codes_head_stride = format.page_summary_head_stride();
  item.scales_head_stride = int64_t{2} * format.segment_pages;
  pages_.push_back(item);
}

void PagesToSummarize::Summarize() {
  Kernels& kernels = *cache_.options.kernels;
  const CacheFormat& format = cache_.format;
  if (blocks_.empty()) return;
  kernels.Summarize(*cache_.compute, format.page, format.summary, blocks_);
  if (pages_.empty()) return;
  kernels.Summarize(*cache_.compute, format.page, format.page_summary(), pages_);
}

void SummarizeSegment(Cache& cache, std::span<const SlabId> slabs, int64_t position,
                      const SlotAngles& angles) {
  // As many pages at a time as there are angles for.
  const int at_once =
      angles.of ? static_cast<int>(angles.slots / cache.math.slots()) : cache.format.segment_pages;
  HEADWAY_CHECK(at_once > 0);
  int first = cache.format.segment_pages, end = 0;  // of the pages that lack theirs
  for (const SlabId id : slabs) {
    const Slab& slab = (*cache.slabs)[id];
    if (!LacksSummaries(slab)) continue;
    first = std::min(first, slab.summarised);
    end = std::max(end, slab.pages);
  }
  for (; first < end; first += at_once) {
    const int last = std::min(first + at_once, end);
    RopeTable rotated;
    if (angles.of) {
      const int64_t slots = cache.math.slots();
      rotated = angles.of(position + first * slots, (last - first) * slots);
    }
    for (const SlabId id : slabs) SummarizePages(cache, (*cache.slabs)[id], first, last, rotated);
  }
}

}  // namespace headway::kv
