#include "device/budget.h"

#include <algorithm>

#include "base/bytes.h"
#include "base/check.h"

namespace headway {

Reservation& Reservation::operator=(Reservation&& other) noexcept {
  if (this != &other) {
    Release();
    budget_ = std::exchange(other.budget_, nullptr);
    tag_ = std::move(other.tag_);
    bytes_ = std::exchange(other.bytes_, 0);
  }
  return *this;
}

void Reservation::Release() {
  if (budget_ != nullptr) budget_->Release(tag_, bytes_);
  budget_ = nullptr;
  bytes_ = 0;
}

Result<Reservation> Budget::Reserve(int64_t bytes, const std::string& tag) {
  HEADWAY_CHECK(bytes >= 0);
  Reservation in_parent;
  if (parent_ != nullptr) {
    Result<Reservation> reserved = parent_->Reserve(bytes, tag);
    if (!reserved.ok()) return reserved.status();
    in_parent = std::move(*reserved);
  }
  std::lock_guard lock(mutex_);
  if (bytes > limit_ - used_) {
    const Status short_of(StatusCode::kOutOfBudget, ": " + tag + " needs " + FormatBytes(bytes) +
                                                        ", " + FormatBytes(limit_ - used_) +
                                                        " of " + FormatBytes(limit_) + " are left");
    return short_of.Within(name_);
  }
  in_parent.budget_ = nullptr;  // given back by Release
  Reservation reservation;
  reservation.tag_ = tag;
  reservation.bytes_ = bytes;
  reservation.budget_ = this;
  used_ += bytes;
  peak_ = std::max(peak_, used_);
  by_tag_[tag] += bytes;
  return reservation;
}

void Budget::Release(const std::string& tag, int64_t bytes) {
  if (parent_ != nullptr) parent_->Release(tag, bytes);
  std::lock_guard lock(mutex_);
  used_ -= bytes;
  by_tag_[tag] -= bytes;
  HEADWAY_CHECK(used_ >= 0);
}

int64_t Budget::used() const {
  std::lock_guard lock(mutex_);
  return used_;
}

int64_t Budget::peak() const {
  std::lock_guard lock(mutex_);
  return peak_;
}

int64_t Budget::available() const {
  const int64_t above = parent_ == nullptr ? kUnlimited : parent_->available();
  std::lock_guard lock(mutex_);
  return std::min(above, limit_ - used_);
}

std::vector<std::pair<std::string, int64_t>> Budget::Usage() const {
  std::vector<std::pair<std::string, int64_t>> usage;
  {
    std::lock_guard lock(mutex_);
    for (const auto& [tag, bytes] : by_tag_) {
      if (bytes > 0) usage.emplace_back(tag, bytes);
    }
  }
  std::sort(usage.begin(), usage.end(),
            [](const auto& a, const auto& b) { return a.second > b.second; });
  return usage;
}

}  // namespace headway
