#include "base/fault_env.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace headway {

class FaultEnv::FaultFile : public File {
 public:
  FaultFile(FaultEnv* env, std::string path, std::unique_ptr<File> base)
      : env_(env), path_(std::move(path)), base_(std::move(base)) {
    const std::lock_guard<std::mutex> lock(env_->mutex_);
    ++env_->live_.files;
  }

  ~FaultFile() override {
    const std::lock_guard<std::mutex> lock(env_->mutex_);
    --env_->live_.files;
  }

  Status Read(std::span<const IoPiece> pieces) override {
    Status status = env_->Count(kFaultRead, "read " + path_);
    if (!status.ok()) return status;
    return base_->Read(pieces);
  }

  Status Write(std::span<const IoPiece> pieces) override {
    Status status = env_->Count(kFaultWrite, "write " + path_);
    if (!status.ok()) return status;
    // A disk that fills up takes the first pieces and refuses the rest.
    size_t fit = 0;
    bool full = false;
    for (; fit < pieces.size() && !full; ++fit) {
      const auto size = static_cast<int64_t>(pieces[fit].size);
      full = env_->TakeDisk(size) < size;
    }
    if (full) --fit;
    status = base_->Write(pieces.first(fit));
    if (!status.ok() || !full) return status;
    return Status(StatusCode::kIo, fmt::format("cannot write {} bytes at offset {} of {}: No space "
                                               "left on device",
                                               pieces[fit].size, pieces[fit].offset, path_));
  }

  Status Sync() override {
    Status status = env_->Count(kFaultSync, "sync " + path_);
    if (!status.ok()) return status;
    return base_->Sync();
  }

  Status Truncate(int64_t size) override {
    Status status = env_->Count(kFaultTruncate, "set the size of " + path_);
    if (!status.ok()) return status;
    return base_->Truncate(size);
  }

  Result<int64_t> Size() override { return base_->Size(); }
  Result<FileIdentity> Identity() override { return base_->Identity(); }
  Status ShareLock() override { return base_->ShareLock(); }
  bool direct() const override { return base_->direct(); }

 private:
  FaultEnv* const env_;
  const std::string path_;
  const std::unique_ptr<File> base_;
};

class FaultEnv::FaultMap : public MappedFile {
 public:
  FaultMap(FaultEnv* env, std::unique_ptr<MappedFile> base) : env_(env), base_(std::move(base)) {
    const std::lock_guard<std::mutex> lock(env_->mutex_);
    ++env_->live_.maps;
  }
  ~FaultMap() override {
    const std::lock_guard<std::mutex> lock(env_->mutex_);
    --env_->live_.maps;
  }
  std::span<const std::byte> bytes() const override { return base_->bytes(); }
  const FileIdentity& identity() const override { return base_->identity(); }
  void Forget(std::span<const std::byte> part) const override { base_->Forget(part); }

 private:
  FaultEnv* const env_;
  const std::unique_ptr<MappedFile> base_;
};

void FaultEnv::FailAt(int64_t n, FaultTimes times) {
  const std::lock_guard<std::mutex> lock(mutex_);
  fail_at_ = n;
  times_ = times;
  calls_ = 0;
  faults_ = 0;
}

void FaultEnv::SetKinds(uint32_t kinds) {
  const std::lock_guard<std::mutex> lock(mutex_);
  kinds_ = kinds;
}

int64_t FaultEnv::calls() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return calls_;
}

int64_t FaultEnv::faults() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return faults_;
}

void FaultEnv::SetDiskCapacity(int64_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  disk_left_ = bytes;
}

FaultEnv::Live FaultEnv::live() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return live_;
}

int64_t FaultEnv::LiveAllocations() const { return live().allocations; }
int64_t FaultEnv::LiveBytes() const { return live().bytes; }
int64_t FaultEnv::LiveFiles() const { return live().files; }
int64_t FaultEnv::LiveMaps() const { return live().maps; }

Status FaultEnv::Count(FaultKind kind, const std::string& what) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if ((kinds_ & kind) == 0) return OkStatus();
  ++calls_;
  const bool fails =
      fail_at_ > 0 && (times_ == FaultTimes::kForGood ? calls_ >= fail_at_ : calls_ == fail_at_);
  if (!fails) return OkStatus();
  ++faults_;
  return Status(StatusCode::kIo, fmt::format("cannot {}: injected fault", what));
}

int64_t FaultEnv::TakeDisk(int64_t wanted) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const int64_t taken = std::min(wanted, disk_left_);
  disk_left_ -= taken;
  return taken;
}

Result<std::unique_ptr<File>> FaultEnv::Open(const std::string& path, OpenMode mode, FileIo io) {
  Status status = Count(kFaultOpen, "open " + path);
  if (!status.ok()) return status;
  Result<std::unique_ptr<File>> file = base_->Open(path, mode, io);
  if (!file.ok()) return file.status();
  return std::unique_ptr<File>(std::make_unique<FaultFile>(this, path, std::move(*file)));
}

Result<std::unique_ptr<MappedFile>> FaultEnv::Map(const std::string& path) {
  Status status = Count(kFaultMap, "map " + path);
  if (!status.ok()) return status;
  Result<std::unique_ptr<MappedFile>> file = base_->Map(path);
  if (!file.ok()) return file.status();
  return std::unique_ptr<MappedFile>(std::make_unique<FaultMap>(this, std::move(*file)));
}

Result<std::string> FaultEnv::ReadFile(const std::string& path, size_t most) {
  Status status = Count(kFaultRead, "read " + path);
  if (!status.ok()) return status;
  return base_->ReadFile(path, most);
}

Result<std::vector<std::string>> FaultEnv::List(const std::string& directory) {
  Status status = Count(kFaultRead, "list " + directory);
  if (!status.ok()) return status;
  return base_->List(directory);
}

Status FaultEnv::Rename(const std::string& from, const std::string& to) {
  Status status = Count(kFaultRename, fmt::format("rename {} to {}", from, to));
  if (!status.ok()) return status;
  return base_->Rename(from, to);
}

Status FaultEnv::SyncDirectory(const std::string& directory) {
  Status status = Count(kFaultSync, "sync " + directory);
  if (!status.ok()) return status;
  return base_->SyncDirectory(directory);
}

Status FaultEnv::Remove(const std::string& path) {
  Status status = Count(kFaultRemove, "remove " + path);
  if (!status.ok()) return status;
  return base_->Remove(path);
}

Result<std::byte*> FaultEnv::AllocateMemory(size_t bytes) {
  Status status = Count(kFaultAllocate, fmt::format("allocate {} bytes", bytes));
  if (!status.ok()) return status;
  Result<std::byte*> data = base_->AllocateMemory(bytes);
  if (data.ok()) {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++live_.allocations;
    live_.bytes += static_cast<int64_t>(bytes);
  }
  return data;
}

void FaultEnv::FreeMemory(std::byte* data, size_t bytes) {
  if (data == nullptr) return;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    --live_.allocations;
    live_.bytes -= static_cast<int64_t>(bytes);
  }
  base_->FreeMemory(data, bytes);
}

}  // namespace headway
