#include "kv/store/store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "device/cpu/cpu_device.h"
#include "kv/testing/rig.h"
#include "kv/testing/slab_test_util.h"

namespace headway::kv {
namespace {

using testing::HasSubstr;

TEST(Store, TakesItsFootprintWhenMade) {
  RigOptions options;
  options.store = SmallStore();
  Rig rig(options);
  ASSERT_TRUE(rig.Open().ok());
  const StoreFootprint footprint = FootprintOf(options.store);
  EXPECT_EQ(rig.device_budget().used(),
            footprint.open_pages + footprint.append_buffer + footprint.staging);
  EXPECT_EQ(rig.host_budget().used(), footprint.bounce);
  EXPECT_EQ(rig.disk_budget().used(), 0);
}

TEST(Store, RefusesWhatCannotBe) {
  const auto refused = [](auto change) {
    RigOptions options;
    options.store = SmallStore();
    change(options);
    Rig rig(options);
    const Status status = rig.Open();
    EXPECT_FALSE(status.ok());
    return status.code();
  };
  constexpr StatusCode kInvalid = StatusCode::kInvalidArgument;
  EXPECT_EQ(refused([](RigOptions& o) { o.store.format.layers = 0; }), kInvalid);
  EXPECT_EQ(refused([](RigOptions& o) { o.store.format.page.head_dim = -1; }), kInvalid);
  EXPECT_EQ(refused([](RigOptions& o) { o.store.format.window = {1}; }), kInvalid);
  EXPECT_EQ(refused([](RigOptions& o) { o.store.format.window = {-1, 0}; }), kInvalid);
  EXPECT_EQ(refused([](RigOptions& o) { o.store.max_sequences = 0; }), kInvalid);
  EXPECT_EQ(refused([](RigOptions& o) { o.store.max_step_tokens = 0; }), kInvalid);
  EXPECT_EQ(refused([](RigOptions& o) { o.store.max_step_tokens = int64_t{1} << 62; }), kInvalid);
  EXPECT_EQ(refused([](RigOptions& o) { o.store.staging_slabs = 0; }), kInvalid);
  EXPECT_EQ(refused([](RigOptions& o) { o.store.bounce_slabs = 0; }), kInvalid);
  EXPECT_EQ(refused([](RigOptions& o) {
              o.disk = false;
              o.store.placement = PlacementKind::kDiskOnly;
            }),
            kInvalid);
  EXPECT_EQ(refused([](RigOptions& o) {
              o.store.format.segment_pages = 1 << 20;
              o.store.format.page = {DType::kF32, 1 << 16, 1 << 16};
            }),
            kInvalid);
  EXPECT_EQ(refused([](RigOptions& o) { o.device_bytes = 4096; }), StatusCode::kOutOfBudget);
  const auto with_x = [&](auto change) {
    return refused([&](RigOptions& o) {
      o.store.format.group_heads = o.store.format.kv_heads;
      o.store.format.x_width = 8;
      o.store.gather_tokens = o.store.format.segment_tokens();
      change(o);
    });
  };
  constexpr StatusCode kUnsupported = StatusCode::kUnsupported;
  EXPECT_EQ(with_x([](RigOptions& o) { o.store.gather_tokens -= 4; }), kInvalid);
  EXPECT_EQ(with_x([](RigOptions& o) { o.store.gathers = 0; }), kInvalid);
  EXPECT_EQ(with_x([](RigOptions& o) { o.store.gather_tokens += 1; }), kUnsupported);
  EXPECT_EQ(with_x([](RigOptions& o) { o.store.format.group_heads = 1; }), kUnsupported);
  EXPECT_EQ(with_x([](RigOptions& o) { o.store.format.window = {0, 9}; }), kUnsupported);
  EXPECT_EQ(with_x([](RigOptions& o) { o.session = true; }), kUnsupported);
  EXPECT_EQ(with_x([](RigOptions& o) { o.store.format.x_width = int64_t{1} << 60; }), kInvalid);
}

TEST(Store, OnlyWhereTheFormatKeepsXMaySequencesDo) {
  RigOptions options;
  options.store = SmallStore();
  Rig rig(options);
  ASSERT_TRUE(rig.Open().ok());
  EXPECT_EQ(rig.NewSequence(1).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(rig.NewSequence(-1).status().code(), StatusCode::kInvalidArgument);
}

TEST(Store, RefusesStepsThatMakeNoSense) {
  RigOptions options;
  options.store = SmallStore();
  Rig rig(options);
  ASSERT_TRUE(rig.Open().ok());
  const SequenceId id = *rig.NewSequence();
  EXPECT_EQ(rig.store().step().Begin({}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(rig.Step(id, 0).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(rig.Step(id, -5).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(rig.Step(id, 257).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(rig.store().reads().Announce({}).code(), StatusCode::kInvalidArgument);
  const StepEntry unknown[] = {{id + 1, 1}};
  EXPECT_EQ(rig.store().step().Begin(unknown).code(), StatusCode::kInvalidArgument);
  const StepEntry twice[] = {{id, 1}, {id, 1}};
  EXPECT_EQ(rig.store().step().Begin(twice).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(rig.Fork(id + 1).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(rig.store().Truncate(id + 1, 0).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(rig.store().Truncate(id, -1).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(rig.Save(id).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(rig.Restore().status().code(), StatusCode::kInvalidArgument);

  // Within a step, only that step goes on.
  const StepEntry one[] = {{id, 9}};
  ASSERT_TRUE(rig.store().step().Begin(one).ok());
  EXPECT_EQ(rig.store().step().Begin(one).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(rig.Fork(id).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(rig.store().Truncate(id, 0).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(rig.store().reads().Next().status().code(), StatusCode::kInvalidArgument);
  const auto announce = [&](const SlabRead& read) {
    return rig.store().reads().Announce({&read, 1});
  };
  EXPECT_EQ(announce({0, 0, 0, 0}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(announce({0, 0, 0, -1}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(announce({1, 0, 0, 0}).code(), StatusCode::kInvalidArgument);
  rig.store().step().Abort();
  EXPECT_EQ(rig.store().Length(id), 0);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(rig.NewSequence().ok());
  EXPECT_EQ(rig.NewSequence().status().code(), StatusCode::kOutOfBudget);
}

TEST(Store, AppendBufferHoldsTheWorstMix) {
  RigOptions options;
  options.store = SmallStore();
  options.store.format.page.page_slots = 16;
  options.store.max_step_tokens = 15;
  Rig rig(options);
  ASSERT_TRUE(rig.Open().ok());
  std::vector<StepEntry> entries;
  for (int i = 0; i < 4; ++i) entries.push_back(StepEntry{*rig.NewSequence(), 1});
  for (int i = 0; i < 4; ++i)
    ASSERT_TRUE(rig.Step(entries[static_cast<size_t>(i)].sequence, 15).ok());
  // Two pages each of 4 sequences, of the 15 / 16 + 2 * 4 = 8 that there are.
  for (StepEntry& entry : entries) entry.tokens = 2;
  ASSERT_TRUE(rig.Step(entries).ok());
  for (StepEntry& entry : entries) entry.tokens = 1;
  ASSERT_TRUE(rig.Step(entries).ok());
}

TEST(Store, ReadsWhatIsOnTheDeviceWithoutACopy) {
  RigOptions options = WithSlabs(OneColumn(), 8, 0, 0);
  options.store.poison_freed = false;
  options.disk = false;
  Rig rig(options);
  ASSERT_TRUE(rig.Open().ok());
  const SequenceId id = *rig.NewSequence();
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(rig.Step(id, 1 + i % 3 * 4).ok());
  EXPECT_GT(rig.reads_from(Tier::kDevice), 0);
  EXPECT_EQ(rig.Mismatches(), 0);
  EXPECT_EQ(rig.trace().totals(Lane::kHostToDevice).bytes, 0);
  EXPECT_EQ(rig.trace().totals(Lane::kDiskRead).bytes, 0);
}

TEST(Store, ForksShareUntilTheyAppend) {
  for (const PlacementKind kind :
       {PlacementKind::kFirstFit, PlacementKind::kHostOnly, PlacementKind::kDiskOnly,
        PlacementKind::kLru, PlacementKind::kRecent}) {
    RigOptions options = OneColumn();
    options.store.placement = kind;
    Rig rig(options);
    ASSERT_TRUE(rig.Open().ok());
    const auto slabs = [&] {
      return rig.store().Usage(Tier::kDevice).slabs + rig.store().Usage(Tier::kHost).slabs +
             rig.store().Usage(Tier::kDisk).slabs;
    };
    const SequenceId id = *rig.NewSequence();
    ASSERT_TRUE(rig.Step(id, 12 + 4 + 3).ok());
    const SequenceId fork = *rig.Fork(id);
    EXPECT_EQ(slabs(), 2);
    const StepEntry both[] = {{id, 1}, {fork, 1}};
    ASSERT_TRUE(rig.Step(both).ok());  // the open page closes: the half-filled slab is copied
    // Both grew in one step, so both made a copy.
    EXPECT_EQ(slabs(), 3);
    for (int i = 0; i < 9; ++i) ASSERT_TRUE(rig.Step(both).ok());
    rig.Drop(id);
    EXPECT_EQ(slabs(), 3);
    for (int i = 0; i < 9; ++i) ASSERT_TRUE(rig.Step(fork, 1).ok());
    rig.Drop(fork);
    EXPECT_EQ(slabs(), 0);
    EXPECT_EQ(rig.Mismatches(), 0);
  }
}

TEST(Store, FreesWhatTheWindowHasPassed) {
  RigOptions options = OneColumn();
  options.store.format.layers = 2;
  options.store.format.window = {20, 0};
  Rig rig(options);
  ASSERT_TRUE(rig.Open().ok());
  const SequenceId id = *rig.NewSequence();
  ASSERT_TRUE(rig.Step(id, 100).ok());
  // 25 pages: 9 slabs of the layer that sees all; keys from 81 on are kept of the other.
  EXPECT_EQ(rig.store().Usage(Tier::kDevice).slabs, 9 + 3);
  for (int i = 0; i < 50; ++i) ASSERT_TRUE(rig.Step(id, 1).ok());
  EXPECT_LE(rig.store().Usage(Tier::kDevice).slabs, 13 + 3);
  EXPECT_EQ(rig.Truncate(id, 60).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(rig.store().Length(id), 150);
  EXPECT_EQ(*rig.Truncate(id, 150), 148);
  ASSERT_TRUE(rig.Step(id, 7).ok());
  EXPECT_EQ(*rig.Truncate(id, 0), 0);
  ASSERT_TRUE(rig.Step(id, 30).ok());
  ASSERT_TRUE(rig.Step(id, 30).ok());
}

// Fills tiers of that many slabs with a sequence, in steps of `step` tokens.
void FillAll(PlacementKind kind, std::array<int64_t, 3> slabs, int64_t step) {
  RigOptions options = WithSlabs(OneColumn(), slabs[0], slabs[1], slabs[2]);
  options.store.placement = kind;
  options.store.sink_tokens = 5;
  Rig rig(options);
  ASSERT_TRUE(rig.Open().ok());
  const SequenceId id = *rig.NewSequence();
  const int64_t room = (slabs[0] + slabs[1] + slabs[2]) * 12;
  for (int64_t at = 0; at < room; at += step) {
    ASSERT_TRUE(rig.Step(id, std::min(step, room - at)).ok());
  }
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(rig.Step(id, 1).ok());
  const Status status = rig.Step(id, 1);
  ASSERT_EQ(status.code(), StatusCode::kOutOfBudget);
  EXPECT_THAT(status.message(), HasSubstr("0 on device (kv-memory, limit"));
  EXPECT_THAT(status.message(), HasSubstr("0 on host (host-memory, limit"));
  EXPECT_THAT(status.message(), HasSubstr("0 on disk (disk-memory, limit"));
  EXPECT_EQ(rig.store().Length(id), room + 3);
  if (room == 0) return;
  ASSERT_TRUE(rig.Truncate(id, room - 1).ok());
  ASSERT_TRUE(rig.Step(id, 4).ok());
  ASSERT_TRUE(rig.Step(id, 3).ok());
  EXPECT_EQ(rig.Mismatches(), 0);
}

TEST(Store, NamesTheBudgetsThatAreFullAndGoesOn) {
  for (const PlacementKind kind : {PlacementKind::kFirstFit, PlacementKind::kRecent}) {
    for (const int64_t step : {256, 12, 5}) {
      for (int64_t device = 0; device < 3; ++device) {
        for (int64_t host = 0; host < 3; ++host) {
          for (int64_t disk = 0; disk < 3; ++disk) FillAll(kind, {device, host, disk}, step);
        }
      }
    }
  }
}

TEST(Store, FreedMemoryWaitsForTheKernelsThatReadIt) {
  RigOptions options = WithSlabs(OneColumn(), 8, 8, 0);
  options.slow_lane = Lane::kCompute;
  options.delay_us = 2000;
  Rig rig(options);
  ASSERT_TRUE(rig.Open().ok());
  for (int i = 0; i < 5; ++i) {
    const SequenceId id = *rig.NewSequence();
    ASSERT_TRUE(rig.Step(id, 70).ok());
    ASSERT_TRUE(rig.Step(id, 1).ok());
    rig.Drop(id);
  }
  EXPECT_EQ(rig.Mismatches(), 0);
}

TEST(Store, AnAbortedStepLeavesClosedPages) {
  RigOptions options;
  options.store = SmallStore();
  Rig rig(options);
  ASSERT_TRUE(rig.Open().ok());
  const SequenceId id = *rig.NewSequence();
  ASSERT_TRUE(rig.Step(id, 21).ok());
  for (int layers = 0; layers <= 2; ++layers) {
    for (const int64_t tokens : {1, 3, 30}) {
      const StepEntry entry{id, tokens};
      rig.AbortedStep({&entry, 1}, layers);
      EXPECT_EQ(rig.store().Length(id), 20);
      ASSERT_TRUE(rig.Step(id, 1).ok());
    }
  }
}

// --- Sessions

RigOptions SessionRig() {
  RigOptions options = WithSlabs(OneColumn(), 2, 2, 100);
  options.session = true;
  return options;
}

TEST(Store, RestoresWhatWasSavedAndGoesOn) {
  Rig rig(SessionRig());
  ASSERT_TRUE(rig.Open().ok());
  const SequenceId fresh = *rig.Restore();
  EXPECT_EQ(rig.store().Length(fresh), 0);
  ASSERT_TRUE(rig.Step(fresh, 70).ok());
  ASSERT_TRUE(rig.Save(fresh).ok());
  ASSERT_TRUE(rig.Step(fresh, 70).ok());  // what is saved stays what it was
  ASSERT_TRUE(rig.Open().ok());
  const SequenceId id = *rig.Restore();
  EXPECT_EQ(rig.store().Length(id), 68);
  EXPECT_EQ(rig.store().Usage(Tier::kDisk).slabs, 6);
  EXPECT_EQ(rig.Restore().status().code(), StatusCode::kInvalidArgument);
  ASSERT_TRUE(rig.Step(id, 1).ok());
  EXPECT_EQ(rig.store().Usage(Tier::kDevice).slabs, 2);
  EXPECT_EQ(rig.store().Usage(Tier::kHost).slabs, 2);
  ASSERT_TRUE(rig.Step(id, 40).ok());
  ASSERT_TRUE(rig.Save(id).ok());
  ASSERT_TRUE(rig.Open().ok());
  const SequenceId again = *rig.Restore();
  EXPECT_EQ(rig.store().Length(again), 108);
  ASSERT_TRUE(rig.Step(again, 1).ok());
}

bool Unwatched(int64_t /*tokens*/, int64_t /*total*/) { return true; }

TEST(Store, BringsUpWhatASessionHasOnDisk) {
  for (const PlacementKind placement :
       {PlacementKind::kFirstFit, PlacementKind::kHostOnly, PlacementKind::kRecent}) {
    RigOptions options = WithSlabs(OneColumn(), 2, 6, 100);
    options.store.placement = placement;
    options.session = true;
    Rig rig(options);
    ASSERT_TRUE(rig.Open().ok());
    const SequenceId saved = *rig.NewSequence();
    ASSERT_TRUE(rig.Step(saved, 70).ok());
    ASSERT_TRUE(rig.Save(saved).ok());
    ASSERT_TRUE(rig.Open().ok());
    const SequenceId id = *rig.Restore();
    ASSERT_TRUE(rig.store().BringUp(id, {}, WithoutRoom::kFails, Unwatched).ok());
    EXPECT_EQ(rig.store().Usage(Tier::kDisk).slabs, 0);
    EXPECT_EQ(rig.store().Usage(Tier::kDevice).slabs,
              placement == PlacementKind::kHostOnly ? 0 : 2);
    const int64_t read = rig.reads_from(Tier::kDisk);
    ASSERT_TRUE(rig.Step(id, 2).ok());
    ASSERT_TRUE(rig.store().BringUp(id, {}, WithoutRoom::kFails, Unwatched).ok());
    ASSERT_TRUE(rig.Step(id, 1).ok());
    EXPECT_EQ(rig.reads_from(Tier::kDisk), read);
    ASSERT_TRUE(rig.Save(id).ok());
  }
}

// What has come up before it is cancelled stays there; the rest comes up when it is asked for
// again.
TEST(Store, TellsHowMuchOfASessionHasComeUp) {
  RigOptions options = WithSlabs(OneColumn(), 2, 6, 100);
  options.session = true;
  Rig rig(options);
  ASSERT_TRUE(rig.Open().ok());
  const SequenceId saved = *rig.NewSequence();
  ASSERT_TRUE(rig.Step(saved, 70).ok());
  ASSERT_TRUE(rig.Save(saved).ok());
  ASSERT_TRUE(rig.Open().ok());
  const SequenceId id = *rig.Restore();
  const int64_t slabs = rig.store().Usage(Tier::kDisk).slabs;
  const int64_t tokens = rig.store().format().segment_tokens();
  int64_t all = 0, told = 0;
  const auto once = [&](int64_t done, int64_t total) {
    all = total;
    told += done;
    return done == 0;
  };
  EXPECT_EQ(rig.store().BringUp(id, {}, WithoutRoom::kFails, once).code(), StatusCode::kCancelled);
  EXPECT_EQ(told, tokens);
  EXPECT_GT(rig.store().Usage(Tier::kDisk).slabs, 0);
  EXPECT_LT(rig.store().Usage(Tier::kDisk).slabs, slabs);
  std::vector<int64_t> rest;
  const auto note = [&](int64_t done, int64_t total) {
    EXPECT_EQ(total, all - tokens);
    rest.push_back(done);
    return true;
  };
  ASSERT_TRUE(rig.store().BringUp(id, {}, WithoutRoom::kFails, note).ok());
  EXPECT_EQ(rest.front(), 0);
  EXPECT_EQ(rest.back(), all - tokens);
  EXPECT_EQ(rig.store().Usage(Tier::kDisk).slabs, 0);
  ASSERT_TRUE(rig.Step(id, 2).ok());
}

// What has come up stays there, and the sequence can be read as before.
TEST(Store, SaysSoWhereMemoryDoesNotHoldASession) {
  for (const bool disk_only : {false, true}) {
    RigOptions options = SessionRig();
    if (disk_only) options.store.placement = PlacementKind::kDiskOnly;
    Rig rig(options);
    ASSERT_TRUE(rig.Open().ok());
    const SequenceId saved = *rig.NewSequence();
    ASSERT_TRUE(rig.Step(saved, 70).ok());
    ASSERT_TRUE(rig.Save(saved).ok());
    ASSERT_TRUE(rig.Open().ok());
    EXPECT_EQ(rig.store().BringUp(7, {}, WithoutRoom::kFails, Unwatched).code(),
              StatusCode::kNotFound);
    const SequenceId id = *rig.Restore();
    EXPECT_EQ(rig.store().BringUp(id, {}, WithoutRoom::kFails, Unwatched).code(),
              StatusCode::kOutOfBudget);
    EXPECT_EQ(rig.store().Usage(Tier::kDisk).slabs, disk_only ? 6 : 2);
    ASSERT_TRUE(rig.Step(id, 5).ok());
  }
}

TEST(Store, ASecondSaveWritesNewPagesOnly) {
  RigOptions options = SessionRig();
  Rig rig(options);
  ASSERT_TRUE(rig.Open().ok());
  const SequenceId id = *rig.NewSequence();
  ASSERT_TRUE(rig.Step(id, 2 * 12 + 4).ok());
  ASSERT_TRUE(rig.Save(id).ok());
  const int64_t page = 2 * 2 * options.store.format.page_stride();
  EXPECT_EQ(rig.trace().totals(Lane::kDiskWrite).bytes, 7 * page);
  ASSERT_TRUE(rig.Save(id).ok());
  EXPECT_EQ(rig.trace().totals(Lane::kDiskWrite).bytes, 7 * page);
  ASSERT_TRUE(rig.Step(id, 12).ok());
  ASSERT_TRUE(rig.Save(id).ok());
  EXPECT_EQ(rig.trace().totals(Lane::kDiskWrite).bytes, 10 * page);
  ASSERT_TRUE(rig.Open().ok());
  ASSERT_TRUE(rig.Step(*rig.Restore(), 1).ok());
}

TEST(Store, SavesWhatReplacedTruncatedPages) {
  for (const int64_t device : {0, 20}) {
    for (const int64_t keep : {0, 4, 8, 12, 16, 28}) {
      Rig rig(WithSlabs(SessionRig(), device, device, 100));
      ASSERT_TRUE(rig.Open().ok());
      const SequenceId id = *rig.NewSequence();
      ASSERT_TRUE(rig.Step(id, 33).ok());
      ASSERT_TRUE(rig.Save(id).ok());
      ASSERT_TRUE(rig.Truncate(id, keep).ok());
      ASSERT_TRUE(rig.Step(id, 9).ok());
      ASSERT_TRUE(rig.Step(id, 25).ok());
      if (keep % 8 == 0) {
        ASSERT_TRUE(rig.Save(id).ok());
      }
      ASSERT_TRUE(rig.Open().ok());
      const SequenceId restored = *rig.Restore();
      ASSERT_TRUE(rig.Step(restored, 1).ok());
      ASSERT_TRUE(rig.Step(restored, 20).ok());
      EXPECT_EQ(rig.Mismatches(), 0);
    }
  }
}

TEST(Store, ASessionThatWasNotRestoredIsReplaced) {
  Rig rig(SessionRig());
  ASSERT_TRUE(rig.Open().ok());
  const SequenceId old = *rig.NewSequence();
  ASSERT_TRUE(rig.Step(old, 60).ok());
  ASSERT_TRUE(rig.Save(old).ok());
  ASSERT_TRUE(rig.Open().ok());
  const SequenceId id = *rig.NewSequence();
  ASSERT_TRUE(rig.Step(id, 13).ok());
  ASSERT_TRUE(rig.Save(id).ok());
  EXPECT_EQ(rig.Restore().status().code(), StatusCode::kInvalidArgument);
  ASSERT_TRUE(rig.Step(id, 13).ok());
  ASSERT_TRUE(rig.Save(id).ok());
  ASSERT_TRUE(rig.Open().ok());
  EXPECT_EQ(rig.store().Length(*rig.Restore()), 24);
}

TEST(Store, ASaveWithoutRoomNamesTheBudget) {
  RigOptions options = WithSlabs(OneColumn(), 10, 10, 3);
  options.session = true;
  options.disk_bytes += 2 * 4096;  // superblocks
  Rig rig(options);
  ASSERT_TRUE(rig.Open().ok());
  const SequenceId id = *rig.NewSequence();
  ASSERT_TRUE(rig.Step(id, 13).ok());
  ASSERT_TRUE(rig.Save(id).ok());
  ASSERT_TRUE(rig.Step(id, 60).ok());
  const Status status = rig.Save(id);
  EXPECT_EQ(status.code(), StatusCode::kOutOfBudget);
  EXPECT_THAT(status.message(), HasSubstr("disk-memory"));
  ASSERT_TRUE(rig.Step(id, 60).ok());
  ASSERT_TRUE(rig.Open().ok());
  EXPECT_EQ(rig.store().Length(*rig.Restore()), 12);
}

TEST(Store, ASessionOfAnotherLayoutIsRefused) {
  Rig rig(SessionRig());
  ASSERT_TRUE(rig.Open().ok());
  const SequenceId id = *rig.NewSequence();
  ASSERT_TRUE(rig.Step(id, 13).ok());
  MemoryEnv env;
  Budget budget("disk", kUnlimited);
  CacheFormat format = SmallStore().format;
  Result<std::unique_ptr<SlabFile>> file = CreateSessionAt(&env, "/s", format, &budget);
  ASSERT_TRUE(file.ok());
  StoreOptions options = SmallStore();
  options.device_budget = options.host_budget = options.disk_budget = &budget;
  options.format.segment_pages = 2;
  const std::unique_ptr<Device> device = NewCpuDevice(&env, nullptr);
  const std::unique_ptr<Stream> compute = *device->NewStream(Lane::kCompute);
  const std::unique_ptr<Lanes> lanes = *Lanes::Create(device.get(), compute.get());
  const Result<std::unique_ptr<Store>> store =
      Store::Create(options, &env, device.get(), lanes.get(), std::move(*file));
  EXPECT_EQ(store.status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace headway::kv
