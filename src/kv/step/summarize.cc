#include "kv/step/summarize.h"

namespace headway::kv {

SummarizeItem SummaryOf(const CacheFormat& format, const Slab& slab, const PageRun& keys,
                        int first) {
  const int64_t block = first * format.page_blocks();
  SummarizeItem item;
  item.keys = keys;
  item.heads = format.HeadsIn(slab.layer, slab.group);
  item.codes = slab.summary + block * format.summary.code_bytes(format.page.head_dim);
  item.scales = reinterpret_cast<float*>(slab.summary + format.summary_scales_offset() +
                                         block * SummaryFormat::scale_bytes());
  if (format.summary.sketched()) {
    item.sketch = slab.summary + format.sketch_offset() +
                  block * format.summary.sketch_bytes(format.page.head_dim);
    item.sketch_head_stride = format.sketch_head_stride();
  }
  item.codes_head_stride = format.summary_head_stride();
  item.scales_head_stride = 2 * format.segment_blocks();
  return item;
}

}  // namespace headway::kv
