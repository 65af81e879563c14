#include "kv/tiers/slabs.h"

#include <utility>

#include "base/bytes.h"
#include "base/check.h"

namespace headway::kv {

int64_t Slabs::RoomOn(Tier tier) const {
  if (tier == Tier::kDisk) return disk_->Room();
  return pools_[static_cast<size_t>(tier)]->Room();
}

Room Slabs::Rooms() const {
  Room room;
  for (const Tier tier : TiersOf(kind_)) room.has[static_cast<int>(tier)] = RoomOn(tier) > 0;
  return room;
}

Status Slabs::CheckRoom(int64_t count) const {
  int64_t room = 0;
  for (const Tier tier : TiersOf(kind_)) {
    const int64_t here = RoomOn(tier);
    if (here >= count - room) return OkStatus();
    room += here;
  }
  return Status(StatusCode::kOutOfBudget, Shortage(count));
}

std::string Slabs::Shortage(int64_t count) const {
  std::string text = "KV cache: " + std::to_string(count) + " more slabs of " +
                     FormatBytes(format_.slab_bytes()) + " are needed; room for";
  int64_t room = 0;
  const char* separator = " ";
  for (const Tier tier : TiersOf(kind_)) {
    const int64_t here = RoomOn(tier);
    room += here;
    text += separator + std::to_string(here) + " on " + TierName(tier);
    const Budget* budget =
        tier == Tier::kDisk ? disk_->budget() : &pools_[static_cast<size_t>(tier)]->budget();
    if (tier == Tier::kDisk && !disk_->present()) {
      text += " (no disk tier)";
    } else if (budget != nullptr) {
      text += " (" + budget->name() + ", limit " + FormatBytes(budget->limit()) + ")";
    }
    separator = ", ";
  }
  return text + "; " + FormatBytes((count - room) * format_.slab_bytes()) +
         " more of one of these would do";
}

SlabId Slabs::NewId() {
  if (!free_ids_.empty()) {
    const SlabId id = free_ids_.back();
    free_ids_.pop_back();
    return id;
  }
  slabs_.emplace_back();
  return static_cast<SlabId>(slabs_.size() - 1);
}

Result<Slabs::Vacancy> Slabs::Take(Tier tier) {
  Vacancy vacancy;
  vacancy.place.tier = tier;
  if (tier == Tier::kDisk) {
    Result<std::shared_ptr<DiskCopy>> copy = disk_->Take();
    if (!copy.ok()) return copy.status();
    vacancy.place.disk = std::move(*copy);
    return vacancy;
  }
  Result<std::byte*> frame = pool(tier).Take(&vacancy.free);
  if (!frame.ok()) return frame.status();
  vacancy.place.data = *frame;
  return vacancy;
}

Result<SlabId> Slabs::New(int layer, int group) {
  std::optional<Tier> tier = PlaceNew(kind_, Rooms());
  if (!tier.has_value() && kind_ == PlacementKind::kLru) {
    if (Demote(Tier::kDevice)) tier = PlaceNew(kind_, Rooms());
    // Nothing on the device may move: the slab itself goes where there is room.
    if (!tier.has_value()) tier = PlaceNew(PlacementKind::kFirstFit, Rooms());
  }
  if (!tier.has_value()) return Status(StatusCode::kOutOfBudget, Shortage(1));
  Result<Vacancy> vacancy = Take(*tier);
  if (!vacancy.ok()) return vacancy.status();
  const SlabId id = NewId();
  Slab& slab = (*this)[id];
  slab = Slab();
  slab.refs = 1;
  slab.layer = layer;
  slab.group = group;
  slab.tier = *tier;
  slab.data = vacancy->place.data;
  slab.disk = std::move(vacancy->place.disk);
  slab.used = vacancy->free;
  return id;
}

Result<SlabId> Slabs::CopyOf(SlabId from, int pages) {
  if ((*this)[from].x) return CopyOfX(from, pages);
  // Not a victim of the room that the copy needs.
  const bool growing = std::exchange((*this)[from].growing, true);
  Result<SlabId> made = New((*this)[from].layer, (*this)[from].group);
  Slab& source = (*this)[from];
  source.growing = growing;
  if (!made.ok()) return made;
  Slab& copy = (*this)[*made];
  const Mover::Copied copied = mover_->Copy(PagesOf(source, 0, pages), source.place(),
                                            source.written, copy.place(), copy.used);
  source.used.Join(copied.source);
  if (copied.read != nullptr) {
    // Rare (a shared slab on disk is appended to): worth knowing before the step goes on.
    lanes_->HostWait(copied.source);
    if (!copied.read->status.ok()) {
      copy.used.Join(copied.ready);
      Release(*made);
      return copied.read->status;
    }
  }
  copy.written = copied.ready;
  copy.pages = pages;
  copy.last_read = source.last_read;
  return made;
}

SlabId Slabs::Adopt(int layer, int group, std::shared_ptr<DiskCopy> disk) {
  const SlabId id = NewId();
  Slab& slab = (*this)[id];
  slab = Slab();
  slab.refs = 1;
  slab.layer = layer;
  slab.group = group;
  slab.tier = Tier::kDisk;
  slab.pages = disk->pages;
  slab.disk = std::move(disk);
  return id;
}

void Slabs::GiveBack(const Place& place, const Fence& used) {
  if (place.tier == Tier::kDisk) {
    disk_->Give(place.disk, used);
  } else {
    pool(place.tier).Give(place.data, used);
  }
}

void Slabs::Release(SlabId id) {
  Slab& slab = (*this)[id];
  HEADWAY_CHECK(slab.refs > 0);
  if (--slab.refs > 0) return;
  HEADWAY_CHECK(!slab.promoting);
  const Fence used = slab.behind();
  if (slab.tier != Tier::kDisk) PoolOf(slab).Give(slab.data, used);
  if (slab.disk != nullptr) disk_->Give(slab.disk, used);
  slab = Slab();
  free_ids_.push_back(id);
}

void Slabs::Cut(SlabId id, int pages) {
  Slab& slab = (*this)[id];
  if (slab.pages <= pages) return;
  HEADWAY_CHECK(slab.refs == 1);
  slab.pages = pages;
  if (slab.disk == nullptr) return;
  slab.disk->pages = std::min(slab.disk->pages, pages);
  if (slab.disk->Check(format_.segment_pages).ok()) return;
  lanes_->HostWait(slab.written);  // a write in flight could fail after it was forgotten
  slab.disk->Cut(pages);
}

std::optional<Slabs::Vacancy> Slabs::VacancyAbove(const Slab& slab) {
  if (slab.growing || slab.promoting || slab.held || slab.x) return std::nullopt;
  const std::optional<Tier> tier = PlacePromoted(kind_, slab.tier, Rooms());
  if (!tier.has_value()) return std::nullopt;
  Result<Vacancy> vacancy = Take(*tier);
  if (!vacancy.ok()) return std::nullopt;  // it streams, as before
  return std::move(*vacancy);
}

void Slabs::Rehome(Slab& slab, const Place& place) {
  const Fence used = slab.behind();
  if (slab.tier != Tier::kDisk) {
    pool(slab.tier).Give(slab.data, used);
  } else if (!keep_disk_copies_) {
    disk_->Give(std::exchange(slab.disk, nullptr), used);
  }
  slab.tier = place.tier;
  slab.data = place.data;
  if (place.tier == Tier::kDisk) slab.disk = place.disk;
}

bool Slabs::Demote(Tier tier) {
  candidates_.clear();
  candidate_ids_.clear();
  for (size_t i = 0; i < slabs_.size(); ++i) {
    const Slab& slab = slabs_[i];
    if (slab.refs == 0 || slab.tier != tier || slab.x) continue;
    candidates_.push_back(Candidate{
        slab.last_read, slab.pages == format_.segment_pages && !slab.growing && !slab.promoting});
    candidate_ids_.push_back(static_cast<SlabId>(i));
  }
  const int victim = PickVictim(candidates_);
  if (victim < 0) return false;
  const SlabId id = candidate_ids_[static_cast<size_t>(victim)];

  if (tier == Tier::kDevice && (RoomOn(Tier::kHost) > 0 || Demote(Tier::kHost))) {
    Result<Vacancy> vacancy = Take(Tier::kHost);
    if (vacancy.ok()) {
      Slab& slab = (*this)[id];
      const Mover::Copied copied = mover_->Copy(PagesOf(slab, 0, slab.pages), slab.place(),
                                                slab.written, vacancy->place, vacancy->free);
      slab.used.Join(copied.source);
      Rehome(slab, vacancy->place);
      slab.written.Join(copied.ready);
      slab.used = vacancy->free;
      return true;
    }
  }
  Slab& slab = (*this)[id];
  if (RoomOn(Tier::kDisk) == 0 && NeedsSlot(slab, slab.pages)) return false;
  if (!KeepOnDisk(slab, slab.pages).ok()) return false;
  Rehome(slab, Place{Tier::kDisk, nullptr, slab.disk});
  slab.used = Fence();
  return true;
}

bool Slabs::NeedsSlot(const Slab& slab, int pages) const {
  if (slab.tier == Tier::kDisk) return false;
  if (slab.disk == nullptr || !slab.disk->Check(slab.disk->pages).ok()) return true;
  // The pages behind those that a session holds may be written, not they themselves.
  return slab.disk->pages < std::min(pages, slab.disk->sealed);
}

Status Slabs::KeepOnDisk(Slab& slab, int pages) {
  if (slab.tier == Tier::kDisk) return OkStatus();
  if (NeedsSlot(slab, pages)) {
    Result<std::shared_ptr<DiskCopy>> copy = disk_->Take();
    if (!copy.ok()) return copy.status();
    if (slab.disk != nullptr) disk_->Give(slab.disk, slab.behind());
    slab.disk = std::move(*copy);
  }
  const int first = slab.disk->pages;
  if (first >= pages) return OkStatus();
  const Place to{Tier::kDisk, nullptr, slab.disk};
  const Mover::Copied copied =
      mover_->Copy(PagesOf(slab, first, pages - first), slab.place(), slab.written, to, Fence());
  slab.used.Join(copied.source);
  slab.written.Join(copied.ready);
  return OkStatus();
}

int64_t Slabs::Count(Tier tier) const {
  int64_t count = 0;
  for (const Slab& slab : slabs_) count += slab.refs > 0 && slab.tier == tier && !slab.x;
  return count;
}

int64_t Slabs::PageBytes(Tier tier) const {
  int64_t bytes = 0;
  for (const Slab& slab : slabs_) {
    if (slab.refs == 0 || slab.tier != tier) continue;
    bytes += slab.x ? slab.pages * format_.x_page_bytes()
                    : format_.ClosedBytes(format_.HeadsIn(slab.layer, slab.group), slab.pages);
  }
  return bytes;
}

}  // namespace headway::kv
