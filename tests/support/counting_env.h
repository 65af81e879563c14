// CountingEnv: an Env for tests that says how much is read of files.
#ifndef HEADWAY_TESTS_SUPPORT_COUNTING_ENV_H_
#define HEADWAY_TESTS_SUPPORT_COUNTING_ENV_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "base/fault_env.h"

namespace headway::testing {

// Counts the bytes that files are asked for.
class CountingFile : public File {
 public:
  CountingFile(std::unique_ptr<File> file, std::atomic<int64_t>* bytes)
      : file_(std::move(file)), bytes_(*bytes) {}

  Status Read(std::span<const IoPiece> pieces) override {
    for (const IoPiece& piece : pieces) bytes_ += static_cast<int64_t>(piece.size);
    return file_->Read(pieces);
  }
  Status Write(std::span<const IoPiece> pieces) override { return file_->Write(pieces); }
  Status Sync() override { return file_->Sync(); }
  Status Truncate(int64_t size) override { return file_->Truncate(size); }
  Result<int64_t> Size() override { return file_->Size(); }
  Result<FileIdentity> Identity() override { return file_->Identity(); }
  Status ShareLock() override { return file_->ShareLock(); }
  bool direct() const override { return file_->direct(); }

 private:
  const std::unique_ptr<File> file_;
  std::atomic<int64_t>& bytes_;
};

class CountingEnv : public FaultEnv {
 public:
  CountingEnv() : FaultEnv(Env::Default()) {}

  Result<std::unique_ptr<File>> Open(const std::string& path, OpenMode mode, FileIo io) override {
    Result<std::unique_ptr<File>> file = FaultEnv::Open(path, mode, io);
    if (!file.ok()) return file;
    return std::unique_ptr<File>(new CountingFile(std::move(*file), &bytes_));
  }
  int64_t bytes() const { return bytes_; }

 private:
  std::atomic<int64_t> bytes_ = 0;
};

}  // namespace headway::testing

#endif  // HEADWAY_TESTS_SUPPORT_COUNTING_ENV_H_
