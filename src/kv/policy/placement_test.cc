#include "kv/policy/placement.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <vector>

namespace headway::kv {
namespace {

Room RoomOn(bool device, bool host, bool disk) { return Room{{device, host, disk}}; }

std::optional<Tier> PlaceNew(PlacementKind kind, const Room& room) {
  return Placement::Make(kind)->PlaceNew(room);
}

std::optional<Tier> PlacePromoted(PlacementKind kind, Tier home, const Room& room) {
  return Placement::Make(kind)->PlacePromoted(home, room);
}

TEST(Placement, FirstFitTakesTheFastestTierWithRoom) {
  EXPECT_EQ(PlaceNew(PlacementKind::kFirstFit, RoomOn(true, true, true)), Tier::kDevice);
  EXPECT_EQ(PlaceNew(PlacementKind::kFirstFit, RoomOn(false, true, true)), Tier::kHost);
  EXPECT_EQ(PlaceNew(PlacementKind::kFirstFit, RoomOn(false, false, true)), Tier::kDisk);
  EXPECT_EQ(PlaceNew(PlacementKind::kFirstFit, RoomOn(false, false, false)), std::nullopt);
}

TEST(Placement, HostOnlyAndDiskOnlyNeverTakeAFasterTier) {
  EXPECT_EQ(PlaceNew(PlacementKind::kHostOnly, RoomOn(true, true, true)), Tier::kHost);
  EXPECT_EQ(PlaceNew(PlacementKind::kHostOnly, RoomOn(true, false, true)), Tier::kDisk);
  EXPECT_EQ(PlaceNew(PlacementKind::kHostOnly, RoomOn(true, false, false)), std::nullopt);
  EXPECT_EQ(PlaceNew(PlacementKind::kDiskOnly, RoomOn(true, true, true)), Tier::kDisk);
  EXPECT_EQ(PlaceNew(PlacementKind::kDiskOnly, RoomOn(true, true, false)), std::nullopt);
  EXPECT_EQ(PlacePromoted(PlacementKind::kHostOnly, Tier::kHost, RoomOn(true, true, true)),
            std::nullopt);
  EXPECT_EQ(PlacePromoted(PlacementKind::kHostOnly, Tier::kDisk, RoomOn(true, true, true)),
            std::nullopt);
  EXPECT_EQ(PlacePromoted(PlacementKind::kDiskOnly, Tier::kDisk, RoomOn(true, true, true)),
            std::nullopt);
}

TEST(Placement, LruWantsTheDeviceOrAVictim) {
  EXPECT_EQ(PlaceNew(PlacementKind::kLru, RoomOn(true, true, true)), Tier::kDevice);
  EXPECT_EQ(PlaceNew(PlacementKind::kLru, RoomOn(false, true, true)), std::nullopt);
  const std::unique_ptr<Placement> lru = Placement::Make(PlacementKind::kLru);
  EXPECT_TRUE(lru->demotes());
  EXPECT_EQ(lru->FastestWithRoom(RoomOn(false, true, true)), Tier::kHost);
  for (const PlacementKind kind :
       {PlacementKind::kFirstFit, PlacementKind::kHostOnly, PlacementKind::kDiskOnly}) {
    EXPECT_FALSE(Placement::Make(kind)->demotes());
  }
}

TEST(Placement, PromotionOnlyGoesUp) {
  for (const PlacementKind kind : {PlacementKind::kFirstFit, PlacementKind::kLru}) {
    EXPECT_EQ(PlacePromoted(kind, Tier::kDisk, RoomOn(true, true, true)), Tier::kDevice);
    EXPECT_EQ(PlacePromoted(kind, Tier::kDisk, RoomOn(false, true, true)), Tier::kHost);
    EXPECT_EQ(PlacePromoted(kind, Tier::kDisk, RoomOn(false, false, true)), std::nullopt);
    EXPECT_EQ(PlacePromoted(kind, Tier::kHost, RoomOn(false, true, true)), std::nullopt);
    EXPECT_EQ(PlacePromoted(kind, Tier::kDevice, RoomOn(true, true, true)), std::nullopt);
  }
}

TEST(Placement, AFixedTierIsTheOnlyOne) {
  const std::unique_ptr<Placement> fixed = Placement::Fixed(Tier::kHost);
  ASSERT_EQ(fixed->tiers().size(), 1u);
  EXPECT_EQ(fixed->PlaceNew(RoomOn(true, false, true)), Tier::kHost);
  EXPECT_EQ(fixed->PlacePromoted(Tier::kHost, RoomOn(true, true, true)), std::nullopt);
  EXPECT_FALSE(fixed->demotes());
}

TEST(Placement, TheVictimIsTheOneReadLongestAgo) {
  const std::unique_ptr<Placement> lru = Placement::Make(PlacementKind::kLru);
  EXPECT_EQ(lru->PickVictim({}), -1);
  lru->BeginStep();
  lru->Read(7);
  lru->Read(3);
  lru->BeginStep();
  lru->Read(3);
  lru->Read(4);
  const std::vector<int32_t> read = {4, 3, 7};
  EXPECT_EQ(lru->PickVictim(read), 2);
  const std::vector<int32_t> equal = {4, 3};
  EXPECT_EQ(lru->PickVictim(equal), 0);  // the first of them
  // One that was never read goes first; a copy is as old as what it was made from.
  const std::vector<int32_t> fresh = {3, 100, 7};
  EXPECT_EQ(lru->PickVictim(fresh), 1);
  lru->Copied(4, 100);
  EXPECT_EQ(lru->PickVictim(fresh), 2);
  // A number that is used again is another slab's.
  lru->Forget(3);
  EXPECT_EQ(lru->PickVictim(fresh), 0);
}

}  // namespace
}  // namespace headway::kv
