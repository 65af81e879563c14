// Where the placements put slabs as sequences grow.
#include <gtest/gtest.h>

#include "kv/store/store.h"
#include "kv/testing/rig.h"

namespace headway::kv {
namespace {

TEST(StorePlacement, LruKeepsNewSlabsOnTheDevice) {
  RigOptions options = WithSlabs(OneColumn(), 2, 2, 100);
  options.store.placement = PlacementKind::kLru;
  Rig rig(options);
  ASSERT_TRUE(rig.Open().ok());
  const SequenceId id = *rig.NewSequence();
  for (int i = 0; i < 6; ++i) ASSERT_TRUE(rig.Step(id, 12).ok());
  EXPECT_EQ(rig.store().Usage(Tier::kDevice).slabs, 2);
  EXPECT_EQ(rig.store().Usage(Tier::kHost).slabs, 2);
  EXPECT_EQ(rig.store().Usage(Tier::kDisk).slabs, 2);
  const int64_t resident = rig.reads_from(Tier::kDevice);
  ASSERT_TRUE(rig.Step(id, 1).ok());
  EXPECT_EQ(rig.reads_from(Tier::kDevice), resident + 2);
  EXPECT_EQ(rig.Mismatches(), 0);
}

// The sink's slab and the last ones are read on the device, and each byte goes down once.
TEST(StorePlacement, RecentKeepsTheSinkAndTheLastSlabsOnTheDevice) {
  RigOptions options = WithSlabs(OneColumn(), 3, 2, 100);
  options.store.placement = PlacementKind::kRecent;
  options.store.sink_tokens = 1;
  options.store.recent_tokens = 12;
  Rig rig(options);
  ASSERT_TRUE(rig.Open().ok());
  const SequenceId id = *rig.NewSequence();
  for (int i = 0; i < 7; ++i) ASSERT_TRUE(rig.Step(id, 12).ok());
  EXPECT_EQ(rig.store().Usage(Tier::kDevice).slabs, 3);
  EXPECT_EQ(rig.store().Usage(Tier::kHost).slabs, 2);
  EXPECT_EQ(rig.store().Usage(Tier::kDisk).slabs, 2);
  const auto place = [&](int segment) {
    return rig.store().reads().PlaceOf({0, 0, 0, segment, 0}).tier;
  };
  const StepEntry one[] = {{id, 1}};
  ASSERT_TRUE(rig.store().step().Begin(one).ok());
  EXPECT_EQ(place(0), Tier::kDevice);
  for (const int segment : {1, 2}) EXPECT_EQ(place(segment), Tier::kDisk);
  for (const int segment : {3, 4}) EXPECT_EQ(place(segment), Tier::kHost);
  for (const int segment : {5, 6}) EXPECT_EQ(place(segment), Tier::kDevice);
  rig.store().step().Abort();
  // Reading moves nothing up, and a segment moves one slab down a tier.
  const int64_t page = 2 * 2 * options.store.format.page_stride();
  const int64_t written = rig.trace().totals(Lane::kDiskWrite).bytes;
  EXPECT_EQ(written, 2 * 3 * page);
  for (int i = 0; i < 12; ++i) ASSERT_TRUE(rig.Step(id, 1).ok());
  EXPECT_EQ(rig.store().Usage(Tier::kHost).slabs, 2);
  EXPECT_EQ(rig.store().Usage(Tier::kDisk).slabs, 3);
  EXPECT_EQ(rig.trace().totals(Lane::kDiskWrite).bytes, written + 3 * page);
  EXPECT_EQ(rig.Mismatches(), 0);
}

// One that was read before the others, and went on later, has its last slabs there as they have.
TEST(StorePlacement, RecentKeepsTheLastSlabsOfEverySequence) {
  RigOptions options = WithSlabs(OneColumn(), 6, 100, 0);
  options.store.placement = PlacementKind::kRecent;
  options.store.sink_tokens = 1;
  options.store.recent_tokens = 4;
  Rig rig(options);
  ASSERT_TRUE(rig.Open().ok());
  const SequenceId first = *rig.NewSequence(), second = *rig.NewSequence();
  for (const SequenceId id : {first, second}) {
    for (int i = 0; i < 6; ++i) ASSERT_TRUE(rig.Step(id, 12).ok());
  }
  EXPECT_EQ(rig.store().Usage(Tier::kDevice).slabs, 6);
  const StepEntry both[] = {{first, 1}, {second, 1}};
  ASSERT_TRUE(rig.store().step().Begin(both).ok());
  for (const int entry : {0, 1}) {
    for (int segment = 0; segment < 6; ++segment) {
      const bool there = segment == 0 || segment >= 4;
      EXPECT_EQ(rig.store().reads().PlaceOf({entry, 0, 0, segment, 0}).tier,
                there ? Tier::kDevice : Tier::kHost)
          << entry << " " << segment;
    }
  }
  rig.store().step().Abort();
  EXPECT_EQ(rig.Mismatches(), 0);
}

TEST(StorePlacement, MovesUpWhenThereIsRoom) {
  RigOptions options = WithSlabs(OneColumn(), 2, 2, 100);
  Rig rig(options);
  ASSERT_TRUE(rig.Open().ok());
  const SequenceId first = *rig.NewSequence();
  ASSERT_TRUE(rig.Step(first, 48).ok());
  const SequenceId second = *rig.NewSequence();
  ASSERT_TRUE(rig.Step(second, 60).ok());
  EXPECT_EQ(rig.store().Usage(Tier::kDisk).slabs, 5);
  rig.Drop(first);
  ASSERT_TRUE(rig.Step(second, 1).ok());
  EXPECT_EQ(rig.store().Usage(Tier::kDevice).slabs, 2);
  EXPECT_EQ(rig.store().Usage(Tier::kHost).slabs, 2);
  EXPECT_EQ(rig.store().Usage(Tier::kDisk).slabs, 1);
  ASSERT_TRUE(rig.Step(second, 1).ok());
  EXPECT_EQ(rig.reads_from(Tier::kDevice), 2);
  EXPECT_EQ(rig.Mismatches(), 0);
}

}  // namespace
}  // namespace headway::kv
