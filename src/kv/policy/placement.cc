#include "kv/policy/placement.h"

#include <span>

namespace headway::kv {

std::span<const Tier> TiersOf(PlacementKind kind) {
  static constexpr Tier kFirstFitTiers[] = {Tier::kDevice, Tier::kHost, Tier::kDisk};
  static constexpr Tier kHostTiers[] = {Tier::kHost, Tier::kDisk};
  static constexpr Tier kDiskTiers[] = {Tier::kDisk};
  switch (kind) {
    case PlacementKind::kFirstFit:
    case PlacementKind::kLru:
      return kFirstFitTiers;
    case PlacementKind::kHostOnly:
      return kHostTiers;
    case PlacementKind::kDiskOnly:
      return kDiskTiers;
  }
  return kFirstFitTiers;
}

std::optional<Tier> PlaceNew(PlacementKind kind, const Room& room) {
  // Under kLru a new slab belongs on the device, and an older one makes room for it.
  if (kind == PlacementKind::kLru) {
    if (room.has[static_cast<int>(Tier::kDevice)]) return Tier::kDevice;
    return std::nullopt;
  }
  for (const Tier tier : TiersOf(kind)) {
    if (room.has[static_cast<int>(tier)]) return tier;
  }
  return std::nullopt;
}

std::optional<Tier> PlacePromoted(PlacementKind kind, Tier home, const Room& room) {
  if (kind != PlacementKind::kFirstFit && kind != PlacementKind::kLru) return std::nullopt;
  for (const Tier tier : TiersOf(kind)) {
    if (tier >= home) return std::nullopt;
    if (room.has[static_cast<int>(tier)]) return tier;
  }
  return std::nullopt;
}

int PickVictim(std::span<const Candidate> candidates) {
  int victim = -1;
  for (size_t i = 0; i < candidates.size(); ++i) {
    if (!candidates[i].movable) continue;
    if (victim < 0 || candidates[i].last_read < candidates[static_cast<size_t>(victim)].last_read) {
      victim = static_cast<int>(i);
    }
  }
  return victim;
}

}  // namespace headway::kv
