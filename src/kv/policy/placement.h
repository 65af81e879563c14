// Placement: which tier a slab is begun on, where it moves up to, and which slab gives way. A
// placement decides, by what it was told of the slabs; the store acts.
#ifndef HEADWAY_KV_POLICY_PLACEMENT_H_
#define HEADWAY_KV_POLICY_PLACEMENT_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "base/types.h"

namespace headway::kv {

enum class PlacementKind : uint8_t {
  kFirstFit,  // the fastest tier with room; nothing moves later. Best for dense attention, which
              // reads every slab of a sequence in each step
  kLru,       // new slabs to the device; the full slab that was read longest ago goes one tier down
  kHostOnly,  // no closed page stays on the device (everything streams)
  kDiskOnly,  // slabs go to disk as their pages close
  kRecent,    // new slabs to the device; the oldest full one goes one tier down, and only what lies
            // on disk moves up. Best for a decode that selects: it always reads the sink's and the
            // recent keys
};

// Which tiers have a free slab frame.
struct Room {
  bool has[kTierCount] = {};
};

// Slabs are numbers. What a placement knows of them is its own; numbers are used again after
// Forget.
class Placement {
 public:
  // kRecent never moves the first `sink_segments` segments of a sequence.
  static std::unique_ptr<Placement> Make(PlacementKind kind, int sink_segments = 0);
  // For slabs that lie on one tier for good.
  static std::unique_ptr<Placement> Fixed(Tier tier);
  virtual ~Placement() = default;

  // The tiers that it places slabs on, fastest first.
  virtual std::span<const Tier> tiers() const = 0;
  // The tier for a new slab; nullopt when no tier has room, or a slab must give way first.
  virtual std::optional<Tier> PlaceNew(const Room& room) const = 0;
  // The tier that a slab at `home` moves up to when it is read, nullopt to leave it where it is.
  virtual std::optional<Tier> PlacePromoted(Tier home, const Room& room) const;

  // Whether a slab on the fastest tier gives way to a new one.
  virtual bool demotes() const { return false; }
  // The slab that gives way: an index into `movable`, -1 where that is empty.
  virtual int PickVictim(std::span<const int32_t> movable) const;

  // What happens to slabs.
  virtual void BeginStep() {}
  virtual void Began(int32_t /*slab*/, int /*segment*/) {}
  // Its keys are no longer among the recent ones of a sequence that has it.
  virtual void Passed(int32_t /*slab*/) {}
  virtual void Read(int32_t /*slab*/) {}
  virtual void Copied(int32_t /*from*/, int32_t /*to*/) {}
  virtual void Forget(int32_t /*slab*/) {}

  // The fastest of the tiers with room.
  std::optional<Tier> FastestWithRoom(const Room& room) const;
};

}  // namespace headway::kv

#endif  // HEADWAY_KV_POLICY_PLACEMENT_H_
