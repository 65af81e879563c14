// MemoryEnv: files in memory, for tests. It remembers every change in order, and says what a disk
// may hold when the machine stops after the first n of them: what was synced, and of the rest any
// part, torn and in any order.
#ifndef HEADWAY_KV_TESTING_MEMORY_ENV_H_
#define HEADWAY_KV_TESTING_MEMORY_ENV_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/env.h"
#include "base/random.h"

namespace headway::kv {

class MemoryEnv : public Env {
 public:
  using Bytes = std::vector<std::byte>;
  using Disk = std::map<std::string, Bytes>;  // by path

  MemoryEnv() = default;
  explicit MemoryEnv(const Disk& disk);

  // Changes so far: each piece of a write, truncation, sync, creation, rename and removal is one.
  size_t changes() const;
  // A disk on which the first `changes` changes were begun when the machine stopped.
  Disk AfterCrash(size_t changes, Random* random) const;
  // The disk as programs see it.
  Disk Contents() const;

  // From now on locks cannot be shared.
  void RefuseSharing() { refuses_sharing_ = true; }

  // Locks, alignment of direct I/O and errors are as of the real thing. There are no directories.
  Result<std::unique_ptr<File>> Open(const std::string& path, OpenMode mode, FileIo io) override;
  Result<std::unique_ptr<MappedFile>> Map(const std::string& path) override;
  Result<std::string> ReadFile(const std::string& path, size_t most) override;
  bool Exists(const std::string& path) override;
  bool IsDirectory(const std::string&) override { return false; }
  Result<std::string> FollowLinks(const std::string& path) override { return path; }
  Result<std::vector<std::string>> List(const std::string& directory) override;
  Status Rename(const std::string& from, const std::string& to) override;
  Status SyncDirectory(const std::string& directory) override;
  Status Remove(const std::string& path) override;
  Result<std::byte*> AllocateMemory(size_t bytes) override;
  void FreeMemory(std::byte* data, size_t bytes) override;
  int64_t NowNanos() override { return 0; }
  int64_t WallNanos() override { return 0; }

 private:
  struct Inode;
  class OpenFile;
  class Mapping;
  struct Change;
  struct Replay;
  using Names = std::map<std::string, std::shared_ptr<Inode>>;

  static void Apply(const Change& change, Bytes* bytes);
  void Log(Change change);
  Result<std::shared_ptr<Inode>> Find(const std::string& path) const;

  mutable std::mutex mutex_;
  Names names_;
  Names first_names_;  // before the first change
  std::vector<std::shared_ptr<Change>> log_;
  bool refuses_sharing_ = false;
};

}  // namespace headway::kv

#endif  // HEADWAY_KV_TESTING_MEMORY_ENV_H_
