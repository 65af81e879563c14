#include "model/weights/disk_block.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/bytes.h"
#include "base/fault_env.h"
#include "base/random.h"
#include "base/test_dir.h"

namespace headway {
namespace {

constexpr std::byte kPoison{0xA5};

// Files of random bytes, and blocks of tensors that lie anywhere in them.
class DiskBlockTest : public ::testing::Test {
 protected:
  int64_t ModifiedNanos(const std::string& path) {
    return (*env_.Open(path, OpenMode::kRead, FileIo::kCached))->Identity()->modified_nanos;
  }
  void MakeFile(int64_t bytes) {
    std::string data;
    for (int64_t i = 0; i < bytes; ++i) data.push_back(static_cast<char>(random_.Below(256)));
    const std::string path = dir_.File(std::to_string(data_.size()));
    std::ofstream(path, std::ios::binary) << data;
    Result<std::unique_ptr<WeightFile>> file =
        WeightFile::Open(env_, path, bytes, ModifiedNanos(path));
    ASSERT_TRUE(file.ok()) << file.status().message();
    files_.push_back(std::move(*file));
    data_.push_back(std::move(data));
    paths_.push_back(path);
  }

  DiskBlock::Tensor Anywhere(size_t file, int64_t at) {
    const auto size = static_cast<int64_t>(data_[file].size());
    const int64_t offset = random_.Below(size);
    return {files_[file].get(), offset, 1 + random_.Below(size - offset), at};
  }

  // The block as kernels would find it.
  Result<std::string> Load(const DiskBlock& block, int64_t bytes) {
    Result<std::byte*> memory =
        env_.AllocateMemory(static_cast<size_t>(DiskBlock::MostReadBytes(bytes, /*tensors=*/7)));
    EXPECT_TRUE(memory.ok());
    EXPECT_LE(block.read_bytes(), DiskBlock::MostReadBytes(bytes, /*tensors=*/7));
    std::fill_n(*memory, block.read_bytes(), kPoison);
    const Status status = block.Read(*memory);
    std::string loaded(static_cast<size_t>(bytes), '\0');
    for (const DiskBlock::Copy& copy : block.copies()) {
      std::memcpy(loaded.data() + copy.to, *memory + copy.from, static_cast<size_t>(copy.bytes));
    }
    env_.FreeMemory(*memory, static_cast<size_t>(DiskBlock::MostReadBytes(bytes, /*tensors=*/7)));
    if (!status.ok()) return status;
    return loaded;
  }

  const TestDir dir_;
  FaultEnv env_{Env::Default()};
  Random random_{7};
  std::vector<std::unique_ptr<WeightFile>> files_;
  std::vector<std::string> data_, paths_;
};

TEST_F(DiskBlockTest, FindsTensorsWhereverTheyLie) {
  for (const int64_t bytes : {1, 4095, 4096, 4097, 100'000}) MakeFile(bytes);
  for (int round = 0; round < 300; ++round) {
    std::vector<DiskBlock::Tensor> tensors;
    std::string expected;
    for (int i = 0; i < 7; ++i) {
      const auto file = static_cast<size_t>(random_.Below(5));
      const auto at = static_cast<int64_t>(expected.size());
      tensors.push_back(Anywhere(file, at));
      expected += data_[file].substr(static_cast<size_t>(tensors.back().offset),
                                     static_cast<size_t>(tensors.back().bytes));
    }
    Result<std::string> loaded = Load(DiskBlock(tensors), static_cast<int64_t>(expected.size()));
    ASSERT_TRUE(loaded.ok()) << loaded.status().message();
    ASSERT_TRUE(*loaded == expected) << round;
  }
}

TEST_F(DiskBlockTest, LargeTensorsAreReadInPieces) {
  MakeFile(9'000'001);
  const DiskBlock block({{files_[0].get(), 77, 8'999'924, 0}});
  Result<std::string> loaded = Load(block, 8'999'924);
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  EXPECT_TRUE(*loaded == data_[0].substr(77));
}

TEST_F(DiskBlockTest, AChangedFileIsSaid) {
  MakeFile(10'000);
  MakeFile(10'000);
  const DiskBlock block({{files_[0].get(), 0, 5000, 0}, {files_[1].get(), 100, 200, 5000}});
  ASSERT_TRUE(Load(block, 5200).ok());
  const auto expect = [&](const std::string& what) {
    const Status status = Load(block, 5200).status();
    EXPECT_EQ(status.code(), StatusCode::kIo);
    EXPECT_NE(status.message().find(what), std::string::npos) << status.message();
    EXPECT_EQ(status.message().find('\n'), std::string::npos);
  };
  // Cut short, in a part that is read and in one that is not.
  std::filesystem::resize_file(paths_[0], 4000);
  expect(paths_[0] + " was changed");
  MakeFile(10'000);
  const DiskBlock head({{files_[2].get(), 0, 100, 0}});
  std::filesystem::resize_file(paths_[2], 9'000);
  EXPECT_EQ(Load(head, 100).status().code(), StatusCode::kIo);
  // Written over, with as many bytes.
  MakeFile(10'000);
  const DiskBlock same({{files_[3].get(), 0, 100, 0}});
  const timespec times[2] = {{.tv_sec = 0, .tv_nsec = UTIME_OMIT}, {.tv_sec = 1, .tv_nsec = 0}};
  ASSERT_EQ(utimensat(AT_FDCWD, paths_[3].c_str(), times, 0), 0);
  EXPECT_EQ(Load(same, 100).status().code(), StatusCode::kIo);
  // And those that are not as long, or as old, as they were when they were mapped.
  const int64_t modified = ModifiedNanos(paths_[1]);
  EXPECT_TRUE(WeightFile::Open(env_, paths_[1], 10'000, modified).ok());
  EXPECT_EQ(WeightFile::Open(env_, paths_[1], 10'001, modified).status().code(), StatusCode::kIo);
  EXPECT_EQ(WeightFile::Open(env_, paths_[1], 10'000, modified - 1).status().code(),
            StatusCode::kIo);
}

TEST_F(DiskBlockTest, FailedReadsAreSaid) {
  MakeFile(10'000);
  const DiskBlock block({{files_[0].get(), 0, 10'000, 0}});
  env_.SetKinds(kFaultRead);
  for (int64_t n = 1;; ++n) {
    env_.FailAt(n);
    const Status status = Load(block, 10'000).status();
    if (env_.faults() == 0) break;
    EXPECT_EQ(status.code(), StatusCode::kIo);
    EXPECT_NE(status.message().find("weights that stream from disk: cannot read"),
              std::string::npos)
        << status.message();
  }
  env_.FailAt(0);
  EXPECT_TRUE(Load(block, 10'000).ok());
}

TEST_F(DiskBlockTest, ATemporaryFileTakesWhatItIsGiven) {
  Result<std::unique_ptr<WeightFile>> file = WeightFile::Temporary(env_, dir_.path());
  ASSERT_TRUE(file.ok()) << file.status().message();
  Result<std::byte*> memory = env_.AllocateMemory(3 * kDirectAlignment);
  ASSERT_TRUE(memory.ok());
  for (int layer = 0; layer < 3; ++layer) {
    const int64_t bytes = (layer + 1) * static_cast<int64_t>(kDirectAlignment);
    std::fill_n(*memory, bytes, static_cast<std::byte>(layer + 1));
    Result<int64_t> offset = (*file)->Append(*memory, bytes);
    ASSERT_TRUE(offset.ok()) << offset.status().message();
    Result<std::string> loaded = Load(DiskBlock({{file->get(), *offset, bytes - 5, 0}}), bytes - 5);
    ASSERT_TRUE(loaded.ok()) << loaded.status().message();
    EXPECT_EQ(*loaded, std::string(static_cast<size_t>(bytes - 5), static_cast<char>(layer + 1)));
  }
  env_.FreeMemory(*memory, 3 * kDirectAlignment);
}

}  // namespace
}  // namespace headway
