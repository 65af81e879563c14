#include "kv/tiers/slabs.h"

#include <algorithm>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"

namespace headway::kv {

int64_t Slabs::RoomOn(SlabKind kind, Tier tier) const {
  if (tier == Tier::kDisk) return HomesOf(kind).disk == nullptr ? 0 : HomesOf(kind).disk->Room();
  const FramePool* pool = PoolOf(kind, tier);
  return pool == nullptr ? 0 : pool->Room();
}

Room Slabs::Rooms(SlabKind kind) const {
  Room room;
  for (const Tier tier : HomesOf(kind).placement->tiers()) {
    room.has[static_cast<int>(tier)] = RoomOn(kind, tier) > 0;
  }
  return room;
}

// Null without a disk tier.
const Budget* Slabs::BudgetOf(SlabKind kind, Tier tier) const {
  return tier == Tier::kDisk ? HomesOf(kind).disk->budget() : &PoolOf(kind, tier)->budget();
}

Status Slabs::CheckRoom(SlabKind kind, int64_t count) const {
  int64_t room = 0;
  for (const Tier tier : HomesOf(kind).placement->tiers()) {
    const int64_t here = RoomOn(kind, tier);
    if (here >= count - room) return OkStatus();
    room += here;
  }
  return Status(StatusCode::kOutOfBudget, Shortage(kind, count));
}

std::string Slabs::Shortage(SlabKind kind, int64_t count) const {
  const SlabLayout& layout = Of(layouts_, kind);
  std::string text = "KV cache: " + std::to_string(count) + " more slabs of " +
                     FormatBytes(layout.slab_bytes) + layout.what + " are needed";
  if (layout.home.has_value()) text += std::string(" on the ") + TierName(*layout.home);
  text += "; room for";
  int64_t room = 0;
  const char* separator = " ";
  for (const Tier tier : HomesOf(kind).placement->tiers()) {
    const int64_t here = RoomOn(kind, tier);
    room += here;
    text += separator + std::to_string(here);
    if (!layout.home.has_value()) text += std::string(" on ") + TierName(tier);
    const Budget* budget = BudgetOf(kind, tier);
    if (tier == Tier::kDisk && !HomesOf(kind).disk->present()) {
      text += " (no disk tier)";
    } else if (budget != nullptr) {
      text += " (" + budget->name() + ", limit " + FormatBytes(budget->limit()) + ")";
    }
    separator = ", ";
  }
  return text + "; " + FormatBytes((count - room) * layout.slab_bytes) +
         (layout.home.has_value() ? " more would do" : " more of one of these would do");
}

// An entry of the table for a new slab.
Slab& Slabs::Begin(SlabId* id, SlabKind kind, Tier tier, int layer, int group, int segment) {
  if (!free_ids_.empty()) {
    *id = free_ids_.back();
    free_ids_.pop_back();
  } else {
    slabs_.emplace_back();
    *id = static_cast<SlabId>(slabs_.size() - 1);
  }
  HomesOf(kind).placement->Forget(*id);
  HomesOf(kind).placement->Began(*id, segment);
  Slab& slab = (*this)[*id];
  slab = Slab();
  slab.refs = 1;
  slab.kind = kind;
  slab.tier = tier;
  ++CountOf(slab);
  slab.layer = layer;
  slab.group = group;
  slab.segment = segment;
  Renew(slab);
  if (summaries_ != nullptr && kind == SlabKind::kKeysValues) {
    slab.frames = summaries_->Take(layer);
  }
  return slab;
}

Result<Slabs::Vacancy> Slabs::Take(SlabKind kind, Tier tier) {
  Vacancy vacancy;
  vacancy.place.tier = tier;
  if (tier == Tier::kDisk) {
    Result<std::shared_ptr<DiskCopy>> copy = HomesOf(kind).disk->Take();
    if (!copy.ok()) return copy.status();
    vacancy.place.disk = std::move(*copy);
    return vacancy;
  }
  Result<std::byte*> frame = PoolOf(kind, tier)->Take(&vacancy.free);
  if (!frame.ok()) return frame.status();
  vacancy.place.data = *frame;
  return vacancy;
}

Result<SlabId> Slabs::New(SlabKind kind, int layer, int group, int segment) {
  const Placement& placement = *HomesOf(kind).placement;
  std::optional<Tier> tier = placement.PlaceNew(Rooms(kind));
  if (!tier.has_value() && placement.demotes()) {
    if (Demote(kind, placement.tiers().front())) tier = placement.PlaceNew(Rooms(kind));
    // No slab there may move: the new one itself goes where there is room.
    if (!tier.has_value()) tier = placement.FastestWithRoom(Rooms(kind));
  }
  if (!tier.has_value()) return Status(StatusCode::kOutOfBudget, Shortage(kind, 1));
  Result<Vacancy> vacancy = Take(kind, *tier);
  if (!vacancy.ok()) return vacancy.status();
  SlabId id = kNoSlab;
  Slab& slab = Begin(&id, kind, *tier, layer, group, segment);
  slab.data = vacancy->place.data;
  slab.disk = std::move(vacancy->place.disk);
  slab.used = vacancy->free;
  return id;
}

Result<SlabId> Slabs::CopyOf(SlabId from, int pages) {
  // Not a victim of the room that the copy needs.
  const bool growing = std::exchange((*this)[from].growing, true);
  const Slab& original = (*this)[from];
  Result<SlabId> made = New(original.kind, original.layer, original.group, original.segment);
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
  if (copy.frames.summary != nullptr && source.frames.summary != nullptr) {
    summaries_->Copy(copy.frames, source.frames);
    copy.summarised = std::min(pages, source.summarised);
  }
  HomesOf(source.kind).placement->Copied(from, *made);
  return made;
}

SlabId Slabs::Adopt(int layer, int group, int segment, std::shared_ptr<DiskCopy> disk) {
  SlabId id = kNoSlab;
  Slab& slab = Begin(&id, SlabKind::kKeysValues, Tier::kDisk, layer, group, segment);
  slab.pages = disk->pages;
  slab.disk = std::move(disk);
  return id;
}

Result<SlabId> Slabs::NewZeros(int layer, int group, int segment, int pages) {
  Result<Vacancy> vacancy = Take(SlabKind::kKeysValues, Tier::kDisk);
  if (!vacancy.ok()) return vacancy.status();
  const SlabId id = Adopt(layer, group, segment, std::move(vacancy->place.disk));
  Slab& slab = (*this)[id];
  slab.pages = pages;
  slab.written = mover_->WriteZeros(PagesOf(slab, 0, pages), slab.disk);
  return id;
}

void Slabs::BeginStep() {
  for (const SlabHomes& homes : homes_) homes.placement->BeginStep();
}

void Slabs::GiveBack(SlabKind kind, const Place& place, const Fence& used) {
  if (place.tier == Tier::kDisk) {
    HomesOf(kind).disk->Give(place.disk, used);
  } else {
    PoolOf(kind, place.tier)->Give(place.data, used);
  }
}

Fence Slabs::Behind(const Slab& slab) const {
  Fence fence = slab.behind();
  if (slab.tier == Tier::kDevice) fence.Join(device_read_);
  return fence;
}

void Slabs::Release(SlabId id) {
  Slab& slab = (*this)[id];
  HEADWAY_CHECK(slab.refs > 0);
  ++changes_;
  if (--slab.refs > 0) return;
  HEADWAY_CHECK(!slab.promoting);
  const Fence used = Behind(slab);
  if (slab.tier != Tier::kDisk) PoolOf(slab.kind, slab.tier)->Give(slab.data, used);
  if (slab.disk != nullptr) HomesOf(slab.kind).disk->Give(slab.disk, used);
  if (slab.frames.summary != nullptr) summaries_->Give(slab.frames);
  --CountOf(slab);
  slab = Slab();
  free_ids_.push_back(id);
}

void Slabs::Cut(SlabId id, int pages) {
  Slab& slab = (*this)[id];
  if (slab.pages <= pages) return;
  HEADWAY_CHECK(slab.refs == 1);
  ++changes_;
  slab.pages = pages;
  Renew(slab);
  slab.summarised = std::min(slab.summarised, pages);
  if (slab.disk == nullptr) return;
  slab.disk->pages = std::min(slab.disk->pages, pages);
  if (slab.disk->Check(format_.segment_pages).ok()) return;
  lanes_->HostWait(slab.written);  // a write in flight could fail after it was forgotten
  slab.disk->Cut(pages);
}

std::optional<Slabs::Vacancy> Slabs::VacancyAbove(const Slab& slab) {
  if (slab.growing || slab.promoting || slab.held) return std::nullopt;
  const std::optional<Tier> tier =
      HomesOf(slab.kind).placement->PlacePromoted(slab.tier, Rooms(slab.kind));
  if (!tier.has_value()) return std::nullopt;
  Result<Vacancy> vacancy = Take(slab.kind, *tier);
  if (!vacancy.ok()) return std::nullopt;  // it streams, as before
  return std::move(*vacancy);
}

Result<Slabs::Vacancy> Slabs::VacancyInMemory(const Slab& slab) {
  const std::optional<Tier> tier = HomesOf(slab.kind).placement->FastestWithRoom(Rooms(slab.kind));
  if (tier.has_value() && *tier != Tier::kDisk) return Take(slab.kind, *tier);
  return Status(StatusCode::kOutOfBudget,
                "KV store: the device and the host have no room for "
                "another slab of " +
                    FormatBytes(LayoutOf(slab).slab_bytes) + " that lies on disk");
}

void Slabs::Rehome(Slab& slab, const Place& place) {
  ++changes_;
  const Fence used = Behind(slab);
  if (slab.tier != Tier::kDisk) {
    PoolOf(slab.kind, slab.tier)->Give(slab.data, used);
  } else if (!HomesOf(slab.kind).disk->holds_session()) {
    // A session has use for the copy on disk, which outlives the move up to a faster tier.
    HomesOf(slab.kind).disk->Give(std::exchange(slab.disk, nullptr), used);
  }
  --CountOf(slab);
  slab.tier = place.tier;
  ++CountOf(slab);
  slab.data = place.data;
  if (place.tier == Tier::kDisk) slab.disk = place.disk;
}

bool Slabs::Demote(SlabKind kind, Tier tier) {
  movable_.clear();
  for (size_t i = 0; i < slabs_.size(); ++i) {
    const Slab& slab = slabs_[i];
    if (slab.refs == 0 || slab.kind != kind || slab.tier != tier) continue;
    if (slab.pages < format_.segment_pages || slab.growing || slab.promoting) continue;
    movable_.push_back(static_cast<SlabId>(i));
  }
  const int victim = HomesOf(kind).placement->PickVictim(movable_);
  if (victim < 0) return false;
  const SlabId id = movable_[static_cast<size_t>(victim)];

  if (tier == Tier::kDevice && (RoomOn(kind, Tier::kHost) > 0 || Demote(kind, Tier::kHost))) {
    Result<Vacancy> vacancy = Take(kind, Tier::kHost);
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
  if (RoomOn(kind, Tier::kDisk) == 0 && NeedsSlot(slab, slab.pages)) return false;
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
    DiskTier& disk = *HomesOf(slab.kind).disk;
    Result<std::shared_ptr<DiskCopy>> copy = disk.Take();
    if (!copy.ok()) return copy.status();
    if (slab.disk != nullptr) disk.Give(slab.disk, slab.behind());
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

int64_t Slabs::PageBytes(Tier tier) const {
  int64_t bytes = 0;
  for (const Slab& slab : slabs_) {
    if (slab.refs == 0 || slab.tier != tier) continue;
    bytes += LayoutOf(slab).ClosedBytes(format_.HeadsIn(slab.layer, slab.group), slab.pages);
  }
  return bytes;
}

}  // namespace headway::kv
