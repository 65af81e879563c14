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

}  // namespace headway::kv
