// Every system call and allocation under a store fails once, or from one on for good: nothing
// crashes, nothing leaks, wrong bytes are never read, and a session that was saved stays.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/fault_env.h"
#include "kv/store/store.h"
#include "kv/testing/memory_env.h"
#include "kv/testing/rig.h"

namespace headway::kv {
namespace {

RigOptions FaultRig(Env* env, PlacementKind kind, bool session) {
  RigOptions options;
  options.env = env;
  options.session = session;
  options.store = SmallStore();
  options.store.format.layers = 1;
  options.store.format.segment_pages = 2;
  options.store.max_sequences = 2;
  options.store.placement = kind;
  const StoreFootprint fixed = FootprintOf(options.store);
  const int64_t slab = options.store.format.slab_bytes();
  options.device_bytes = fixed.open_pages + fixed.append_buffer + fixed.staging + 3 * slab;
  options.host_bytes = fixed.bounce + 3 * slab;
  options.disk_bytes = 60 * slab;
  return options;
}

void TryStep(Rig& rig, SequenceId id, int64_t tokens) {
  if (rig.Step(id, tokens).ok()) return;
  // A slab may be lost for good; without it the sequence goes on.
  if (!rig.Step(id, tokens).ok()) (void)rig.Truncate(id, 0).ok();
}

void Scenario(Rig& rig, bool session) {
  if (!rig.Open().ok()) return;
  Result<SequenceId> id = session ? rig.Restore() : rig.NewSequence();
  if (!id.ok()) return;
  TryStep(rig, *id, 30);
  TryStep(rig, *id, 7);
  Result<SequenceId> fork = rig.Fork(*id);
  if (fork.ok()) TryStep(rig, *fork, 9);
  if (session) (void)rig.Save(*id).ok();
  if (fork.ok()) rig.Drop(*fork);
  TryStep(rig, *id, 20);
  (void)rig.Truncate(*id, 21).ok();
  TryStep(rig, *id, 14);
  if (session) (void)rig.Save(*id).ok();
  TryStep(rig, *id, 1);
  EXPECT_EQ(rig.Mismatches(), 0);
}

void FailEach(PlacementKind kind, bool session, FaultTimes times) {
  for (int64_t n = 1;; ++n) {
    SCOPED_TRACE(
        "placement " + std::to_string(static_cast<int>(kind)) + (session ? " session" : "") +
        (times == FaultTimes::kForGood ? " persistent" : "") + " call " + std::to_string(n));
    MemoryEnv disk;
    FaultEnv env(&disk);
    int64_t faults = 0;
    {
      RigOptions options = FaultRig(&env, kind, session);
      options.asynchronous = n % 3 == 0;  // errors come out of a read, or the step's end
      Rig rig(options);
      env.FailAt(n, times);
      Scenario(rig, session);
      rig.Close();
      faults = env.faults();
      EXPECT_EQ(env.LiveAllocations(), 0);
      EXPECT_EQ(env.LiveFiles(), 0);
      env.FailAt(0);
      if (rig.has_saved()) {
        const Status status = rig.Open();
        ASSERT_TRUE(status.ok()) << status.message();
        const Result<SequenceId> id = rig.Restore();
        ASSERT_TRUE(id.ok()) << id.status().message();
        const Status step = rig.Step(*id, 1);
        EXPECT_TRUE(step.ok()) << step.message();
      }
    }
    if (testing::Test::HasFailure() || faults == 0) return;
  }
}

TEST(StoreFault, OnceAndForGood) {
  for (const PlacementKind kind : {PlacementKind::kFirstFit, PlacementKind::kLru,
                                   PlacementKind::kDiskOnly, PlacementKind::kRecent}) {
    FailEach(kind, /*session=*/true, FaultTimes::kOnce);
    if (HasFailure()) return;
  }
  FailEach(PlacementKind::kDiskOnly, /*session=*/true, FaultTimes::kForGood);
  if (HasFailure()) return;
  FailEach(PlacementKind::kLru, /*session=*/false, FaultTimes::kOnce);
}

TEST(StoreFault, AReadErrorComesOutOnceAndTheNextReadIsGood) {
  MemoryEnv disk;
  FaultEnv env(&disk);
  Rig rig(FaultRig(&env, PlacementKind::kDiskOnly, false));
  ASSERT_TRUE(rig.Open().ok());
  const SequenceId id = *rig.NewSequence();
  ASSERT_TRUE(rig.Step(id, 40).ok());
  ASSERT_TRUE(rig.Step(id, 1).ok());
  env.SetKinds(kFaultRead);
  env.FailAt(3);
  const Status status = rig.Step(id, 1);
  EXPECT_EQ(status.code(), StatusCode::kIo);
  EXPECT_EQ(status.message().find('\n'), std::string::npos);
  rig.Drain();
  EXPECT_TRUE(rig.Step(id, 1).ok());
}

TEST(StoreFault, AFailedCopyEndsTheStoreAndKeepsTheSession) {
  for (const Lane lane : {Lane::kHostToDevice, Lane::kDeviceToHost}) {
    SCOPED_TRACE(LaneName(lane));
    RigOptions options = FaultRig(nullptr, PlacementKind::kHostOnly, /*session=*/true);
    options.slow_lane = lane;
    options.store.poison_freed = false;  // it copies, too
    Rig rig(options);
    ASSERT_TRUE(rig.Open().ok());
    Result<SequenceId> id = rig.NewSequence();
    ASSERT_TRUE(id.ok());
    ASSERT_TRUE(rig.Step(*id, 22).ok());
    ASSERT_TRUE(rig.Save(*id).ok());
    rig.Break();
    const Status failed = rig.Step(*id, 9);
    EXPECT_EQ(failed.message(), "a copy: the bus is gone");
    EXPECT_EQ(rig.store().Length(*id), 20);  // the step was given up
    for (const Status& later : {rig.Step(*id, 1), rig.Save(*id)}) {
      EXPECT_EQ(later.message(),
                "an earlier error has ended this context; open it again (what its session saved "
                "before is kept): a copy: the bus is gone");
    }
    ASSERT_TRUE(rig.Open().ok());
    id = rig.Restore();
    ASSERT_TRUE(id.ok()) << id.status().message();
    EXPECT_EQ(rig.store().Length(*id), 20);
    EXPECT_TRUE(rig.Step(*id, 30).ok());
  }
}

TEST(StoreFault, AFullDiskFailsTheSaveAndNothingElse) {
  MemoryEnv disk;
  FaultEnv env(&disk);
  Rig rig(FaultRig(&env, PlacementKind::kFirstFit, true));
  ASSERT_TRUE(rig.Open().ok());
  const SequenceId id = *rig.NewSequence();
  ASSERT_TRUE(rig.Step(id, 17).ok());
  ASSERT_TRUE(rig.Save(id).ok());
  ASSERT_TRUE(rig.Step(id, 3).ok());
  env.SetDiskCapacity(10000);
  EXPECT_EQ(rig.Save(id).code(), StatusCode::kIo);
  EXPECT_TRUE(rig.Step(id, 2).ok());
  EXPECT_EQ(rig.Save(id).code(), StatusCode::kIo);
  env.SetDiskCapacity(int64_t{1} << 40);
  EXPECT_TRUE(rig.Step(id, 2).ok());
  EXPECT_TRUE(rig.Save(id).ok());
  ASSERT_TRUE(rig.Open().ok());
  const SequenceId restored = *rig.Restore();
  EXPECT_EQ(rig.store().Length(restored), 24);
  EXPECT_TRUE(rig.Step(restored, 1).ok());
}

// Sessions grow, are cut, forked and saved; then the machine stops at some write. What is found is
// what was saved last, bit by bit, or what was being saved.
TEST(StoreFault, ACrashAtAnyWriteKeepsTheSession) {
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    MemoryEnv disk;
    const auto kind = static_cast<PlacementKind>(seed % 4);
    Rig rig(FaultRig(&disk, kind, true));
    rig.Seed(seed);
    ASSERT_TRUE(rig.Open().ok());
    SequenceId id = *rig.Restore();
    std::vector<size_t> saved_at;  // changes to the disk when each save was done
    for (int i = 0; i < 30; ++i) {
      const int64_t what = random.Below(8);
      if (what == 0) {
        ASSERT_TRUE(rig.Truncate(id, random.Below(rig.store().Length(id) + 1)).ok());
      } else if (what == 1) {
        const SequenceId fork = *rig.Fork(id);
        rig.Drop(id);
        id = fork;
      } else if (what <= 3) {
        ASSERT_TRUE(rig.Save(id).ok());
        saved_at.push_back(disk.changes());
      } else if (rig.store().Length(id) < 100) {
        ASSERT_TRUE(rig.Step(id, 1 + random.Below(20)).ok());
      }
    }
    for (int crash = 0; crash < 12; ++crash) {
      const auto at = static_cast<size_t>(random.Below(static_cast<int64_t>(disk.changes()) + 1));
      const auto done = std::upper_bound(saved_at.begin(), saved_at.end(), at);
      SCOPED_TRACE("crash at " + std::to_string(at));
      MemoryEnv after(disk.AfterCrash(at, &random));
      Rig found(FaultRig(&after, kind, true));
      found.AdoptSaves(rig, static_cast<int>(done - saved_at.begin()) - 1);
      if (!after.Exists(found.session_path())) {
        EXPECT_EQ(done, saved_at.begin());
        continue;
      }
      const Status status = found.Open();
      ASSERT_TRUE(status.ok()) << status.message();
      const SequenceId restored = *found.Restore();
      ASSERT_TRUE(found.Step(restored, 1).ok());
      ASSERT_TRUE(found.Step(restored, 9).ok());
      ASSERT_TRUE(found.Save(restored).ok());
    }
  }
}

}  // namespace
}  // namespace headway::kv
