#include "kv/tiers/disk_tier.h"

namespace headway::kv {

void DiskCopy::Fail(int first_page, Status status) {
  std::lock_guard lock(mutex_);
  if (first_page >= first_bad_) return;
  first_bad_ = first_page;
  status_ = std::move(status);
}

Status DiskCopy::Check(int count) const {
  std::lock_guard lock(mutex_);
  return count > first_bad_ ? status_ : OkStatus();
}

void DiskCopy::Cut(int count) {
  std::lock_guard lock(mutex_);
  if (first_bad_ < count) return;
  first_bad_ = std::numeric_limits<int>::max();
  status_ = OkStatus();
}

int64_t DiskTier::Room() const {
  if (file_ == nullptr || budget_ == nullptr) return 0;
  return static_cast<int64_t>(retired_.size()) + budget_->available() / format_.slab_bytes();
}

Result<std::shared_ptr<DiskCopy>> DiskTier::Take() {
  Reclaim();
  Result<int64_t> slot = file_->Allocate();
  if (!slot.ok() && !retired_.empty()) {
    ReclaimAll();
    slot = file_->Allocate();
  }
  if (!slot.ok()) return slot.status();
  return std::make_shared<DiskCopy>(*slot, format_.segment_pages);
}

void DiskTier::Give(std::shared_ptr<DiskCopy> copy, const Fence& used) {
  retired_.push_back(Retired{copy->slot, used});
}

void DiskTier::Reclaim() {
  std::erase_if(retired_, [&](const Retired& retired) {
    if (!lanes_->Reached(retired.used)) return false;
    file_->Free(retired.slot);
    return true;
  });
}

void DiskTier::ReclaimAll() {
  for (const Retired& retired : retired_) {
    lanes_->HostWait(retired.used);
    file_->Free(retired.slot);
  }
  retired_.clear();
}

}  // namespace headway::kv
