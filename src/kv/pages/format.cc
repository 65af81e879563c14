#include "kv/pages/format.h"

namespace headway::kv {

std::vector<HeadRun> CacheFormat::Runs(int layer, int group) const {
  const bool streaming = group == StreamingGroup(layer);
  const int begin = streaming ? 0 : HeadsBefore(layer, group);
  const int end = begin + HeadsIn(layer, group);
  std::vector<HeadRun> runs;
  int index = 0;  // among the layer's heads of this kind
  for (int head = 0; head < kv_heads; ++head) {
    if (pattern.IsStreaming(layer, head) != streaming) continue;
    const int at = index++;
    if (at < begin || at >= end) continue;
    if (!runs.empty() && runs.back().head + runs.back().heads == head) {
      ++runs.back().heads;
    } else {
      runs.push_back({head, 1, at - begin});
    }
  }
  return runs;
}

PageRun RunIn(const CacheFormat& format, std::byte* slab, int first_page, int pages) {
  PageRun run = {.k = slab + format.KOffset(0, first_page),
                 .v = slab + format.VOffset(0, first_page),
                 .page_stride = format.closed_stride(),
                 .head_stride = format.head_stride(),
                 .count = int64_t{pages} * format.page.page_slots};
  if (format.encoded()) {
    run.params = slab + format.ParamOffset(first_page);
    run.params_page_stride = format.param_stride();
    run.params_head_stride = format.param_bytes();
  }
  return run;
}

bool SameFormat(const CacheFormat& a, const CacheFormat& b) {
  if (a.layers != b.layers) return false;
  for (int layer = 0; layer < a.layers; ++layer) {
    if (a.WindowOf(layer) != b.WindowOf(layer)) return false;
  }
  return a.kv_heads == b.kv_heads && a.page.dtype == b.page.dtype &&
         a.page.encoding == b.page.encoding && a.page.page_slots == b.page.page_slots &&
         a.page.head_dim == b.page.head_dim && a.group_heads == b.group_heads &&
         a.segment_pages == b.segment_pages && a.pattern == b.pattern;
}

}  // namespace headway::kv
