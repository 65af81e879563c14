// Env: the only seam to the operating system for files, memory maps and time. Tests replace it to
// inject faults. All paths are UTF-8; all errors are a Status that names the path and the cause.
#ifndef HEADWAY_BASE_ENV_H_
#define HEADWAY_BASE_ENV_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "headway/status.h"

namespace headway {

// Which file it is and when it was changed, by its file system's clock. Equal as long as nobody has
// written to the file, put another one in its place, or set its times: `changed` follows that, too.
struct FileIdentity {
  uint64_t device = 0;
  uint64_t inode = 0;
  int64_t size = 0;
  int64_t modified_nanos = 0;
  int64_t changed_nanos = 0;

  bool operator==(const FileIdentity&) const = default;
};

// A file's bytes, mapped read-only. The mapping lives as long as the object.
class MappedFile {
 public:
  virtual ~MappedFile() = default;
  virtual std::span<const std::byte> bytes() const = 0;
  // As it was when the file was mapped.
  virtual const FileIdentity& identity() const = 0;
  // Gives back the memory of a part of bytes(); reading it again fetches it again.
  virtual void Forget(std::span<const std::byte> part) const = 0;
};

// One piece of a batch of reads or writes. With direct I/O, data, size and offset are multiples of
// kDirectAlignment.
struct IoPiece {
  std::byte* data = nullptr;
  size_t size = 0;
  int64_t offset = 0;
};

inline constexpr size_t kDirectAlignment = 4096;

// A file open for positioned reads and writes. Calls may come from several threads.
class File {
 public:
  virtual ~File() = default;

  // Reads or writes exactly the bytes asked for, all pieces of the batch in flight at once; a short
  // read (end of file) is kCorrupt, a full disk kIo.
  virtual Status Read(std::span<const IoPiece> pieces) = 0;
  virtual Status Write(std::span<const IoPiece> pieces) = 0;
  virtual Status Sync() = 0;                  // fdatasync
  virtual Status Truncate(int64_t size) = 0;  // also grows
  virtual Result<int64_t> Size() = 0;
  virtual Result<FileIdentity> Identity() = 0;
  // Lets others open what is open in kReadWrite or kCreate in kShared; they and this object hold
  // its lock then. kIo, "in use by another process", when one has taken the lock in that moment.
  virtual Status ShareLock() = 0;
  // True when reads and writes go past the page cache (O_DIRECT was accepted).
  virtual bool direct() const = 0;
};

// The most that ReadFile takes: of anything; and of configurations, templates and profiles, whose
// parsed form is many times their text and which are far smaller.
inline constexpr size_t kMaxFileBytes = size_t{1} << 30;
inline constexpr size_t kMaxConfigBytes = size_t{64} << 20;

enum class OpenMode {
  kRead,       // must exist
  kReadWrite,  // must exist; locked: kIo, "in use by another process", when it still is after 1 s
  kShared,     // must exist; locked together with others that share it, waited for as above
  kCreate,     // created or emptied; locked
  kTemporary,  // created, and gone when closed (the path names the directory)
};

// Whether bytes pass through the system's cache. Direct I/O falls back to it where the file system
// has nothing else.
enum class FileIo { kCached, kDirect };

class Env {
 public:
  virtual ~Env() = default;
  static Env* Default();  // POSIX; never null, never freed

  virtual Result<std::unique_ptr<File>> Open(const std::string& path, OpenMode mode, FileIo io) = 0;
  virtual Result<std::unique_ptr<MappedFile>> Map(const std::string& path) = 0;
  // A whole regular file of at most `most` bytes. What is larger or no file (a named pipe could
  // block for ever, a device never end) is kInvalidArgument, before anything is read.
  virtual Result<std::string> ReadFile(const std::string& path, size_t most = kMaxFileBytes) = 0;
  virtual bool Exists(const std::string& path) = 0;
  virtual bool IsDirectory(const std::string& path) = 0;
  // Where symbolic links lead, whether something is there or not: `path` itself where it is none.
  virtual Result<std::string> FollowLinks(const std::string& path) = 0;
  virtual Result<std::vector<std::string>> List(const std::string& directory) = 0;  // names, sorted
  virtual Status Rename(const std::string& from, const std::string& to) = 0;
  virtual Status SyncDirectory(const std::string& directory) = 0;
  virtual Status Remove(const std::string& path) = 0;

  // `bytes` of zeroed memory, aligned to 4096 (to 2 MiB, and advised to use huge pages, from 2 MiB
  // on). kIo when the system has none to give.
  virtual Result<std::byte*> AllocateMemory(size_t bytes) = 0;
  virtual void FreeMemory(std::byte* data, size_t bytes) = 0;

  virtual int64_t NowNanos() = 0;   // monotonic
  virtual int64_t WallNanos() = 0;  // since 1970, as file systems count
};

}  // namespace headway

#endif  // HEADWAY_BASE_ENV_H_
