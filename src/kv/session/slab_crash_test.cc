// What a machine that stops, a disk that fails, and a process that is killed leave of a session.
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

constexpr char kPath[] = "/disk/session";

// A commit by the changes of the disk that it made: [begin, end).
struct Attempt {
  size_t begin = 0;
  size_t end = 0;
  Manifest manifest;
};

class SlabCrashTest : public testing::Test {
 protected:
  Result<std::unique_ptr<SlabFile>> OpenOrCreate(Env* env, const CacheFormat& format) {
    if (env->Exists(kPath)) return OpenSessionAt(env, kPath, &budget_);
    return CreateSessionAt(env, kPath, format, &budget_);
  }

  // Changes and commits until the disk has seen `changes` changes.
  std::vector<Attempt> Live(MemoryEnv* env, const CacheFormat& format, size_t changes,
                            Random* random) {
    std::vector<Attempt> attempts;
    Result<std::unique_ptr<SlabFile>> file = OpenOrCreate(env, format);
    EXPECT_TRUE(file.ok()) << file.status().message();
    SessionModel model(env, file->get(), random);
    EXPECT_TRUE(model.Load().ok());
    while (env->changes() < changes) {
      Status status = model.Change();
      EXPECT_TRUE(status.ok()) << status.message();
      if (random->Below(3) > 0) continue;
      Attempt attempt;
      attempt.manifest = model.Describe();
      attempt.begin = env->changes();
      status = model.Commit();
      EXPECT_TRUE(status.ok()) << status.message();
      attempt.end = env->changes();
      attempts.push_back(std::move(attempt));
      status = model.Verify();
      EXPECT_TRUE(status.ok()) << status.message();
    }
    return attempts;
  }

  // After a crash at `changes`, the session is that of the last commit that was done, or of the one
  // under way. `before` is what there was before all attempts, if anything.
  void ExpectOldOrNew(const MemoryEnv::Disk& disk, size_t changes, const Manifest* before,
                      const std::vector<Attempt>& attempts) {
    const Manifest* old = before;
    const Manifest* next = nullptr;
    for (const Attempt& attempt : attempts) {
      if (attempt.end <= changes) {
        old = &attempt.manifest;
      } else if (attempt.begin < changes) {
        next = &attempt.manifest;
      }
    }
    MemoryEnv env(disk);
    Result<std::unique_ptr<SlabFile>> file = OpenSessionAt(&env, kPath, &budget_);
    if (!file.ok()) {
      ASSERT_EQ(file.status().code(), StatusCode::kNotFound) << file.status().message();
      ASSERT_EQ(old, nullptr) << "the session is gone";
      return;
    }
    const Manifest& found = (*file)->manifest();
    ASSERT_TRUE((old != nullptr && SameManifest(found, *old)) ||
                (next != nullptr && SameManifest(found, *next)));
    const Status status = VerifySession(&env, file->get(), found);
    ASSERT_TRUE(status.ok()) << status.message();
  }

  Budget budget_{"disk-memory", kUnlimited};
};

TEST_F(SlabCrashTest, EveryCrashLeavesTheOldOrTheNewSession) {
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    MemoryEnv env;
    const std::vector<Attempt> attempts = Live(&env, RandomSmallFormat(&random), 250, &random);
    for (size_t changes = 0; changes <= env.changes(); ++changes) {
      for (int variant = 0; variant < 3; ++variant) {
        SCOPED_TRACE(changes);
        ExpectOldOrNew(env.AfterCrash(changes, &random), changes, nullptr, attempts);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_F(SlabCrashTest, SessionsLiveThroughManyCrashes) {
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed + 100);
    const CacheFormat format = RandomSmallFormat(&random);
    MemoryEnv::Disk disk;
    for (int life = 0; life < 40; ++life) {
      SCOPED_TRACE(life);
      MemoryEnv env(disk);
      Manifest before;
      const bool existed = env.Exists(kPath);
      if (existed) before = std::move(*InspectSession(&env, kPath));
      const std::vector<Attempt> attempts =
          Live(&env, format, static_cast<size_t>(random.Below(120)), &random);
      const auto changes =
          static_cast<size_t>(random.Below(static_cast<int64_t>(env.changes()) + 1));
      disk = env.AfterCrash(changes, &random);
      ExpectOldOrNew(disk, changes, existed ? &before : nullptr, attempts);
      if (HasFatalFailure()) return;
    }
  }
}

}  // namespace
}  // namespace headway::kv
