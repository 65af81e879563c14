// Placement: which tier a slab is begun on, and which slab gives way. Pure decisions; the store
// acts.
#ifndef HEADWAY_KV_POLICY_PLACEMENT_H_
#define HEADWAY_KV_POLICY_PLACEMENT_H_

#include <cstdint>
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
};

// Free slab frames a tier has.
struct Room {
  bool has[kTierCount] = {};
};

// The tiers that a kind places slabs on, fastest first.
std::span<const Tier> TiersOf(PlacementKind kind);

// The tier for a new slab, by kind; nullopt when no tier that the kind allows has room and
// something must be demoted first (kLru) or the step cannot run.
std::optional<Tier> PlaceNew(PlacementKind kind, const Room& room);

// The tier that a slab at `home` moves up to when it is read, nullopt to leave it where it is.
std::optional<Tier> PlacePromoted(PlacementKind kind, Tier home, const Room& room);

// Of slabs described by the step in which they were read last and whether they may move, the index
// of the one to demote; -1 when there is none.
struct Candidate {
  int64_t last_read = 0;
  bool movable = false;  // full, closed, not in use
};
int PickVictim(std::span<const Candidate> candidates);

}  // namespace headway::kv

#endif  // HEADWAY_KV_POLICY_PLACEMENT_H_
