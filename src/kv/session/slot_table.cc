#include "kv/session/slot_table.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "kv/session/manifest.h"

namespace headway::kv {

Result<int64_t> SlotTable::Take() {
  const auto free = std::find(flags_.begin() + lowest_free_, flags_.end(), uint8_t{0});
  int64_t slot = free - flags_.begin();
  while (IsOthers(slot)) ++slot;
  lowest_free_ = slot;
  Status status = TakeAt(slot);
  if (!status.ok()) return status;
  lowest_free_ = slot + 1;
  return slot;
}

Status SlotTable::TakeAt(int64_t slot) {
  HEADWAY_CHECK(slot >= 0);
  if (slot >= kMaxSlots) {
    return Status(StatusCode::kUnsupported,
                  "a slab file has no room for more slabs; use larger segments");
  }
  Result<Reservation> reservation = budget_->Reserve(slab_bytes_, "slab file");
  if (!reservation.ok()) return reservation.status();
  Extend(slot + 1);
  uint8_t& flags = flags_[static_cast<size_t>(slot)];
  HEADWAY_CHECK((flags & ~kOthers) == 0);
  flags = kHeld;
  reservations_.emplace(slot, std::move(*reservation));
  return OkStatus();
}

void SlotTable::Leave(int64_t slot) {
  Extend(slot + 1);
  uint8_t& flags = flags_[static_cast<size_t>(slot)];
  HEADWAY_CHECK((flags & ~kOthers) == 0);
  flags = kOthers;
  left_end_ = std::max(left_end_, slot + 1);
}

bool SlotTable::IsOthers(int64_t slot) const {
  if (slot < 0) return false;
  if (slot < static_cast<int64_t>(flags_.size())) {
    return (flags_[static_cast<size_t>(slot)] & kOthers) != 0;
  }
  return slot % share_.tables != share_.table;
}

void SlotTable::Extend(int64_t slots) {
  while (static_cast<int64_t>(flags_.size()) < slots) {
    const bool others = IsOthers(static_cast<int64_t>(flags_.size()));
    flags_.push_back(static_cast<uint8_t>(others ? kOthers : 0));
  }
}

void SlotTable::Give(int64_t slot) {
  HEADWAY_CHECK(Holds(slot));
  Clear(slot, kHeld);
}

bool SlotTable::Holds(int64_t slot) const {
  return slot >= 0 && slot < static_cast<int64_t>(flags_.size()) &&
         (flags_[static_cast<size_t>(slot)] & kHeld) != 0;
}

int64_t SlotTable::End() const {
  const auto used =
      std::find_if(flags_.rbegin(), flags_.rend(), [](uint8_t f) { return (f & ~kOthers) != 0; });
  return std::max<int64_t>(flags_.rend() - used, left_end_);
}

void SlotTable::BeginCommit(std::span<const int64_t> slots) {
  for (const int64_t slot : slots) {
    if (IsOthers(slot)) continue;
    HEADWAY_CHECK(Holds(slot));
    flags_[static_cast<size_t>(slot)] |= kNext;
  }
}

void SlotTable::KeepBoth() {
  for (uint8_t& flags : flags_) {
    if ((flags & (kNext | kKept)) == kNext) flags |= kKept | kNew;
  }
}

void SlotTable::KeepNext() {
  for (size_t slot = 0; slot < flags_.size(); ++slot) {
    if ((flags_[slot] & kNext) != 0) {
      flags_[slot] = static_cast<uint8_t>((flags_[slot] | kKept) & ~(kNext | kNew));
    } else if ((flags_[slot] & kKept) != 0) {
      Clear(static_cast<int64_t>(slot), kKept | kNew);
    }
  }
}

void SlotTable::Undo() {
  for (size_t slot = 0; slot < flags_.size(); ++slot) {
    if ((flags_[slot] & kNew) != 0) Clear(static_cast<int64_t>(slot), kKept | kNew);
  }
  Abandon();
}

void SlotTable::Abandon() {
  for (size_t slot = 0; slot < flags_.size(); ++slot) {
    if ((flags_[slot] & (kNext | kNew)) != 0) Clear(static_cast<int64_t>(slot), kNext | kNew);
  }
}

void SlotTable::Clear(int64_t slot, uint8_t cleared) {
  uint8_t& flags = flags_[static_cast<size_t>(slot)];
  flags = static_cast<uint8_t>(flags & ~cleared);
  if (flags != 0) return;
  reservations_.erase(slot);
  lowest_free_ = std::min(lowest_free_, slot);
}

}  // namespace headway::kv
