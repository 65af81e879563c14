#include "kv/tiers/frame_pool.h"

#include <algorithm>

#include "base/bytes.h"

namespace headway::kv {
namespace {

// Large enough that making pinned memory is not paid by the slab, small enough that a budget shared
// with others is not taken long before it is used.
constexpr int64_t kBlockBytes = 16 * kMiB;

}  // namespace

int64_t FramePool::Room() const {
  if (budget_ == nullptr) return 0;
  if (aliased_) return int64_t{1} << 40;
  return static_cast<int64_t>(free_.size()) + budget_->available() / frame_bytes_;
}

Status FramePool::Preallocate(int64_t frames) { return frames == 0 ? OkStatus() : Grow(frames); }

Status FramePool::PreallocateAliased(int64_t frames) {
  aliased_ = true;
  return Grow(frames);
}

Status FramePool::Grow(int64_t frames) {
  const auto bytes = static_cast<size_t>(frames * frame_bytes_);
  Result<std::unique_ptr<Buffer>> block = tier_ == Tier::kDevice
                                              ? device_->Allocate(*budget_, bytes, "KV slabs")
                                              : device_->AllocateHost(*budget_, bytes, "KV slabs");
  if (!block.ok()) return block.status();
  for (int64_t i = frames; i-- > 0;) {
    free_.emplace_back((*block)->data() + i * frame_bytes_, Fence());
  }
  blocks_.push_back(std::move(*block));
  return OkStatus();
}

Result<std::byte*> FramePool::Take(Fence* used) {
  if (aliased_) {
    next_alias_ = (next_alias_ + 1) % free_.size();
    *used = Fence();
    return free_[next_alias_].first;
  }
  if (free_.empty()) {
    const int64_t fit = budget_->available() / frame_bytes_;
    Status grown = Grow(std::max<int64_t>(1, std::min(fit, kBlockBytes / frame_bytes_)));
    if (!grown.ok()) return grown;
  }
  auto [frame, fence] = free_.back();
  free_.pop_back();
  *used = fence;
  return frame;
}

void FramePool::Give(std::byte* frame, Fence used) {
  if (aliased_) return;
  if (poison_ != nullptr) poison_->Fill(frame, frame_bytes_, &used);
  free_.emplace_back(frame, used);
}

}  // namespace headway::kv
