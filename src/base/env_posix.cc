#include "base/env_posix.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <limits>
#include <new>
#include <system_error>
#include <utility>

#include "base/bytes.h"
#include "base/io_batch.h"

namespace headway {
namespace {

constexpr size_t kPageSize = 4096;
constexpr size_t kHugePageSize = size_t{2} << 20;

std::string ErrorText(int error) { return std::generic_category().message(error); }

// `doing` is "open", "write 4096 bytes at offset 0 of", ...
Status IoError(std::string_view doing, const std::string& path, int error) {
  const StatusCode code = error == ENOENT ? StatusCode::kNotFound : StatusCode::kIo;
  const char* hint =
      error == ENOSPC || error == EDQUOT ? "; free space there or use another disk" : "";
  return Status(code, fmt::format("cannot {} {}: {}{}", doing, path, ErrorText(error), hint));
}

// A file descriptor, closed with the object.
class Fd {
 public:
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&&) = delete;
  ~Fd() {
    if (fd_ >= 0) close(fd_);
  }
  int get() const { return fd_; }
  bool ok() const { return fd_ >= 0; }

 private:
  int fd_;
};

// open(), again after interruptions.
Fd OpenFd(const std::string& path, int flags, mode_t mode = 0) {
  int fd = -1;
  do {
    fd = open(path.c_str(), flags | O_CLOEXEC, mode);
  } while (fd < 0 && errno == EINTR);
  return Fd(fd);
}

const char* KindOfFile(mode_t mode) {
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISCHR(mode)) return "a character device";
  if (S_ISBLK(mode)) return "a block device";
  return S_ISSOCK(mode) ? "a socket" : "not a regular file";
}

int64_t Nanos(const timespec& time) { return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec; }

FileIdentity IdentityOf(const struct stat& info) {
  return {info.st_dev, info.st_ino, info.st_size, Nanos(info.st_mtim), Nanos(info.st_ctim)};
}

Status CheckRegular(int fd, const std::string& path, FileIdentity* identity) {
  struct stat info = {};
  if (fstat(fd, &info) != 0) return IoError("inspect", path, errno);
  if (!S_ISREG(info.st_mode)) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("{} is {}; name a regular file", path, KindOfFile(info.st_mode)));
  }
  *identity = IdentityOf(info);
  return OkStatus();
}

// True when the path still names the open file: no rename or removal came between.
bool Names(const std::string& path, int fd) {
  struct stat named = {};
  struct stat opened = {};
  return stat(path.c_str(), &named) == 0 && fstat(fd, &opened) == 0 &&
         named.st_dev == opened.st_dev && named.st_ino == opened.st_ino;
}

// The claim to write a file, one process's (LOCK_EX) or that of all who share it (LOCK_SH), until
// it is closed. A file system that has no locks gives none. The kernel lets go of the files of a
// killed process a little after its end, when what io_uring has in flight is done: hence some
// patience.
Status LockFile(int fd, const std::string& path, int lock) {
  constexpr int kAttempts = 200;
  constexpr timespec kPause = {.tv_sec = 0, .tv_nsec = 10'000'000};
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    if (flock(fd, lock | LOCK_NB) == 0 || errno != EWOULDBLOCK) return OkStatus();
    nanosleep(&kPause, nullptr);
  }
  return Status(StatusCode::kIo, fmt::format("cannot open {}: in use by another process", path));
}

class PosixFile : public File {
 public:
  PosixFile(std::string path, Fd fd, FileIo io, IoBatcher* batcher)
      : path_(std::move(path)), fd_(std::move(fd)), io_(io), batcher_(batcher) {}

  Status Read(std::span<const IoPiece> pieces) override {
    return Transfer(IoDirection::kRead, pieces);
  }
  Status Write(std::span<const IoPiece> pieces) override {
    return Transfer(IoDirection::kWrite, pieces);
  }

  Status Sync() override {
    if (fdatasync(fd_.get()) != 0) return IoError("sync", path_, errno);
    return OkStatus();
  }

  Status Truncate(int64_t size) override {
    int result = 0;
    do {
      result = ftruncate(fd_.get(), size);
    } while (result != 0 && errno == EINTR);
    if (result != 0) return IoError(fmt::format("set the size to {} bytes of", size), path_, errno);
    return OkStatus();
  }

  Result<int64_t> Size() override {
    struct stat info = {};
    if (fstat(fd_.get(), &info) != 0) return IoError("inspect", path_, errno);
    return static_cast<int64_t>(info.st_size);
  }

  Result<FileIdentity> Identity() override {
    struct stat info = {};
    if (fstat(fd_.get(), &info) != 0) return IoError("inspect", path_, errno);
    return IdentityOf(info);
  }

  Status ShareLock() override { return LockFile(fd_.get(), path_, LOCK_SH); }

  bool direct() const override { return io_ == FileIo::kDirect; }

 private:
  Status Transfer(IoDirection direction, std::span<const IoPiece> pieces) {
    const char* verb = direction == IoDirection::kRead ? "read" : "write";
    for (const IoPiece& piece : pieces) {
      if (piece.offset < 0 || (direct() && !IsAligned(piece))) {
        return Status(StatusCode::kInvalidArgument,
                      fmt::format("cannot {} {} bytes at offset {} of {}: not aligned to {} bytes",
                                  verb, piece.size, piece.offset, path_, kDirectAlignment));
      }
    }
    const IoOutcome outcome = batcher_->Transfer(fd_.get(), direction, pieces, io_);
    const std::string doing = outcome.ok() ? std::string()
                                           : fmt::format("{} {} bytes at offset {} of", verb,
                                                         outcome.piece.size, outcome.piece.offset);
    switch (outcome.kind) {
      case IoOutcome::Kind::kDone:
        return OkStatus();
      case IoOutcome::Kind::kEndOfFile:
        return Status(StatusCode::kCorrupt,
                      fmt::format("cannot {} {}: the file ends before that", doing, path_));
      case IoOutcome::Kind::kError:
        break;
    }
    return IoError(doing, path_, outcome.error);
  }

  static bool IsAligned(const IoPiece& piece) {
    const auto address = reinterpret_cast<uintptr_t>(piece.data);
    return (address | piece.size | static_cast<uint64_t>(piece.offset)) % kDirectAlignment == 0;
  }

  const std::string path_;
  const Fd fd_;
  const FileIo io_;
  IoBatcher* const batcher_;
};

class PosixMappedFile : public MappedFile {
 public:
  PosixMappedFile(std::span<const std::byte> bytes, const FileIdentity& identity)
      : bytes_(bytes), identity_(identity) {}
  ~PosixMappedFile() override {
    if (!bytes_.empty()) munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
  }
  std::span<const std::byte> bytes() const override { return bytes_; }
  const FileIdentity& identity() const override { return identity_; }
  void Forget(std::span<const std::byte> part) const override {
    const auto address = reinterpret_cast<uintptr_t>(part.data());
    const size_t before = address % kPageSize;
    if (part.empty()) return;
    madvise(const_cast<std::byte*>(part.data() - before), part.size() + before, MADV_DONTNEED);
  }

 private:
  const std::span<const std::byte> bytes_;
  const FileIdentity identity_;
};

// Turns O_DIRECT on where the file system takes it. Some (overlays, FUSE) take the flag and refuse
// the first transfer, so one block is read to see.
bool EnableDirect(int fd) {
  const int flags = fcntl(fd, F_GETFL);
  if (flags < 0 || fcntl(fd, F_SETFL, flags | O_DIRECT) != 0) return false;
  alignas(kDirectAlignment) std::byte block[kDirectAlignment];
  if (pread(fd, block, sizeof(block), 0) >= 0 || errno != EINVAL) return true;
  fcntl(fd, F_SETFL, flags);
  return false;
}

Fd OpenTemporary(const std::string& directory) {
  Fd fd = OpenFd(directory, O_TMPFILE | O_RDWR | O_EXCL, 0600);
  if (fd.ok() || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL)) return fd;
  std::string name = directory + "/headway-XXXXXX";
  Fd named(mkostemp(name.data(), O_CLOEXEC));
  if (named.ok()) unlink(name.c_str());
  return named;
}

class PosixEnv : public Env {
 public:
  explicit PosixEnv(const PosixEnvOptions& options) : batcher_(options) {}

  Result<std::unique_ptr<File>> Open(const std::string& path, OpenMode mode, FileIo io) override {
    const bool shares = mode == OpenMode::kShared;
    const bool writes = shares || mode == OpenMode::kReadWrite || mode == OpenMode::kCreate;
    for (;;) {
      Fd fd = mode == OpenMode::kTemporary ? OpenTemporary(path) : OpenNamed(path, mode);
      if (!fd.ok()) {
        return IoError(mode == OpenMode::kTemporary ? "create a temporary file in" : "open", path,
                       errno);
      }
      FileIdentity identity;
      Status status = CheckRegular(fd.get(), path, &identity);
      if (status.ok() && writes) status = LockFile(fd.get(), path, shares ? LOCK_SH : LOCK_EX);
      if (!status.ok()) return status;
      // Who held the lock before may have renamed the file in the meantime.
      if (writes && !Names(path, fd.get())) continue;
      if (mode == OpenMode::kCreate && ftruncate(fd.get(), 0) != 0) {
        return IoError("empty", path, errno);
      }
      return MakeFile(path, std::move(fd), io);
    }
  }

  Result<std::unique_ptr<MappedFile>> Map(const std::string& path) override {
    const Fd fd = OpenNamed(path, OpenMode::kRead);
    if (!fd.ok()) return IoError("open", path, errno);
    FileIdentity identity;
    Status regular = CheckRegular(fd.get(), path, &identity);
    if (!regular.ok()) return regular;
    std::span<const std::byte> bytes;
    if (const auto size = static_cast<size_t>(identity.size); size > 0) {
      void* data = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd.get(), 0);
      if (data == MAP_FAILED) return IoError("map", path, errno);
      bytes = {static_cast<const std::byte*>(data), size};
    }
    return std::unique_ptr<MappedFile>(std::make_unique<PosixMappedFile>(bytes, identity));
  }

  Result<std::string> ReadFile(const std::string& path, size_t most) override {
    const Fd fd = OpenNamed(path, OpenMode::kRead);
    if (!fd.ok()) return IoError("open", path, errno);
    FileIdentity identity;
    Status regular = CheckRegular(fd.get(), path, &identity);
    if (!regular.ok()) return regular;
    const auto known = static_cast<size_t>(identity.size);  // 0 for a file of /proc
    if (known > most) return TooLarge(path, most);
    try {
      // One more than the file has, so that one read sees its end.
      std::string text(std::min(std::max(known + 1, kPageSize), most + 1), '\0');
      size_t size = 0;
      for (;;) {
        const ssize_t count = read(fd.get(), text.data() + size, text.size() - size);
        if (count < 0 && errno == EINTR) continue;
        if (count < 0) return IoError("read", path, errno);
        size += static_cast<size_t>(count);
        if (count == 0) break;
        if (size > most) return TooLarge(path, most);  // it grows meanwhile
        if (size == text.size()) text.resize(std::min(2 * size, most + 1));
      }
      text.resize(size);
      return text;
    } catch (const std::bad_alloc&) {
      return IoError("read", path, ENOMEM);
    }
  }

  bool Exists(const std::string& path) override { return access(path.c_str(), F_OK) == 0; }

  bool IsDirectory(const std::string& path) override {
    struct stat info = {};
    return stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
  }

  Result<std::string> FollowLinks(const std::string& path) override {
    constexpr int kMostLinks = 40;  // as many as the kernel follows
    std::string at = path;
    for (int i = 0; i <= kMostLinks; ++i) {
      char target[PATH_MAX];
      const ssize_t size = readlink(at.c_str(), target, sizeof(target));
      if (size < 0) return at;  // no link, or nothing
      const std::string to(target, static_cast<size_t>(size));
      const size_t slash = at.rfind('/');
      const bool beside = !to.starts_with('/') && slash != std::string::npos;
      at = beside ? at.substr(0, slash + 1) + to : to;
    }
    return IoError("open", path, ELOOP);
  }

  Result<std::vector<std::string>> List(const std::string& directory) override {
    DIR* stream = opendir(directory.c_str());
    if (stream == nullptr) return IoError("list", directory, errno);
    std::vector<std::string> names;
    errno = 0;
    for (const dirent* entry = readdir(stream); entry != nullptr; entry = readdir(stream)) {
      std::string name = entry->d_name;
      if (name != "." && name != "..") names.push_back(std::move(name));
      errno = 0;
    }
    const int error = errno;
    closedir(stream);
    if (error != 0) return IoError("list", directory, error);
    std::sort(names.begin(), names.end());
    return names;
  }

  Status Rename(const std::string& from, const std::string& to) override {
    if (rename(from.c_str(), to.c_str()) == 0) return OkStatus();
    return IoError(fmt::format("rename {} to", from), to, errno);
  }

  Status SyncDirectory(const std::string& directory) override {
    const Fd fd = OpenFd(directory, O_RDONLY | O_DIRECTORY);
    if (!fd.ok()) return IoError("open", directory, errno);
    if (fsync(fd.get()) != 0) return IoError("sync", directory, errno);
    return OkStatus();
  }

  Status Remove(const std::string& path) override {
    if (unlink(path.c_str()) == 0) return OkStatus();
    return IoError("remove", path, errno);
  }

  Result<std::byte*> AllocateMemory(size_t bytes) override;
  void FreeMemory(std::byte* data, size_t bytes) override;

  int64_t NowNanos() override {
    timespec now = {};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return Nanos(now);
  }

  int64_t WallNanos() override {
    timespec now = {};
    clock_gettime(CLOCK_REALTIME, &now);
    return Nanos(now);
  }

 private:
  static Fd OpenNamed(const std::string& path, OpenMode mode) {
    int flags = O_RDONLY;
    if (mode == OpenMode::kReadWrite || mode == OpenMode::kShared) flags = O_RDWR;
    if (mode == OpenMode::kCreate) flags = O_RDWR | O_CREAT;
    // O_NONBLOCK keeps a named pipe, which is refused later, from blocking for ever. It must not
    // stay: io_uring would answer EAGAIN instead of waiting for the disk.
    Fd fd = OpenFd(path, flags | O_NONBLOCK, 0644);
    if (fd.ok()) fcntl(fd.get(), F_SETFL, flags);
    return fd;
  }

  std::unique_ptr<File> MakeFile(const std::string& path, Fd fd, FileIo wanted) {
    const bool direct = wanted == FileIo::kDirect && EnableDirect(fd.get());
    const FileIo io = direct ? FileIo::kDirect : FileIo::kCached;
    return std::make_unique<PosixFile>(path, std::move(fd), io, &batcher_);
  }

  static Status TooLarge(const std::string& path, size_t most) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("{} is larger than {}, the most that is read of such a file", path,
                              FormatBytes(static_cast<int64_t>(most))));
  }

  IoBatcher batcher_;
};

// Bytes that a mapping of `bytes` takes: whole pages, at least one.
size_t MappedBytes(size_t bytes) {
  return (std::max<size_t>(bytes, 1) + kPageSize - 1) / kPageSize * kPageSize;
}

Result<std::byte*> PosixEnv::AllocateMemory(size_t bytes) {
  const bool huge = bytes >= kHugePageSize;
  const size_t slack = huge ? kHugePageSize : 0;
  int error = ENOMEM;
  if (bytes <= std::numeric_limits<size_t>::max() / 2) {
    const size_t size = MappedBytes(bytes);
    void* mapped =
        mmap(nullptr, size + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped != MAP_FAILED) {
      auto* data = static_cast<std::byte*>(mapped);
      if (huge) {
        // Keep the aligned part of what was mapped too large.
        const auto address = reinterpret_cast<uintptr_t>(data);
        const size_t head = (kHugePageSize - address % kHugePageSize) % kHugePageSize;
        if (head > 0) munmap(data, head);
        if (slack > head) munmap(data + head + size, slack - head);
        data += head;
        madvise(data, size, MADV_HUGEPAGE);  // advice: where it is refused, small pages do
      }
      return data;
    }
    error = errno;
  }
  const auto shown = static_cast<int64_t>(
      std::min<size_t>(bytes, static_cast<size_t>(std::numeric_limits<int64_t>::max())));
  return Status(StatusCode::kIo, fmt::format("cannot allocate {} of memory: {}; lower the budgets",
                                             FormatBytes(shown), ErrorText(error)));
}

void PosixEnv::FreeMemory(std::byte* data, size_t bytes) {
  if (data != nullptr) munmap(data, MappedBytes(bytes));
}

}  // namespace

std::unique_ptr<Env> NewPosixEnv(const PosixEnvOptions& options) {
  return std::make_unique<PosixEnv>(options);
}

Env* Env::Default() {
  static Env* const env = NewPosixEnv({}).release();
  return env;
}

}  // namespace headway
