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

TEST(Placement, RecentWantsTheDeviceOrAVictimAndBringsUpOnlyWhatLiesOnDisk) {
  EXPECT_EQ(PlaceNew(PlacementKind::kRecent, RoomOn(true, true, true)), Tier::kDevice);
  EXPECT_EQ(PlaceNew(PlacementKind::kRecent, RoomOn(false, true, true)), std::nullopt);
  const std::unique_ptr<Placement> recent = Placement::Make(PlacementKind::kRecent);
  EXPECT_TRUE(recent->demotes());
  EXPECT_EQ(recent->PickVictim({}), -1);
  EXPECT_EQ(recent->FastestWithRoom(RoomOn(false, true, true)), Tier::kHost);
  for (const Tier home : {Tier::kDevice, Tier::kHost}) {
    EXPECT_EQ(recent->PlacePromoted(home, RoomOn(true, true, true)), std::nullopt);
  }
  EXPECT_EQ(recent->PlacePromoted(Tier::kDisk, RoomOn(true, true, true)), Tier::kDevice);
  EXPECT_EQ(recent->PlacePromoted(Tier::kDisk, RoomOn(false, true, true)), Tier::kHost);
  EXPECT_EQ(recent->PlacePromoted(Tier::kDisk, RoomOn(false, false, true)), std::nullopt);
}

// The order in which the slabs of `movable` give way.
std::vector<int32_t> Victims(const Placement& placement, std::vector<int32_t> movable) {
  std::vector<int32_t> victims;
  for (int at = placement.PickVictim(movable); at >= 0; at = placement.PickVictim(movable)) {
    victims.push_back(movable[static_cast<size_t>(at)]);
    movable.erase(movable.begin() + at);
  }
  return victims;
}

TEST(Placement, RecentMovesTheOldestButTheSinksWhateverIsRead) {
  const std::unique_ptr<Placement> recent = Placement::Make(PlacementKind::kRecent, 1);
  // Two columns of four segments; a step of two segments begins column by column.
  recent->Began(0, 0);
  recent->Began(1, 1);
  recent->Began(2, 0);
  recent->Began(3, 1);
  recent->BeginStep();
  recent->Began(7, 2);
  recent->Began(6, 3);
  recent->Began(5, 2);
  recent->Began(4, 3);
  recent->BeginStep();
  recent->Read(1);
  const std::vector<int32_t> all = {0, 1, 2, 3, 4, 5, 6, 7};
  EXPECT_EQ(Victims(*recent, all), (std::vector<int32_t>{1, 3, 7, 5, 6, 4}));
  // A number that is used again is another slab's: the youngest of all.
  recent->Forget(1);
  recent->Began(1, 1);
  EXPECT_EQ(Victims(*recent, all), (std::vector<int32_t>{3, 7, 5, 6, 4, 1}));
  // What is not recent in its own sequence goes before what is older and recent.
  recent->Passed(6);
  recent->Passed(1);
  recent->Passed(2);  // the sink's
  EXPECT_EQ(Victims(*recent, all), (std::vector<int32_t>{6, 1, 3, 7, 5, 4}));
}

}  // namespace
}  // namespace headway::kv
