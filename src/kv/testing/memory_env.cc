#include "kv/testing/memory_env.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace headway::kv {
namespace {

// What a disk writes whole or not at all.
constexpr size_t kSectorBytes = 512;

void WriteAt(int64_t offset, std::span<const std::byte> data, MemoryEnv::Bytes* bytes) {
  const auto at = static_cast<size_t>(offset);
  bytes->resize(std::max(bytes->size(), at + data.size()));
  std::copy(data.begin(), data.end(), bytes->begin() + offset);
}

Status NotFound(const std::string& path) {
  return Status(StatusCode::kNotFound, "cannot open " + path + ": No such file or directory");
}

}  // namespace

struct MemoryEnv::Inode {
  Bytes first;  // before the first change
  Bytes bytes;
  int holders = 0;  // of its lock: one, or those that share it
  bool shared = false;
};

struct MemoryEnv::Change {
  enum class Kind { kWrite, kTruncate, kSync, kLink, kUnlink, kSyncDirectory };
  Kind kind;
  std::shared_ptr<Inode> inode;
  int64_t offset = 0;  // of a write; the size of a truncation
  Bytes data;
  std::string path;  // of a link or unlink
  std::string from;  // of a link that is a rename: the name that goes
};

class MemoryEnv::OpenFile : public File {
 public:
  OpenFile(MemoryEnv* env, std::string path, std::shared_ptr<Inode> inode, FileIo io, bool locks)
      : env_(env),
        path_(std::move(path)),
        inode_(std::move(inode)),
        direct_(io == FileIo::kDirect),
        locks_(locks) {}
  ~OpenFile() override {
    const std::lock_guard<std::mutex> lock(env_->mutex_);
    if (locks_) --inode_->holders;
  }

  Status Read(std::span<const IoPiece> pieces) override {
    const std::lock_guard<std::mutex> lock(env_->mutex_);
    for (const IoPiece& piece : pieces) {
      if (!Allowed(piece)) return NotAligned();
      const auto at = static_cast<size_t>(piece.offset);
      if (at > inode_->bytes.size() || piece.size > inode_->bytes.size() - at) {
        return Status(StatusCode::kCorrupt, "cannot read " + path_ + ": the file ends before that");
      }
      std::memcpy(piece.data, inode_->bytes.data() + at, piece.size);
    }
    return OkStatus();
  }

  Status Write(std::span<const IoPiece> pieces) override {
    const std::lock_guard<std::mutex> lock(env_->mutex_);
    for (const IoPiece& piece : pieces) {
      if (!Allowed(piece)) return NotAligned();
      WriteAt(piece.offset, {piece.data, piece.size}, &inode_->bytes);
      env_->Log({.kind = Change::Kind::kWrite,
                 .inode = inode_,
                 .offset = piece.offset,
                 .data = Bytes(piece.data, piece.data + piece.size),
                 .path = {},
                 .from = {}});
    }
    return OkStatus();
  }

  Status Sync() override {
    const std::lock_guard<std::mutex> lock(env_->mutex_);
    env_->Log({.kind = Change::Kind::kSync, .inode = inode_, .data = {}, .path = {}, .from = {}});
    return OkStatus();
  }

  Status Truncate(int64_t size) override {
    const std::lock_guard<std::mutex> lock(env_->mutex_);
    inode_->bytes.resize(static_cast<size_t>(size));
    env_->Log({.kind = Change::Kind::kTruncate,
               .inode = inode_,
               .offset = size,
               .data = {},
               .path = {},
               .from = {}});
    return OkStatus();
  }

  Result<int64_t> Size() override {
    const std::lock_guard<std::mutex> lock(env_->mutex_);
    return static_cast<int64_t>(inode_->bytes.size());
  }

  Result<FileIdentity> Identity() override { return FileIdentity(); }  // it keeps none

  Status ShareLock() override {
    const std::lock_guard<std::mutex> lock(env_->mutex_);
    if (env_->refuses_sharing_) return Status(StatusCode::kIo, path_ + ": in use");
    inode_->shared = true;
    return OkStatus();
  }

  bool direct() const override { return direct_; }

 private:
  bool Allowed(const IoPiece& piece) const {
    const auto address = reinterpret_cast<uintptr_t>(piece.data);
    const auto offset = static_cast<uint64_t>(piece.offset);
    return piece.offset >= 0 &&
           (!direct_ || (address | piece.size | offset) % kDirectAlignment == 0);
  }
  Status NotAligned() const {
    return Status(StatusCode::kInvalidArgument, "transfer of " + path_ + " is not aligned");
  }

  MemoryEnv* const env_;
  const std::string path_;
  const std::shared_ptr<Inode> inode_;
  const bool direct_;
  const bool locks_;
};

class MemoryEnv::Mapping : public MappedFile {
 public:
  explicit Mapping(Bytes bytes) : bytes_(std::move(bytes)) {}
  std::span<const std::byte> bytes() const override { return bytes_; }
  const FileIdentity& identity() const override { return identity_; }
  void Forget(std::span<const std::byte>) const override {}

 private:
  const Bytes bytes_;
  const FileIdentity identity_;
};

MemoryEnv::MemoryEnv(const Disk& disk) {
  for (const auto& [path, bytes] : disk) {
    names_[path] = std::make_shared<Inode>(Inode{bytes, bytes, 0, false});
  }
  first_names_ = names_;
}

void MemoryEnv::Log(Change change) { log_.push_back(std::make_shared<Change>(std::move(change))); }

size_t MemoryEnv::changes() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return log_.size();
}

MemoryEnv::Disk MemoryEnv::Contents() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  Disk disk;
  for (const auto& [path, inode] : names_) disk[path] = inode->bytes;
  return disk;
}

void MemoryEnv::Apply(const Change& change, Bytes* bytes) {
  if (change.kind == Change::Kind::kTruncate) bytes->resize(static_cast<size_t>(change.offset));
  if (change.kind == Change::Kind::kWrite) WriteAt(change.offset, change.data, bytes);
}

// One inode on its way to the crash.
struct MemoryEnv::Replay {
  Bytes bytes;                          // what is safe
  std::vector<const Change*> unsynced;  // what may be lost

  void Settle() {
    for (const Change* change : unsynced) Apply(*change, &bytes);
    unsynced.clear();
  }

  // Some sectors of some of what was not synced, in any order.
  void Tear(Random* random) {
    for (size_t i = unsynced.size(); i > 1; --i) {
      const auto other = static_cast<size_t>(random->Below(static_cast<int64_t>(i)));
      if (random->Below(2) == 0) std::swap(unsynced[i - 1], unsynced[other]);
    }
    for (const Change* change : unsynced) {
      const int64_t fate = random->Below(4);  // lost, whole or, twice as often, torn
      if (fate == 0) continue;
      if (fate == 1 || change->kind == Change::Kind::kTruncate) {
        Apply(*change, &bytes);
        continue;
      }
      for (size_t at = 0; at < change->data.size(); at += kSectorBytes) {
        if (random->Below(2) == 0) continue;
        const size_t count = std::min(kSectorBytes, change->data.size() - at);
        WriteAt(change->offset + static_cast<int64_t>(at), {change->data.data() + at, count},
                &bytes);
      }
    }
  }
};

MemoryEnv::Disk MemoryEnv::AfterCrash(size_t changes, Random* random) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::map<Inode*, Replay> inodes;
  const auto replay = [&inodes](Inode* inode) -> Replay& {
    return inodes.try_emplace(inode, Replay{inode->first, {}}).first->second;
  };
  // Directories are journalled: of what was not synced, the first changes survive.
  size_t safe = 0;
  for (size_t i = 0; i < changes; ++i) {
    const Change& change = *log_[i];
    if (change.kind == Change::Kind::kSyncDirectory) safe = i;
    if (change.kind == Change::Kind::kSync) replay(change.inode.get()).Settle();
    if (change.kind == Change::Kind::kWrite || change.kind == Change::Kind::kTruncate) {
      replay(change.inode.get()).unsynced.push_back(&change);
    }
  }
  for (auto& [inode, state] : inodes) state.Tear(random);
  const size_t linked =
      safe + static_cast<size_t>(random->Below(static_cast<int64_t>(changes - safe) + 1));
  Names names = first_names_;
  for (size_t i = 0; i < linked; ++i) {
    const Change& change = *log_[i];
    if (change.kind == Change::Kind::kLink) {
      names[change.path] = change.inode;
      if (!change.from.empty()) names.erase(change.from);
    }
    if (change.kind == Change::Kind::kUnlink) names.erase(change.path);
  }
  Disk disk;
  for (const auto& [path, inode] : names) disk[path] = replay(inode.get()).bytes;
  return disk;
}

Result<std::shared_ptr<MemoryEnv::Inode>> MemoryEnv::Find(const std::string& path) const {
  const auto found = names_.find(path);
  if (found == names_.end()) return NotFound(path);
  return found->second;
}

Result<std::unique_ptr<File>> MemoryEnv::Open(const std::string& path, OpenMode mode, FileIo io) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const bool shares = mode == OpenMode::kShared;
  const bool locks = shares || mode == OpenMode::kReadWrite || mode == OpenMode::kCreate;
  std::shared_ptr<Inode> inode;
  const auto found = names_.find(path);
  if (mode == OpenMode::kTemporary) {
    inode = std::make_shared<Inode>();
  } else if (found != names_.end()) {
    inode = found->second;
  } else if (mode == OpenMode::kCreate) {
    inode = names_[path] = std::make_shared<Inode>();
    Log({.kind = Change::Kind::kLink, .inode = inode, .data = {}, .path = path, .from = {}});
  } else {
    return NotFound(path);
  }
  if (locks && inode->holders > 0 && !(shares && inode->shared)) {
    return Status(StatusCode::kIo, "cannot open " + path + ": in use by another process");
  }
  if (locks && inode->holders++ == 0) inode->shared = shares;
  if (mode == OpenMode::kCreate && !inode->bytes.empty()) {
    inode->bytes.clear();
    Log({.kind = Change::Kind::kTruncate, .inode = inode, .data = {}, .path = {}, .from = {}});
  }
  return std::unique_ptr<File>(std::make_unique<OpenFile>(this, path, std::move(inode), io, locks));
}

Result<std::unique_ptr<MappedFile>> MemoryEnv::Map(const std::string& path) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Result<std::shared_ptr<Inode>> inode = Find(path);
  if (!inode.ok()) return inode.status();
  return std::unique_ptr<MappedFile>(std::make_unique<Mapping>((*inode)->bytes));
}

Result<std::string> MemoryEnv::ReadFile(const std::string& path, size_t most) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Result<std::shared_ptr<Inode>> inode = Find(path);
  if (!inode.ok()) return inode.status();
  const Bytes& bytes = (*inode)->bytes;
  if (bytes.size() > most) return Status(StatusCode::kInvalidArgument, path + " is too large");
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

bool MemoryEnv::Exists(const std::string& path) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return names_.contains(path);
}

Result<std::vector<std::string>> MemoryEnv::List(const std::string& directory) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<std::string> names;
  for (const auto& [path, inode] : names_) {
    if (path.starts_with(directory + "/")) names.push_back(path.substr(directory.size() + 1));
  }
  return names;
}

Status MemoryEnv::Rename(const std::string& from, const std::string& to) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Result<std::shared_ptr<Inode>> inode = Find(from);
  if (!inode.ok()) return inode.status();
  names_[to] = *inode;
  names_.erase(from);
  Log({.kind = Change::Kind::kLink, .inode = *inode, .data = {}, .path = to, .from = from});
  return OkStatus();
}

Status MemoryEnv::SyncDirectory(const std::string&) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Log({.kind = Change::Kind::kSyncDirectory, .inode = {}, .data = {}, .path = {}, .from = {}});
  return OkStatus();
}

Status MemoryEnv::Remove(const std::string& path) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (names_.erase(path) == 0) return NotFound(path);
  Log({.kind = Change::Kind::kUnlink, .inode = {}, .data = {}, .path = path, .from = {}});
  return OkStatus();
}

Result<std::byte*> MemoryEnv::AllocateMemory(size_t bytes) {
  const size_t whole =
      (std::max<size_t>(bytes, 1) + kDirectAlignment - 1) / kDirectAlignment * kDirectAlignment;
  void* data = std::aligned_alloc(kDirectAlignment, whole);
  if (data == nullptr) return Status(StatusCode::kIo, "cannot allocate memory");
  std::memset(data, 0, whole);
  return static_cast<std::byte*>(data);
}

void MemoryEnv::FreeMemory(std::byte* data, size_t) { std::free(data); }

}  // namespace headway::kv
