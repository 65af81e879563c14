// FaultEnv: an Env for tests that fails chosen calls, fills its disk, and counts what is alive.
#ifndef HEADWAY_BASE_FAULT_ENV_H_
#define HEADWAY_BASE_FAULT_ENV_H_

#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/env.h"

namespace headway {

// Calls that FaultEnv counts and can fail; a set of them is their bitwise or.
enum FaultKind : uint32_t {
  kFaultOpen = 1u << 0,
  kFaultRead = 1u << 1,  // File::Read, ReadFile, List
  kFaultWrite = 1u << 2,
  kFaultSync = 1u << 3,  // File::Sync, SyncDirectory
  kFaultTruncate = 1u << 4,
  kFaultRename = 1u << 5,
  kFaultRemove = 1u << 6,
  kFaultMap = 1u << 7,
  kFaultAllocate = 1u << 8,
  kFaultAll = (1u << 9) - 1,
};

enum class FaultTimes { kOnce, kForGood };

// The usual loop: for n = 1, 2, 3 ...: FailAt(n), run, check, until faults() stays 0.
// From any thread. `base` and this object outlive the files that are opened.
class FaultEnv : public Env {
 public:
  explicit FaultEnv(Env* base) : base_(base) {}

  // From now on the n-th counted call fails ("injected fault", kIo), alone or with all after it.
  // 0 for none. Starts counting anew.
  void FailAt(int64_t n, FaultTimes times = FaultTimes::kOnce);
  // Which calls are counted; all at first. `kinds` is a bitwise or of FaultKind.
  void SetKinds(uint32_t kinds);
  int64_t calls() const;   // counted since FailAt
  int64_t faults() const;  // of them, those that failed by injection

  // `bytes` more can be written to files, in place or not; then writes are short and fail.
  void SetDiskCapacity(int64_t bytes);

  int64_t LiveAllocations() const;
  int64_t LiveBytes() const;
  int64_t LiveFiles() const;
  int64_t LiveMaps() const;

  Result<std::unique_ptr<File>> Open(const std::string& path, OpenMode mode, FileIo io) override;
  Result<std::unique_ptr<MappedFile>> Map(const std::string& path) override;
  Result<std::string> ReadFile(const std::string& path, size_t most) override;
  bool Exists(const std::string& path) override { return base_->Exists(path); }
  bool IsDirectory(const std::string& path) override { return base_->IsDirectory(path); }
  Result<std::string> FollowLinks(const std::string& path) override {
    return base_->FollowLinks(path);
  }
  Result<std::vector<std::string>> List(const std::string& directory) override;
  Status Rename(const std::string& from, const std::string& to) override;
  Status SyncDirectory(const std::string& directory) override;
  Status Remove(const std::string& path) override;
  Result<std::byte*> AllocateMemory(size_t bytes) override;
  void FreeMemory(std::byte* data, size_t bytes) override;
  int64_t NowNanos() override { return base_->NowNanos(); }
  int64_t WallNanos() override { return base_->WallNanos(); }

 private:
  class FaultFile;
  class FaultMap;

  struct Live {
    int64_t allocations = 0;
    int64_t bytes = 0;
    int64_t files = 0;
    int64_t maps = 0;
  };

  // Counts a call; kIo when it is one to fail. `what` names it, with its path.
  Status Count(FaultKind kind, const std::string& what);
  // How many of `wanted` bytes the disk still takes; they are taken.
  int64_t TakeDisk(int64_t wanted);
  Live live() const;

  Env* const base_;
  mutable std::mutex mutex_;
  uint32_t kinds_ = kFaultAll;
  int64_t fail_at_ = 0;
  FaultTimes times_ = FaultTimes::kOnce;
  int64_t calls_ = 0;
  int64_t faults_ = 0;
  int64_t disk_left_ = std::numeric_limits<int64_t>::max();
  Live live_;
};

}  // namespace headway

#endif  // HEADWAY_BASE_FAULT_ENV_H_
