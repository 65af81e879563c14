#include "base/fault_env.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "base/test_dir.h"

namespace headway {
namespace {

using ::testing::HasSubstr;

class FaultEnvTest : public ::testing::Test {
 protected:
  // Counted calls in order: allocate, open, truncate, write, sync, read, rename, sync, map, read,
  // list, remove.
  static constexpr int kCalls = 12;

  Status UseEverything() {
    constexpr size_t kSize = 8192;
    const Result<std::byte*> memory = env_.AllocateMemory(kSize);
    if (!memory.ok()) return memory.status();
    Status status = UseFile(*memory, kSize);
    env_.FreeMemory(*memory, kSize);
    if (!status.ok()) return status;
    const Result<std::unique_ptr<MappedFile>> map = env_.Map(dir_.File("new"));
    if (!map.ok()) return map.status();
    EXPECT_EQ((*map)->bytes().size(), kSize);
    EXPECT_EQ(env_.LiveMaps(), 1);
    const Result<std::string> text = env_.ReadFile(dir_.File("new"), kMaxFileBytes);
    if (!text.ok()) return text.status();
    const Result<std::vector<std::string>> names = env_.List(dir_.path());
    if (!names.ok()) return names.status();
    return env_.Remove(dir_.File("new"));
  }

  Status UseFile(std::byte* data, size_t size) {
    const Result<std::unique_ptr<File>> file =
        env_.Open(dir_.File("old"), OpenMode::kCreate, FileIo::kCached);
    if (!file.ok()) return file.status();
    const IoPiece piece = {data, size, 0};
    Status status = (*file)->Truncate(100);
    if (status.ok()) status = (*file)->Write({&piece, 1});
    if (status.ok()) status = (*file)->Sync();
    if (status.ok()) status = (*file)->Read({&piece, 1});
    if (status.ok()) status = env_.Rename(dir_.File("old"), dir_.File("new"));
    if (status.ok()) status = env_.SyncDirectory(dir_.path());
    EXPECT_EQ(env_.LiveFiles(), 1);
    EXPECT_EQ(env_.LiveAllocations(), 1);
    EXPECT_EQ(env_.LiveBytes(), static_cast<int64_t>(size));
    return status;
  }

  void ExpectNothingAlive() {
    EXPECT_EQ(env_.LiveFiles(), 0);
    EXPECT_EQ(env_.LiveMaps(), 0);
    EXPECT_EQ(env_.LiveAllocations(), 0);
    EXPECT_EQ(env_.LiveBytes(), 0);
  }

  TestDir dir_;
  FaultEnv env_{Env::Default()};
};

TEST_F(FaultEnvTest, PassesCallsThrough) {
  const Status status = UseEverything();
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(env_.calls(), kCalls);
  EXPECT_EQ(env_.faults(), 0);
  ExpectNothingAlive();
}

TEST_F(FaultEnvTest, FailsEachCallInTurn) {
  for (const FaultTimes times : {FaultTimes::kOnce, FaultTimes::kForGood}) {
    int n = 1;
    for (;; ++n) {
      env_.FailAt(n, times);
      const Status status = UseEverything();
      ExpectNothingAlive();
      if (env_.faults() == 0) {
        EXPECT_TRUE(status.ok()) << status.message();
        break;
      }
      EXPECT_EQ(status.code(), StatusCode::kIo);
      EXPECT_THAT(status.message(), HasSubstr("injected fault"));
      EXPECT_EQ(env_.calls(), n);
      // Once: the very same call then works.
      const Result<std::byte*> after = env_.AllocateMemory(1);
      EXPECT_EQ(after.ok(), times == FaultTimes::kOnce);
      if (after.ok()) env_.FreeMemory(*after, 1);
    }
    EXPECT_EQ(n, kCalls + 1);
  }
}

TEST_F(FaultEnvTest, CountsOnlyTheKindsAskedFor) {
  env_.SetKinds(kFaultSync | kFaultMap);
  env_.FailAt(0);
  EXPECT_TRUE(UseEverything().ok());
  EXPECT_EQ(env_.calls(), 3);
  env_.FailAt(2);
  EXPECT_THAT(UseEverything().message(), HasSubstr("sync " + dir_.path()));
  env_.FailAt(3);
  EXPECT_THAT(UseEverything().message(), HasSubstr("map "));
  ExpectNothingAlive();
}

TEST_F(FaultEnvTest, FullDiskTakesWhatFits) {
  const Result<std::unique_ptr<File>> file =
      env_.Open(dir_.path(), OpenMode::kTemporary, FileIo::kCached);
  ASSERT_TRUE(file.ok());
  std::byte data[300];
  std::memset(data, 0x5A, sizeof(data));
  const std::vector<IoPiece> pieces = {{data, 100, 0}, {data, 100, 100}, {data, 100, 200}};
  env_.SetDiskCapacity(250);
  const Status status = (*file)->Write(pieces);
  EXPECT_EQ(status.code(), StatusCode::kIo);
  EXPECT_THAT(status.message(), HasSubstr("No space left on device"));
  EXPECT_EQ(*(*file)->Size(), 200);
  EXPECT_EQ((*file)->Write({pieces.data(), 1}).code(), StatusCode::kIo);  // it stays full
  env_.SetDiskCapacity(300);
  EXPECT_TRUE((*file)->Write(pieces).ok());
  EXPECT_FALSE((*file)->Write({pieces.data(), 1}).ok());
  EXPECT_EQ(env_.faults(), 0);
}

}  // namespace
}  // namespace headway
