#include "kv/tiers/summaries.h"

namespace headway::kv {

Status Summaries::Preallocate(int64_t slabs) {
  Status status = pool_.Preallocate(slabs);
  if (status.ok() && format_.summary.sketched()) status = sketches_.Preallocate(slabs);
  return status;
}

std::byte* Summaries::TakeOf(FramePool& pool) {
  Fence free;
  const Result<std::byte*> frame = pool.Take(&free);
  if (!frame.ok()) return nullptr;
  lanes_->Wait(Lane::kCompute, free);
  return *frame;
}

Summaries::Frames Summaries::Take(int layer) {
  // Queries that look back a window see few pages.
  if (format_.WindowOf(layer) > 0) return {};
  Frames frames;
  frames.summary = TakeOf(pool_);
  if (frames.summary == nullptr || !format_.summary.sketched()) return frames;
  frames.sketch = TakeOf(sketches_);
  if (frames.sketch != nullptr) return frames;
  Give(frames);
  return {};
}

void Summaries::Give(const Frames& frames) {
  Fence used;
  used.Add(Lane::kCompute, lanes_->Soon(Lane::kCompute));
  pool_.Give(frames.summary, used);
  if (frames.sketch != nullptr) sketches_.Give(frames.sketch, used);
}

void Summaries::Copy(const Frames& to, const Frames& from) {
  Stream& compute = lanes_->stream(Lane::kCompute);
  compute.Copy(to.summary, from.summary, static_cast<size_t>(format_.summary_bytes()));
  if (from.sketch == nullptr) return;
  compute.Copy(to.sketch, from.sketch, static_cast<size_t>(format_.sketch_bytes()));
}

}  // namespace headway::kv
