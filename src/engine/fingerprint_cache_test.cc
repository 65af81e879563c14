#include "engine/fingerprint_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "base/fault_env.h"
#include "base/test_dir.h"
#include "base/user_cache.h"

namespace headway {
namespace {

namespace fs = std::filesystem;
constexpr int64_t kSecond = 1'000'000'000;

// Counts the pieces of mapped files that were read to be hashed, and has a clock that is ahead.
class ReadingEnv : public FaultEnv {
 public:
  ReadingEnv() : FaultEnv(Env::Default()) {}
  int64_t WallNanos() override { return FaultEnv::WallNanos() + ahead; }
  Result<std::unique_ptr<MappedFile>> Map(const std::string& path) override {
    Result<std::unique_ptr<MappedFile>> file = FaultEnv::Map(path);
    if (!file.ok()) return file.status();
    return std::unique_ptr<MappedFile>(std::make_unique<Counted>(&pieces, std::move(*file)));
  }

  int64_t pieces = 0;
  int64_t ahead = 10 * kSecond;

 private:
  class Counted : public MappedFile {
   public:
    Counted(int64_t* pieces, std::unique_ptr<MappedFile> base)
        : pieces_(pieces), base_(std::move(base)) {}
    std::span<const std::byte> bytes() const override { return base_->bytes(); }
    const FileIdentity& identity() const override { return base_->identity(); }
    void Forget(std::span<const std::byte> part) const override {
      ++*pieces_;
      base_->Forget(part);
    }

   private:
    int64_t* const pieces_;
    const std::unique_ptr<MappedFile> base_;
  };
};

class FingerprintCache : public testing::Test {
 protected:
  void SetUp() override {
    setenv("XDG_CACHE_HOME", dir_.path().c_str(), 1);
    folder_ = dir_.File("model");
    fs::copy(HEADWAY_SOURCE_DIR "/tests/golden/models/llama2", folder_);
    file_ = folder_ + "/model.safetensors";
  }
  void TearDown() override { unsetenv("XDG_CACHE_HOME"); }

  std::unique_ptr<Model> Load() {
    Result<std::unique_ptr<Model>> model = Model::Load(&env_, folder_);
    EXPECT_TRUE(model.ok()) << model.status().message();
    return std::move(*model);
  }
  // Of the model as it is now; whether it was read for that goes to *read.
  uint64_t Find(bool* read) {
    const std::unique_ptr<Model> model = Load();
    env_.pieces = 0;
    const Result<uint64_t> found = WeightsFingerprint(env_, *model, nullptr);
    EXPECT_TRUE(found.ok()) << found.status().message();
    *read = env_.pieces > 0;
    EXPECT_EQ(*found, model->Fingerprint(nullptr));
    return *found;
  }
  bool Reads() {
    bool read = false;
    Find(&read);
    return read;
  }
  void Flip(int64_t at) { FlipBit(file_, at); }
  std::string Text() { return *env_.ReadFile(FingerprintCachePath(), kMaxFileBytes); }

  TestDir dir_;
  ReadingEnv env_;
  std::string folder_, file_;
};

TEST_F(FingerprintCache, ASecondRunReadsNothing) {
  EXPECT_TRUE(Reads());
  EXPECT_FALSE(Reads());
  EXPECT_FALSE(Reads());
  EXPECT_THAT(fs::path(FingerprintCachePath()).string(), testing::StartsWith(dir_.path()));
}

TEST_F(FingerprintCache, AChangedFileIsReadAgain) {
  EXPECT_TRUE(Reads());
  bool read = false;
  const uint64_t before = Find(&read);
  // With the times that it had.
  const auto modified = fs::last_write_time(file_);
  Flip(10000);
  fs::last_write_time(file_, modified);
  EXPECT_NE(Find(&read), before);
  EXPECT_TRUE(read);
  // The same bytes as another file.
  fs::copy_file(file_, file_ + ".new");
  fs::rename(file_ + ".new", file_);
  EXPECT_TRUE(Reads());
  EXPECT_FALSE(Reads());
}

// Another change in the same tick of the clock would leave the same times.
TEST_F(FingerprintCache, AFileThatWasJustWrittenIsNotKept) {
  env_.ahead = 0;
  Flip(10000);
  EXPECT_TRUE(Reads());
  EXPECT_TRUE(Reads());
  EXPECT_FALSE(env_.Exists(FingerprintCachePath()));
  env_.ahead = -3600 * kSecond;  // a clock that was set back
  EXPECT_TRUE(Reads());
  EXPECT_TRUE(Reads());
  env_.ahead = 3 * kSecond;
  EXPECT_TRUE(Reads());
  EXPECT_FALSE(Reads());
}

TEST_F(FingerprintCache, AFileThatChangesAfterItWasLoadedIsAnError) {
  for (const bool known : {false, true}) {
    EXPECT_TRUE(!known || Reads());
    const std::unique_ptr<Model> model = Load();
    Flip(10000);
    const Result<uint64_t> found = WeightsFingerprint(env_, *model, nullptr);
    EXPECT_EQ(found.status().code(), StatusCode::kIo);
    EXPECT_THAT(found.status().message(), testing::HasSubstr(file_ + " was changed"));
  }
}

TEST_F(FingerprintCache, DamageMakesItRead) {
  EXPECT_TRUE(Reads());
  const std::string good = Text();
  for (size_t at = 0; at < good.size(); ++at) {
    std::string bad = good;
    bad[at] ^= 1;
    ASSERT_TRUE(WriteTextFile(env_, FingerprintCachePath(), bad).ok());
    EXPECT_TRUE(Reads() || at + 1 == good.size()) << at;
  }
  for (const std::string& bad :
       {std::string(), std::string("\n\n\n"), good.substr(0, 40), std::string(100000, '0'),
        std::string("{}"), std::string(good.size(), '\0'), good.substr(1)}) {
    ASSERT_TRUE(WriteTextFile(env_, FingerprintCachePath(), bad).ok());
    EXPECT_TRUE(Reads());
    EXPECT_FALSE(Reads()) << "what was damaged is replaced";
  }
}

TEST_F(FingerprintCache, WhatIsNoFileOrCannotBeWrittenCostsOnlyReading) {
  const fs::path path = FingerprintCachePath();
  fs::create_directories(path.parent_path());
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  EXPECT_TRUE(Reads());
  EXPECT_FALSE(Reads()) << "a pipe was replaced";
  fs::remove(path);
  fs::create_directory(path);
  EXPECT_TRUE(Reads());
  EXPECT_TRUE(Reads());
  EXPECT_EQ(std::distance(fs::directory_iterator(path.parent_path()), {}), 1) << "left behind";
  fs::remove_all(path.parent_path());
  std::ofstream(path.parent_path()) << "a file where the folder would be";
  EXPECT_TRUE(Reads());
  unsetenv("XDG_CACHE_HOME");
  const std::string home = std::getenv("HOME") == nullptr ? "" : std::getenv("HOME");
  unsetenv("HOME");
  EXPECT_EQ(FingerprintCachePath(), "");
  EXPECT_TRUE(Reads());
  setenv("HOME", home.c_str(), 1);
}

TEST_F(FingerprintCache, KeepsTheNewestOfMany) {
  EXPECT_TRUE(Reads());
  const std::string first = Text();
  for (int i = 0; i < 300; ++i) {
    fs::last_write_time(file_, fs::file_time_type::clock::now() - std::chrono::hours(1 + i));
    ASSERT_TRUE(Reads());
  }
  const std::string text = Text();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 256);
  EXPECT_EQ(text.find(first), std::string::npos);
  EXPECT_FALSE(Reads());
}

}  // namespace
}  // namespace headway
