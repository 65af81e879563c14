#include "base/env.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <thread>

#include "base/bytes.h"
#include "base/env_posix.h"
#include "base/random.h"
#include "base/test_dir.h"

namespace headway {
namespace {

using ::testing::HasSubstr;

// Memory of the Env, freed with the object.
class Memory {
 public:
  Memory(Env* env, size_t size) : env_(env), size_(size), data_(*env->AllocateMemory(size)) {}
  ~Memory() { env_->FreeMemory(data_, size_); }
  std::byte* data() { return data_; }
  size_t size() const { return size_; }

 private:
  Env* const env_;
  const size_t size_;
  std::byte* const data_;
};

void Fill(Memory* memory, uint64_t seed) {
  Random random(seed);
  for (size_t i = 0; i < memory->size(); ++i) {
    memory->data()[i] = static_cast<std::byte>(random.Next());
  }
}

void WriteText(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

// Every test runs with io_uring (where this machine has it) and with the fallback.
class EnvTest : public ::testing::TestWithParam<bool> {
 protected:
  EnvTest() : env_(NewPosixEnv({.io_uring = GetParam()})) {}

  std::unique_ptr<File> Open(const std::string& path, OpenMode mode, FileIo io = FileIo::kCached) {
    Result<std::unique_ptr<File>> file = env_->Open(path, mode, io);
    EXPECT_TRUE(file.ok()) << file.status().message();
    return file.ok() ? std::move(*file) : nullptr;
  }

  TestDir dir_;
  std::unique_ptr<Env> env_;
};

INSTANTIATE_TEST_SUITE_P(Io, EnvTest, ::testing::Bool(), [](const auto& param_info) {
  return param_info.param ? "Uring" : "Threads";
});

TEST_P(EnvTest, BatchesRoundTrip) {
  for (const FileIo io : {FileIo::kCached, FileIo::kDirect}) {
    // More pieces than the queue is deep, in an order that is not the file's.
    constexpr int kPieces = 100;
    constexpr size_t kSize = 3 * kDirectAlignment;
    Memory out(env_.get(), kPieces * kSize);
    Memory in(env_.get(), kPieces * kSize);
    Fill(&out, 1);
    std::vector<IoPiece> writes;
    std::vector<IoPiece> reads;
    for (int i = 0; i < kPieces; ++i) {
      const size_t at = static_cast<size_t>(i * 37 % kPieces) * kSize;
      writes.push_back({out.data() + at, kSize, static_cast<int64_t>(at)});
      reads.push_back({in.data() + at, kSize, static_cast<int64_t>(at)});
    }
    std::unique_ptr<File> file = Open(dir_.File("batch"), OpenMode::kCreate, io);
    ASSERT_NE(file, nullptr);
    for (const auto count : {size_t{1}, size_t{2}, size_t{33}, writes.size()}) {
      const Status written = file->Write(std::span(writes).first(count));
      ASSERT_TRUE(written.ok()) << written.message();
    }
    ASSERT_TRUE(file->Sync().ok());
    EXPECT_EQ(*file->Size(), static_cast<int64_t>(out.size()));
    for (const auto count : {size_t{0}, size_t{1}, size_t{2}, size_t{33}, reads.size()}) {
      std::fill_n(in.data(), in.size(), std::byte{0xEE});
      const Status read = file->Read(std::span(reads).first(count));
      ASSERT_TRUE(read.ok()) << read.message();
      for (size_t i = 0; i < reads.size(); ++i) {
        const std::byte* expected = out.data() + reads[i].offset;
        const bool equal = std::equal(expected, expected + kSize, reads[i].data);
        ASSERT_EQ(equal, i < count) << i;
      }
    }
  }
}

TEST_P(EnvTest, CachedFilesTakeAnySizeAndOffset) {
  std::unique_ptr<File> file = Open(dir_.File("odd"), OpenMode::kCreate);
  EXPECT_FALSE(file->direct());
  std::string text = "abcdefghij";
  auto* data = reinterpret_cast<std::byte*>(text.data());
  const std::vector<IoPiece> writes = {{data + 3, 7, 8}, {data, 3, 5}, {data, 0, 1000}};
  ASSERT_TRUE(file->Write(writes).ok());
  EXPECT_EQ(*env_->ReadFile(dir_.File("odd")), std::string(5, '\0') + text);
}

TEST_P(EnvTest, ShortReadIsCorruptAndNamesTheFile) {
  for (const FileIo io : {FileIo::kCached, FileIo::kDirect}) {
    for (const size_t size : {size_t{0}, size_t{5000}, size_t{8192}}) {
      WriteText(dir_.File("short"), std::string(size, 'x'));
      std::unique_ptr<File> file = Open(dir_.File("short"), OpenMode::kRead, io);
      Memory memory(env_.get(), 4 * kDirectAlignment);
      const IoPiece whole = {memory.data(), 3 * kDirectAlignment, 0};
      const IoPiece beyond = {memory.data() + whole.size, kDirectAlignment, 1 << 20};
      for (const auto& pieces : {std::vector{whole}, std::vector{whole, beyond}}) {
        const Status status = file->Read(pieces);
        EXPECT_EQ(status.code(), StatusCode::kCorrupt) << status.message();
        EXPECT_THAT(status.message(), HasSubstr(dir_.File("short")));
      }
    }
  }
}

TEST_P(EnvTest, DirectRefusesWhatIsNotAligned) {
  std::unique_ptr<File> file = Open(dir_.File("direct"), OpenMode::kCreate, FileIo::kDirect);
  if (!file->direct()) GTEST_SKIP() << "no O_DIRECT here";
  Memory memory(env_.get(), 2 * kDirectAlignment);
  for (const IoPiece& piece : {IoPiece{memory.data() + 1, kDirectAlignment, 0},
                               IoPiece{memory.data(), kDirectAlignment - 1, 0},
                               IoPiece{memory.data(), kDirectAlignment, 512}}) {
    const Status status = file->Write({&piece, 1});
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.message();
    EXPECT_THAT(status.message(), HasSubstr("not aligned"));
  }
  EXPECT_EQ(*file->Size(), 0);
}

// A limit on the file's size stands for a full disk: the kernel then cuts one write short and
// refuses the next.
TEST_P(EnvTest, WriteThatDoesNotFitFails) {
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = signal(SIGXFSZ, SIG_IGN);
  rlimit limit = before;
  limit.rlim_cur = kMiB + 100;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  Memory memory(env_.get(), 2 * kMiB);
  std::vector<IoPiece> pieces;
  for (int64_t at = 0; at < 2 * kMiB; at += kMiB / 8) {
    pieces.push_back({memory.data() + at, kMiB / 8, at});
  }
  std::unique_ptr<File> file = Open(dir_.File("full"), OpenMode::kCreate);
  const Status one = file->Write(std::vector<IoPiece>{{memory.data(), memory.size(), 0}});
  const Status many = file->Write(pieces);
  const Status small = file->Write(std::span(pieces).first(8));
  setrlimit(RLIMIT_FSIZE, &before);
  signal(SIGXFSZ, handler);
  for (const Status& status : {one, many}) {
    EXPECT_EQ(status.code(), StatusCode::kIo);
    EXPECT_THAT(status.message(), HasSubstr(dir_.File("full") + ": File too large"));
  }
  EXPECT_TRUE(small.ok()) << small.message();  // a failed batch leaves nothing behind
}

TEST_P(EnvTest, OneFileFromManyThreads) {
  constexpr int kThreads = 4;
  constexpr size_t kPart = 16 * kDirectAlignment;
  std::unique_ptr<File> file = Open(dir_.path(), OpenMode::kTemporary, FileIo::kDirect);
  Memory out(env_.get(), kThreads * kPart);
  Memory in(env_.get(), kThreads * kPart);
  Fill(&out, 2);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int round = 0; round < 20; ++round) {
        std::vector<IoPiece> writes;
        std::vector<IoPiece> reads;
        for (size_t i = 0; i < 16; ++i) {
          const size_t at = static_cast<size_t>(t) * kPart + i * kDirectAlignment;
          writes.push_back({out.data() + at, kDirectAlignment, static_cast<int64_t>(at)});
          reads.push_back({in.data() + at, kDirectAlignment, static_cast<int64_t>(at)});
        }
        EXPECT_TRUE(file->Write(writes).ok());
        EXPECT_TRUE(file->Read(reads).ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(std::equal(out.data(), out.data() + out.size(), in.data()));
}

TEST_P(EnvTest, TemporaryFilesHaveNoName) {
  std::unique_ptr<File> file = Open(dir_.path(), OpenMode::kTemporary);
  ASSERT_TRUE(file->Truncate(12345).ok());
  EXPECT_EQ(*file->Size(), 12345);
  EXPECT_TRUE(env_->List(dir_.path())->empty());
  const auto missing = env_->Open(dir_.File("none"), OpenMode::kTemporary, FileIo::kCached);
  EXPECT_EQ(missing.status().code(), StatusCode::kNotFound);
  EXPECT_THAT(missing.status().message(), HasSubstr(dir_.File("none")));
}

TEST_P(EnvTest, OpenModes) {
  const std::string path = dir_.File("modes");
  EXPECT_EQ(env_->Open(path, OpenMode::kRead, FileIo::kCached).status().code(),
            StatusCode::kNotFound);
  EXPECT_EQ(env_->Open(path, OpenMode::kReadWrite, FileIo::kDirect).status().code(),
            StatusCode::kNotFound);
  WriteText(path, "hello");
  std::byte byte{'J'};
  const IoPiece piece = {&byte, 1, 0};
  EXPECT_EQ(Open(path, OpenMode::kRead)->Write({&piece, 1}).code(), StatusCode::kIo);
  EXPECT_TRUE(Open(path, OpenMode::kReadWrite)->Write({&piece, 1}).ok());
  EXPECT_EQ(*env_->ReadFile(path), "Jello");
  EXPECT_EQ(*Open(path, OpenMode::kCreate)->Size(), 0);
  EXPECT_FALSE(env_->Open(dir_.path(), OpenMode::kRead, FileIo::kCached).ok());
  EXPECT_FALSE(env_->Open(dir_.path(), OpenMode::kCreate, FileIo::kCached).ok());
}

// One has the file alone until it shares its lock, and then nobody has as long as one is left.
TEST_P(EnvTest, ALockIsShared) {
  const std::string path = dir_.File("shared");
  WriteText(path, "hello");
  const auto try_open = [&](OpenMode mode) {
    return env_->Open(path, mode, FileIo::kCached).status().message();
  };
  std::unique_ptr<File> first = Open(path, OpenMode::kReadWrite);
  EXPECT_THAT(try_open(OpenMode::kShared), HasSubstr("in use by another process"));
  ASSERT_TRUE(first->ShareLock().ok());
  std::unique_ptr<File> second = Open(path, OpenMode::kShared);
  std::byte byte{'J'};
  const IoPiece piece = {&byte, 1, 0};
  EXPECT_TRUE(second->Write({&piece, 1}).ok());
  first.reset();
  EXPECT_THAT(try_open(OpenMode::kReadWrite), HasSubstr("in use by another process"));
  second.reset();
  EXPECT_EQ(try_open(OpenMode::kReadWrite), "");
  EXPECT_NE(env_->Open(dir_.File("none"), OpenMode::kShared, FileIo::kCached).status().message(),
            "");
  EXPECT_EQ(*env_->ReadFile(path), "Jello");
}

TEST_P(EnvTest, MapShowsTheFile) {
  WriteText(dir_.File("map"), std::string(10'000, 'm') + "end");
  Result<std::unique_ptr<MappedFile>> map = env_->Map(dir_.File("map"));
  ASSERT_TRUE(map.ok());
  ASSERT_EQ((*map)->bytes().size(), 10'003u);
  EXPECT_EQ((*map)->bytes()[10'002], std::byte{'d'});

  WriteText(dir_.File("empty"), "");
  map = env_->Map(dir_.File("empty"));
  ASSERT_TRUE(map.ok());
  EXPECT_TRUE((*map)->bytes().empty());

  EXPECT_EQ(env_->Map(dir_.File("none")).status().code(), StatusCode::kNotFound);
  EXPECT_THAT(env_->Map(dir_.path()).status().message(), HasSubstr("is a directory"));
  ASSERT_EQ(mkfifo(dir_.File("pipe").c_str(), 0600), 0);
  EXPECT_THAT(env_->Map(dir_.File("pipe")).status().message(), HasSubstr("is a pipe"));
}

TEST_P(EnvTest, ReadFileReadsAll) {
  for (const size_t size : {0, 1, 4095, 4096, 4097, 300'000}) {
    const std::string text(size, 'r');
    WriteText(dir_.File("read"), text);
    ASSERT_EQ(*env_->ReadFile(dir_.File("read")), text);
  }
  EXPECT_THAT(*env_->ReadFile("/proc/self/status"), HasSubstr("Name:"));  // its size is 0
}

TEST_P(EnvTest, ReadFileRefuses) {
  const Result<std::string> missing = env_->ReadFile(dir_.File("none"));
  EXPECT_EQ(missing.status().code(), StatusCode::kNotFound);
  EXPECT_THAT(missing.status().message(), HasSubstr(dir_.File("none")));
  const auto kind = [&](const std::string& path) {
    return env_->ReadFile(path).status().message();
  };
  EXPECT_THAT(kind(dir_.path()), HasSubstr("is a directory"));
  EXPECT_THAT(kind("/dev/zero"), HasSubstr("is a character device"));
  ASSERT_EQ(mkfifo(dir_.File("pipe").c_str(), 0600), 0);
  EXPECT_THAT(kind(dir_.File("pipe")), HasSubstr("is a pipe"));  // and nobody writes into it
  ASSERT_TRUE(Open(dir_.File("huge"), OpenMode::kCreate)->Truncate(int64_t{1} << 41).ok());
  const Result<std::string> huge = env_->ReadFile(dir_.File("huge"));
  EXPECT_EQ(huge.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(huge.status().message(), HasSubstr("1.0 GiB"));

  WriteText(dir_.File("five"), "12345");
  EXPECT_EQ(*env_->ReadFile(dir_.File("five"), 5), "12345");
  EXPECT_EQ(env_->ReadFile(dir_.File("five"), 4).status().code(), StatusCode::kInvalidArgument);
  // Its size is said to be 0.
  EXPECT_EQ(env_->ReadFile("/proc/self/status", 10).status().code(), StatusCode::kInvalidArgument);
}

TEST_P(EnvTest, Directories) {
  EXPECT_TRUE(env_->IsDirectory(dir_.path()));
  EXPECT_FALSE(env_->IsDirectory(dir_.File("a")));
  EXPECT_FALSE(env_->Exists(dir_.File("a")));
  for (const char* name : {"b", "a", "zß"}) WriteText(dir_.File(name), name);
  EXPECT_TRUE(env_->Exists(dir_.File("a")));
  EXPECT_FALSE(env_->IsDirectory(dir_.File("a")));
  EXPECT_EQ(*env_->List(dir_.path()), (std::vector<std::string>{"a", "b", "zß"}));
  EXPECT_EQ(env_->List(dir_.File("none")).status().code(), StatusCode::kNotFound);

  EXPECT_TRUE(env_->Rename(dir_.File("a"), dir_.File("b")).ok());
  EXPECT_TRUE(env_->SyncDirectory(dir_.path()).ok());
  EXPECT_EQ(*env_->ReadFile(dir_.File("b")), "a");
  EXPECT_EQ(env_->Rename(dir_.File("a"), dir_.File("b")).code(), StatusCode::kNotFound);
  EXPECT_TRUE(env_->Remove(dir_.File("b")).ok());
  const Status gone = env_->Remove(dir_.File("b"));
  EXPECT_EQ(gone.code(), StatusCode::kNotFound);
  EXPECT_THAT(gone.message(), HasSubstr(dir_.File("b")));
  EXPECT_FALSE(env_->SyncDirectory(dir_.File("none")).ok());
}

TEST_P(EnvTest, MemoryIsZeroedAndAligned) {
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{4097}, size_t{2} << 20,
                             (size_t{2} << 20) - 1, (size_t{6} << 20) + 12345}) {
    const Result<std::byte*> data = env_->AllocateMemory(bytes);
    ASSERT_TRUE(data.ok());
    const size_t alignment = bytes >= size_t{2} << 20 ? size_t{2} << 20 : 4096;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(*data) % alignment, 0u) << bytes;
    for (size_t i = 0; i < bytes; ++i) ASSERT_EQ((*data)[i], std::byte{0});
    std::fill_n(*data, bytes, std::byte{1});
    env_->FreeMemory(*data, bytes);
  }
  env_->FreeMemory(nullptr, 4096);
}

TEST_P(EnvTest, TooMuchMemoryIsAnError) {
  for (const size_t bytes : {SIZE_MAX, SIZE_MAX / 2, size_t{1} << 55}) {
    const Result<std::byte*> data = env_->AllocateMemory(bytes);
    EXPECT_EQ(data.status().code(), StatusCode::kIo);
    EXPECT_THAT(data.status().message(), HasSubstr("cannot allocate"));
  }
}

TEST(Env, DefaultIsOneAndTimePasses) {
  Env* const env = Env::Default();
  EXPECT_EQ(env, Env::Default());
  const int64_t before = env->NowNanos();
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  const int64_t passed = env->NowNanos() - before;
  EXPECT_GE(passed, 2'000'000);
  EXPECT_LT(passed, 10'000'000'000);
}

}  // namespace
}  // namespace headway
