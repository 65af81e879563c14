#include "engine/paths/host_queries.h"

#include <algorithm>

namespace headway {

// Entries whose rows follow one another go down together.
void SendQueries(StepContext& context, const Batch& batch, const std::vector<bool>& on_host,
                 HostAttention& host) {
  const int entries = batch.size();
  const auto row_bytes = static_cast<size_t>(context.ActivationBytes(context.QWidth()));
  const auto stride = static_cast<size_t>(context.ActivationBytes(context.act.qkv_stride));
  for (int first = 0, end = 0; first < entries; first = std::max(first + 1, end)) {
    int64_t rows = 0;
    for (end = first; end < entries && on_host[static_cast<size_t>(end)];) {
      rows += batch[end].tokens;
      // The next one's queries have a place behind room for as many as an entry may have.
      if (batch[end++].tokens < host.tokens()) break;
    }
    if (end == first) continue;
    context.compute.Copy2D(host.Queries(first), row_bytes, context.QueryAt(batch[first].row, 0),
                           stride, row_bytes, static_cast<size_t>(rows));
  }
}

}  // namespace headway
