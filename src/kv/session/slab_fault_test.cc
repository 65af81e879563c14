// Every call of the system that a slab file makes fails in turn, once and for good.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/fault_env.h"
#include "base/random.h"
#include "kv/session/slab_file.h"
#include "kv/testing/memory_env.h"
#include "kv/testing/session_model.h"
#include "kv/testing/slab_test_util.h"

namespace headway::kv {
namespace {

using testing::HasSubstr;

constexpr char kPath[] = "/disk/session";

class SlabFaultTest : public testing::Test {
 protected:
  // Opens or makes the session, changes it and commits, some times over; goes on after failures.
  void Live(Env* env, const CacheFormat& format, uint64_t seed) {
    Random random(seed);
    Result<std::unique_ptr<SlabFile>> file = env->Exists(kPath)
                                                 ? OpenSessionAt(env, kPath, &budget_)
                                                 : CreateSessionAt(env, kPath, format, &budget_);
    if (!file.ok()) return Expect(file.status());
    SessionModel model(&memory_for_model_, file->get(), &random);
    Status status = model.Load();
    if (!status.ok()) return Expect(status);
    for (int i = 0; i < 4; ++i) {
      for (int change = 0; change < 2; ++change) Expect(model.Change());
      const Manifest next = model.Describe();
      status = model.Commit();
      if (status.ok()) possible_.clear();
      possible_.push_back(next);
      committed_ = committed_ || status.ok();
      Expect(status);
      Expect(model.Verify());
    }
  }

  void Expect(const Status& status) {
    if (status.ok()) return;
    EXPECT_EQ(status.code(), StatusCode::kIo) << status.message();
    EXPECT_THAT(status.message(), HasSubstr("cannot"));
  }

  void ExpectPossible(const MemoryEnv::Disk& disk) {
    MemoryEnv env(disk);
    Result<std::unique_ptr<SlabFile>> file = OpenSessionAt(&env, kPath, &budget_);
    if (!file.ok()) {
      EXPECT_EQ(file.status().code(), StatusCode::kNotFound) << file.status().message();
      EXPECT_FALSE(committed_);
      return;
    }
    bool known = false;
    for (const Manifest& manifest : possible_) {
      known = known || SameManifest((*file)->manifest(), manifest);
    }
    EXPECT_TRUE(known);
    const Status status = VerifySession(&env, file->get(), (*file)->manifest());
    EXPECT_TRUE(status.ok()) << status.message();
  }

  void FailEveryCall(const MemoryEnv::Disk& start, const CacheFormat& format) {
    for (const FaultTimes times : {FaultTimes::kOnce, FaultTimes::kForGood}) {
      for (int64_t n = 1;; ++n) {
        SCOPED_TRACE(testing::Message()
                     << "call " << n << (times == FaultTimes::kForGood ? " on" : ""));
        MemoryEnv memory(start);
        FaultEnv env(&memory);
        env.FailAt(n, times);
        possible_.clear();
        committed_ = !start.empty();
        if (committed_) possible_.push_back(*InspectSession(&memory, kPath));
        Live(&env, format, 3);
        EXPECT_EQ(env.LiveAllocations(), 0);
        EXPECT_EQ(env.LiveFiles(), 0);
        EXPECT_EQ(budget_.used(), 0);
        ExpectPossible(memory.Contents());
        Random random(static_cast<uint64_t>(n));
        ExpectPossible(memory.AfterCrash(memory.changes(), &random));
        if (HasFailure()) return;
        if (env.faults() == 0) break;
      }
    }
  }

  Budget budget_{"disk-memory", kUnlimited};
  MemoryEnv memory_for_model_;      // its buffers are no part of the test
  std::vector<Manifest> possible_;  // the session is one of these
  bool committed_ = false;          // and is there
};

TEST_F(SlabFaultTest, EveryCallMayFail) {
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    Random random(seed);
    const CacheFormat format = RandomSmallFormat(&random);
    FailEveryCall({}, format);
    MemoryEnv memory;
    Live(&memory, format, seed);
    ASSERT_TRUE(memory.Exists(kPath));
    FailEveryCall(memory.Contents(), format);
  }
}

TEST_F(SlabFaultTest, AFullDiskKeepsTheSessionBefore) {
  Random random(31);
  const CacheFormat format = RandomSmallFormat(&random);
  for (int64_t capacity = 0;; capacity += 4096) {
    SCOPED_TRACE(capacity);
    MemoryEnv memory;
    FaultEnv env(&memory);
    env.SetDiskCapacity(capacity);
    possible_.clear();
    committed_ = false;
    Live(&env, format, 4);
    ExpectPossible(memory.Contents());
    if (HasFailure()) return;
    Random crash(static_cast<uint64_t>(capacity));
    ExpectPossible(memory.AfterCrash(memory.changes(), &crash));
    if (possible_.size() == 1 && possible_[0].weights_hash == 4) break;
  }
}

TEST_F(SlabFaultTest, AfterAFullDiskTheFileHasItsOldSize) {
  Random random(33);
  for (int64_t capacity = 0; capacity <= 40960; capacity += 4096) {
    SCOPED_TRACE(capacity);
    MemoryEnv memory;
    FaultEnv env(&memory);
    Result<std::unique_ptr<SlabFile>> file =
        CreateSessionAt(&env, kPath, RandomSmallFormat(&random), &budget_);
    ASSERT_TRUE(file.ok());
    SessionModel model(&memory_for_model_, file->get(), &random);
    ASSERT_TRUE(model.Change().ok());
    ASSERT_TRUE(model.Commit().ok());
    const size_t size = memory.Contents()[kPath].size();
    env.SetDiskCapacity(capacity);
    Status status;
    for (int i = 0; i < 100 && status.ok(); ++i) status = model.Change();
    ASSERT_EQ(status.code(), StatusCode::kIo);
    file->reset();
    EXPECT_EQ(memory.Contents()[kPath].size(), size);
  }
}

TEST_F(SlabFaultTest, AfterAFailedSyncNothingIsSavedAnyMore) {
  Random random(32);
  MemoryEnv memory;
  FaultEnv env(&memory);
  Result<std::unique_ptr<SlabFile>> file =
      CreateSessionAt(&env, kPath, RandomSmallFormat(&random), &budget_);
  ASSERT_TRUE(file.ok());
  SessionModel model(&memory_for_model_, file->get(), &random);
  ASSERT_TRUE(model.Change().ok());
  ASSERT_TRUE(model.Commit().ok());
  env.SetKinds(kFaultSync);
  env.FailAt(1);
  EXPECT_EQ(model.Commit().code(), StatusCode::kIo);
  const Status status = model.Commit();
  EXPECT_EQ(status.code(), StatusCode::kIo);
  EXPECT_THAT(status.message(), HasSubstr("cannot save to /disk/session"));
  EXPECT_THAT(status.message(), HasSubstr("what was saved until then is kept"));
}

}  // namespace
}  // namespace headway::kv
