#include "kv/policy/placement.h"

#include <gtest/gtest.h>

namespace headway::kv {
namespace {

Room RoomOn(bool device, bool host, bool disk) { return Room{{device, host, disk}}; }

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
  EXPECT_EQ(PlacePromoted(PlacementKind::kDiskOnly, Tier::kDisk, RoomOn(true, true, true)),
            std::nullopt);
}

TEST(Placement, LruWantsTheDeviceOrAVictim) {
  EXPECT_EQ(PlaceNew(PlacementKind::kLru, RoomOn(true, true, true)), Tier::kDevice);
  EXPECT_EQ(PlaceNew(PlacementKind::kLru, RoomOn(false, true, true)), std::nullopt);
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

TEST(Placement, TheVictimIsTheOneReadLongestAgoThatMayMove) {
  EXPECT_EQ(PickVictim({}), -1);
  const Candidate none[] = {{1, false}, {2, false}};
  EXPECT_EQ(PickVictim(none), -1);
  const Candidate some[] = {{1, false}, {7, true}, {3, true}, {3, true}, {9, true}};
  EXPECT_EQ(PickVictim(some), 2);
}

}  // namespace
}  // namespace headway::kv
