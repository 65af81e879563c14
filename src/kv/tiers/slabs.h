// Slabs: every slab of a store, which sequences share, where it lies, and how it moves up and down.
#ifndef HEADWAY_KV_TIERS_SLABS_H_
#define HEADWAY_KV_TIERS_SLABS_H_

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/types.h"
#include "device/lanes.h"
#include "headway/status.h"
#include "kv/pages/format.h"
#include "kv/pages/page_table.h"
#include "kv/pages/slab_layout.h"
#include "kv/policy/placement.h"
#include "kv/tiers/disk_tier.h"
#include "kv/tiers/frame_pool.h"
#include "kv/tiers/mover.h"
#include "kv/tiers/summaries.h"

namespace headway::kv {

struct Slab {
  int refs = 0;
  int layer = 0;
  int group = 0;
  int segment = 0;  // of its sequence
  SlabKind kind = SlabKind::kKeysValues;
  Tier tier = Tier::kDevice;
  std::byte* data = nullptr;       // its frame on the device or the host
  std::shared_ptr<DiskCopy> disk;  // its home on disk, or a copy there that a save left
  // Of its closed pages, wherever they lie, as a page cache knows them: pages that close where
  // others were cut have another one. Not 0.
  uint32_t version = 0;
  int pages = 0;             // closed pages that it holds
  bool growing = false;      // the step in progress appends to it
  bool promoting = false;    // on its way up from disk
  bool held = false;         // it is read where it lies in the step in progress
  Summaries::Frames frames;  // of its blocks' summaries; may be none
  int summarised = 0;        // its first pages that have theirs
  Fence written;             // its pages are in place
  Fence used;                // its home may be written to

  // Nothing on its way reads or writes it any longer.
  Fence behind() const {
    Fence fence = used;
    fence.Join(written);
    return fence;
  }
  Place place() const { return Place{tier, data, tier == Tier::kDisk ? disk : nullptr}; }
};

// Where the slabs of a kind may lie, and what decides it. All outlive the slabs.
struct SlabHomes {
  FramePool* device = nullptr;  // null where the kind has no frames there
  FramePool* host = nullptr;
  DiskTier* disk = nullptr;
  std::unique_ptr<Placement> placement;
};

class Slabs {
 public:
  // `summaries` may be null; all outlive the slabs.
  Slabs(const CacheFormat& format, const PerSlabKind<SlabLayout>& layouts,
        PerSlabKind<SlabHomes> homes, Summaries* summaries, Lanes* lanes, Mover* mover)
      : format_(format),
        layouts_(layouts),
        homes_(std::move(homes)),
        summaries_(summaries),
        lanes_(lanes),
        mover_(mover) {}

  Slab& operator[](SlabId id) { return slabs_[static_cast<size_t>(id)]; }
  const Slab& operator[](SlabId id) const { return slabs_[static_cast<size_t>(id)]; }
  const SlabLayout& LayoutOf(const Slab& slab) const { return Of(layouts_, slab.kind); }

  // Whether slabs of the kind give way to new ones.
  bool Demotes(SlabKind kind) const { return HomesOf(kind).placement->demotes(); }
  // kOutOfBudget, naming every tier that is full, unless `count` new slabs fit.
  Status CheckRoom(SlabKind kind, int64_t count) const;
  // An empty slab where the placement wants it; older ones may move down for it.
  Result<SlabId> New(SlabKind kind, int layer, int group, int segment);
  // A slab of the same first `pages` pages (copy on write).
  Result<SlabId> CopyOf(SlabId from, int pages);
  // A full or partial slab of keys and values that lies in a slot already.
  SlabId Adopt(int layer, int group, int segment, std::shared_ptr<DiskCopy> disk);
  // One of zeros, on its way to the disk.
  Result<SlabId> NewZeros(int layer, int group, int segment, int pages);
  void AddRef(SlabId id) {
    ++(*this)[id].refs;
    ++changes_;
  }
  void Release(SlabId id);
  // The pages behind the first `pages` are forgotten. Only for a slab of one owner.
  void Cut(SlabId id, int pages);

  // What placements are told: a step begins, it reads a slab, a slab's keys are no longer recent.
  void BeginStep();
  void WasRead(SlabId id) { Of(homes_, (*this)[id].kind).placement->Read(id); }
  void WasPassed(SlabId id) { Of(homes_, (*this)[id].kind).placement->Passed(id); }

  // A place further up that a slab may take as it is read, and when it may be written to.
  struct Vacancy {
    Place place;
    Fence free;
  };
  std::optional<Vacancy> VacancyAbove(const Slab& slab);
  // The fastest place in memory for a slab that lies on disk.
  Result<Vacancy> VacancyInMemory(const Slab& slab);
  // The slab's pages are in `place` (or will be, at slab.written): its home from now on. Whoever
  // calls this says when that may be written to; the old home goes with the old fences.
  void Rehome(Slab& slab, const Place& place);
  void GiveBack(const Slab& slab, const Place& place, const Fence& used) {
    GiveBack(slab.kind, place, used);
  }

  // A copy on disk of the first `pages` pages, beside the slab's home; writes what is missing.
  Status KeepOnDisk(Slab& slab, int pages);
  // Slots that KeepOnDisk would take.
  bool NeedsSlot(const Slab& slab, int pages) const;

  SlabPages PagesOf(const Slab& slab, int first, int count) const {
    return {&LayoutOf(slab), format_.HeadsIn(slab.layer, slab.group), first, count};
  }

  // Grows whenever a slab goes, moves, is cut or is shared. Not as one comes: in a batch of many
  // sequences some get one in each step.
  int64_t changes() const { return changes_; }
  // Kernels that the compute stream was given before this ticket read slabs on the device, which
  // were not asked for one by one.
  void WereRead(int64_t ticket) { device_read_.Add(Lane::kCompute, ticket); }

  int64_t Count(SlabKind kind, Tier tier) const {
    return Of(counts_, kind)[static_cast<size_t>(tier)];
  }
  int64_t PageBytes(Tier tier) const;  // bytes of the closed pages of the slabs there

 private:
  const SlabHomes& HomesOf(SlabKind kind) const { return Of(homes_, kind); }
  FramePool* PoolOf(SlabKind kind, Tier tier) const {
    return tier == Tier::kDevice ? HomesOf(kind).device : HomesOf(kind).host;
  }
  // Pages that close from now on may differ from what closed in the slab before.
  void Renew(Slab& slab) { slab.version = ++last_version_; }
  int64_t RoomOn(SlabKind kind, Tier tier) const;
  Room Rooms(SlabKind kind) const;
  const Budget* BudgetOf(SlabKind kind, Tier tier) const;
  Slab& Begin(SlabId* id, SlabKind kind, Tier tier, int layer, int group, int segment);
  int64_t& CountOf(const Slab& slab) {
    return Of(counts_, slab.kind)[static_cast<size_t>(slab.tier)];
  }
  void GiveBack(SlabKind kind, const Place& place, const Fence& used);
  // What its home waits for before others have it.
  Fence Behind(const Slab& slab) const;
  // A free frame or slot.
  Result<Vacancy> Take(SlabKind kind, Tier tier);
  // Moves one slab of `tier` down. False when none may move, or there is no room below.
  bool Demote(SlabKind kind, Tier tier);
  std::string Shortage(SlabKind kind, int64_t count) const;

  const CacheFormat& format_;
  const PerSlabKind<SlabLayout>& layouts_;
  const PerSlabKind<SlabHomes> homes_;
  Summaries* const summaries_;
  Lanes* const lanes_;
  Mover* const mover_;
  std::vector<Slab> slabs_;
  std::vector<SlabId> free_ids_;
  PerSlabKind<std::array<int64_t, kTierCount>> counts_ = {};  // of slabs_ that are somebody's
  uint32_t last_version_ = 0;
  int64_t changes_ = 0;
  Fence device_read_;            // of WereRead
  std::vector<SlabId> movable_;  // reused by Demote
};

}  // namespace headway::kv

#endif  // HEADWAY_KV_TIERS_SLABS_H_
