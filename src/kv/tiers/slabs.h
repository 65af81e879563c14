// Slabs: every slab of a store, which sequences share, where it lies, and how it moves up and down.
#ifndef HEADWAY_KV_TIERS_SLABS_H_
#define HEADWAY_KV_TIERS_SLABS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/types.h"
#include "device/lanes.h"
#include "headway/status.h"
#include "kv/pages/format.h"
#include "kv/pages/sequence.h"
#include "kv/policy/placement.h"
#include "kv/tiers/disk_tier.h"
#include "kv/tiers/frame_pool.h"
#include "kv/tiers/mover.h"

namespace headway::kv {

struct Slab {
  int refs = 0;
  int layer = 0;
  int group = 0;
  bool x = false;  // it holds X instead of K and V, in host memory for good
  Tier tier = Tier::kDevice;
  std::byte* data = nullptr;       // its frame on the device or the host
  std::shared_ptr<DiskCopy> disk;  // its home on disk, or a copy there that a save left
  int pages = 0;                   // closed pages that it holds
  bool growing = false;            // the step in progress appends to it
  bool promoting = false;          // on its way up from disk
  bool held = false;               // the host reads it in the step in progress
  int64_t last_read = 0;           // step
  Fence written;                   // its pages are in place
  Fence used;                      // its home may be written to

  // Nothing on its way reads or writes it any longer.
  Fence behind() const {
    Fence fence = used;
    fence.Join(written);
    return fence;
  }
  Place place() const { return Place{tier, data, tier == Tier::kDisk ? disk : nullptr}; }
};

class Slabs {
 public:
  Slabs(const CacheFormat& format, PlacementKind kind, Lanes* lanes, Mover* mover,
        FramePool* device, FramePool* host, FramePool* x, DiskTier* disk)
      : format_(format),
        kind_(kind),
        lanes_(lanes),
        mover_(mover),
        pools_{device, host},
        x_pool_(x),
        disk_(disk) {}

  Slab& operator[](SlabId id) { return slabs_[static_cast<size_t>(id)]; }
  const Slab& operator[](SlabId id) const { return slabs_[static_cast<size_t>(id)]; }

  // kOutOfBudget, naming every tier that is full, unless `count` new slabs fit.
  Status CheckRoom(int64_t count) const;
  // The same of slabs of X.
  Status CheckXRoom(int64_t count) const;
  // An empty slab where the placement wants it; older ones may move down for it.
  Result<SlabId> New(int layer, int group);
  Result<SlabId> NewX(int layer, int group);
  // A slab of the same first `pages` pages (copy on write).
  Result<SlabId> CopyOf(SlabId from, int pages);
  // A full or partial slab that lies in a slot already.
  SlabId Adopt(int layer, int group, std::shared_ptr<DiskCopy> disk);
  void AddRef(SlabId id) { ++(*this)[id].refs; }
  void Release(SlabId id);
  // The pages behind the first `pages` are forgotten. Only for a slab of one owner.
  void Cut(SlabId id, int pages);

  // A place further up that a slab may take as it is read, and when it may be written to.
  struct Vacancy {
    Place place;
    Fence free;
  };
  std::optional<Vacancy> VacancyAbove(const Slab& slab);
  // The slab's pages are in `place` (or will be, at slab.written): its home from now on. Whoever
  // calls this says when that may be written to; the old home goes with the old fences.
  void Rehome(Slab& slab, const Place& place);
  void GiveBack(const Place& place, const Fence& used);

  // A copy on disk of the first `pages` pages, beside the slab's home; writes what is missing.
  Status KeepOnDisk(Slab& slab, int pages);
  // Slots that KeepOnDisk would take.
  bool NeedsSlot(const Slab& slab, int pages) const;

  // Copies on disk outlive the move up to a faster tier: a session has use for them.
  void set_keep_disk_copies(bool keep) { keep_disk_copies_ = keep; }

  Mover::Pages PagesOf(const Slab& slab, int first, int count) const {
    return {format_.HeadsIn(slab.layer, slab.group), first, count};
  }

  int64_t Count(Tier tier) const;  // of K and V
  int64_t CountX() const;
  int64_t PageBytes(Tier tier) const;  // bytes of the closed pages of the slabs there

 private:
  FramePool& pool(Tier tier) { return *pools_[static_cast<size_t>(tier)]; }
  FramePool& PoolOf(const Slab& slab) { return slab.x ? *x_pool_ : pool(slab.tier); }
  int64_t RoomOn(Tier tier) const;
  Room Rooms() const;
  SlabId NewId();
  Result<SlabId> CopyOfX(SlabId from, int pages);
  // Takes a frame or slot on `tier` for the slab.
  Status Settle(Slab& slab, Tier tier);
  Result<Vacancy> Take(Tier tier);
  // Moves one slab of `tier` down. False when none may move, or there is no room below.
  bool Demote(Tier tier);
  std::string Shortage(int64_t count) const;

  const CacheFormat& format_;
  const PlacementKind kind_;
  Lanes* const lanes_;
  Mover* const mover_;
  FramePool* const pools_[2];  // device, host
  FramePool* const x_pool_;    // null where no X is kept
  DiskTier* const disk_;
  bool keep_disk_copies_ = false;
  std::vector<Slab> slabs_;
  std::vector<SlabId> free_ids_;
  std::vector<Candidate> candidates_;  // reused by Demote
  std::vector<SlabId> candidate_ids_;
};

}  // namespace headway::kv

#endif  // HEADWAY_KV_TIERS_SLABS_H_
