#include "kv/tiers/summaries.h"

namespace headway::kv {

std::byte* Summaries::Take(int layer) {
  // Queries that look back a window see few pages.
  if (format_.WindowOf(layer) > 0) return nullptr;
  Fence free;
  const Result<std::byte*> frame = pool_.Take(&free);
  if (!frame.ok()) return nullptr;
  lanes_->Wait(Lane::kCompute, free);
  return *frame;
}

void Summaries::Give(std::byte* frame) {
  Fence used;
  used.Add(Lane::kCompute, lanes_->Soon(Lane::kCompute));
  pool_.Give(frame, used);
}

void Summaries::Copy(std::byte* to, const std::byte* from) {
  lanes_->stream(Lane::kCompute).Copy(to, from, static_cast<size_t>(format_.summary_bytes()));
}

}  // namespace headway::kv
