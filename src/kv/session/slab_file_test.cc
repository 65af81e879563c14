#include "kv/session/slab_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/test_dir.h"
#include "kv/session/session_layout.h"
#include "kv/testing/slab_test_util.h"

namespace headway::kv {
namespace {

using testing::HasSubstr;

// A cache of random bytes in a session: what was written where.
struct Written {
  SavedSlab saved;
  AlignedBuffer slab;
};

class SlabFileTest : public testing::Test {
 protected:
  // A slab for every segment that `tokens` tokens of the file's format close.
  std::vector<Written> WriteCache(SlabFile* file, int64_t tokens) {
    const CacheFormat& format = file->format();
    const int64_t closed = tokens / format.page.page_slots;
    std::vector<Written> cache;
    for (int layer = 0; layer < format.layers; ++layer) {
      for (int group = 0; group < format.head_groups(layer); ++group) {
        for (int64_t done = 0; done < closed; done += format.segment_pages) {
          Written written{SavedSlab(), SlabBuffer(env_, format)};
          FillRandom(&random_, written.slab.data(), written.slab.size());
          SavedSlab& saved = written.saved;
          saved.layer = layer;
          saved.group = group;
          saved.segment = static_cast<int32_t>(done / format.segment_pages);
          saved.pages =
              static_cast<int32_t>(std::min<int64_t>(format.segment_pages, closed - done));
          Result<int64_t> slot = file->Allocate();
          EXPECT_TRUE(slot.ok()) << slot.status().message();
          saved.slot = *slot;
          // In two steps, as pages close.
          const int first = static_cast<int>(random_.Below(saved.pages + 1));
          for (const auto& [from, count] : {std::pair(0, first), {first, saved.pages - first}}) {
            Result<std::vector<uint64_t>> checksums = file->WritePages(
                *slot, format.HeadsIn(layer, group), from, count, written.slab.data());
            EXPECT_TRUE(checksums.ok()) << checksums.status().message();
            saved.checksums.insert(saved.checksums.end(), checksums->begin(), checksums->end());
          }
          cache.push_back(std::move(written));
        }
      }
    }
    return cache;
  }

  Manifest Describe(const CacheFormat& format, int64_t tokens, const std::vector<Written>& cache) {
    Manifest manifest;
    manifest.model_config = std::string(static_cast<size_t>(random_.Below(50)), 'c');
    manifest.weights_hash = random_.Next();
    manifest.tokenizer_hash = random_.Next();
    manifest.rope_hash = random_.Next();
    manifest.keys_rotated = random_.Below(2) == 0;
    manifest.format = format;
    for (int64_t i = 0; i < tokens; ++i) {
      manifest.tokens.push_back(static_cast<TokenId>(random_.Below(int64_t{1} << 31)));
    }
    for (const Written& written : cache) manifest.slabs.push_back(written.saved);
    return manifest;
  }

  void ExpectReads(SlabFile* file, const std::vector<Written>& cache) {
    for (const Written& written : cache) {
      AlignedBuffer slab = SlabBuffer(env_, file->format());
      FillRandom(&random_, slab.data(), slab.size());
      const SavedSlab& saved = written.saved;
      const int heads = file->format().HeadsIn(saved.layer, saved.group);
      const Status status = file->ReadPages(saved.slot, heads, saved.checksums, slab.data());
      ASSERT_TRUE(status.ok()) << status.message();
      EXPECT_TRUE(
          SamePages(file->format(), heads, 0, saved.pages, slab.data(), written.slab.data()));
    }
  }

  // The same of single pages, to other places of other slabs.
  void ExpectReadsEach(SlabFile* file, const std::vector<Written>& cache) {
    const CacheFormat& format = file->format();
    for (const Written& written : cache) {
      const SavedSlab& saved = written.saved;
      const int heads = format.HeadsIn(saved.layer, saved.group);
      AlignedBuffer moved = SlabBuffer(env_, format);
      std::vector<SlabFile::PageRead> reads;
      for (int page = 0; page < saved.pages; ++page) {
        reads.push_back({saved.slot, heads, page, &saved.checksums[static_cast<size_t>(page)],
                         moved.data(), format.segment_pages - 1 - page});
      }
      const Status status = file->ReadEach(reads);
      ASSERT_TRUE(status.ok()) << status.message();
      for (int page = 0; page < saved.pages; ++page) {
        const int to = format.segment_pages - 1 - page;
        const auto same = [&](int64_t a, int64_t b, int64_t bytes) {
          return std::memcmp(moved.data() + a, written.slab.data() + b,
                             static_cast<size_t>(bytes)) == 0;
        };
        const auto bytes = static_cast<int64_t>(format.page.closed_bytes());
        for (int head = 0; head < heads; ++head) {
          EXPECT_TRUE(same(format.KOffset(head, to), format.KOffset(head, page), bytes));
          EXPECT_TRUE(same(format.VOffset(head, to), format.VOffset(head, page), bytes));
        }
        EXPECT_TRUE(
            same(format.ParamOffset(to), format.ParamOffset(page), heads * format.param_bytes()));
      }
      if (reads.empty()) continue;
      const uint64_t wrong = *reads.back().checksum + 1;
      reads.back().checksum = &wrong;
      EXPECT_EQ(file->ReadEach(reads).code(), StatusCode::kCorrupt);
    }
  }

  TestDir dir_;
  Env* const env_ = Env::Default();
  Random random_{testing::UnitTest::GetInstance()->random_seed() + uint64_t{20}};
  Budget budget_{"disk-memory", kUnlimited};
};

TEST_F(SlabFileTest, SessionsOfRandomFormatsComeBack) {
  for (int round = 0; round < 12; ++round) {
    const CacheFormat format = RandomFormat(&random_);
    SCOPED_TRACE(round);
    const std::string path = dir_.File("session" + std::to_string(round));
    const int64_t tokens = random_.Below(20) * format.page.page_slots;
    Manifest manifest;
    std::vector<Written> cache;
    {
      Result<std::unique_ptr<SlabFile>> file = CreateSessionAt(env_, path, format, &budget_);
      ASSERT_TRUE(file.ok()) << file.status().message();
      cache = WriteCache(file->get(), tokens);
      ExpectReads(file->get(), cache);
      ExpectReadsEach(file->get(), cache);
      manifest = Describe(format, tokens, cache);
      const Status status = (*file)->Commit(manifest);
      ASSERT_TRUE(status.ok()) << status.message();
      ExpectReads(file->get(), cache);
    }
    EXPECT_EQ(budget_.used(), 0);
    Result<Manifest> inspected = InspectSession(env_, path);
    ASSERT_TRUE(inspected.ok()) << inspected.status().message();
    EXPECT_TRUE(SameManifest(*inspected, manifest));
    Result<std::unique_ptr<SlabFile>> file = OpenSessionAt(env_, path, &budget_);
    ASSERT_TRUE(file.ok()) << file.status().message();
    EXPECT_TRUE(SameManifest((*file)->manifest(), manifest));
    ExpectReads(file->get(), cache);
  }
}

TEST_F(SlabFileTest, TemporaryFilesHoldSlabsOfRandomFormats) {
  for (int round = 0; round < 10; ++round) {
    SCOPED_TRACE(round);
    const CacheFormat format = RandomFormat(&random_);
    Result<std::unique_ptr<SlabFile>> file =
        SlabFile::CreateTemporary(env_, dir_.path(), format, &budget_);
    ASSERT_TRUE(file.ok()) << file.status().message();
    const std::vector<Written> cache =
        WriteCache(file->get(), random_.Below(20) * format.page.page_slots);
    ExpectReads(file->get(), cache);
    EXPECT_EQ(budget_.used(), static_cast<int64_t>(cache.size()) * format.slab_bytes());
    EXPECT_THAT(*env_->List(dir_.path()), testing::IsEmpty());
    for (const Written& written : cache) (*file)->Free(written.saved.slot);
    EXPECT_EQ(budget_.used(), 0);
  }
}

// A slab larger than the pieces that it is written in, and a manifest of many slots.
TEST_F(SlabFileTest, LargeSlabsAndLongManifestsComeBack) {
  CacheFormat large;
  large.layers = 1;
  large.kv_heads = 3;
  large.group_heads = 2;
  large.segment_pages = 48;
  large.page.head_dim = 128;
  CacheFormat tiny = large;
  tiny.group_heads = 1;
  tiny.segment_pages = 1;
  tiny.page.head_dim = 8;
  for (const auto& [format, pages] : {std::pair(large, 70), {tiny, 60}}) {
    const std::string path = dir_.File(std::to_string(pages));
    const int64_t tokens = int64_t{pages} * format.page.page_slots;
    std::vector<Written> cache;
    Manifest manifest;
    {
      Result<std::unique_ptr<SlabFile>> file = CreateSessionAt(env_, path, format, &budget_);
      ASSERT_TRUE(file.ok()) << file.status().message();
      cache = WriteCache(file->get(), tokens);
      manifest = Describe(format, tokens, cache);
      ASSERT_TRUE((*file)->Commit(manifest).ok());
    }
    Result<std::unique_ptr<SlabFile>> file = OpenSessionAt(env_, path, &budget_);
    ASSERT_TRUE(file.ok()) << file.status().message();
    EXPECT_TRUE(SameManifest((*file)->manifest(), manifest));
    ExpectReads(file->get(), cache);
  }
}

TEST_F(SlabFileTest, StaysWithinTheBudgetAndShrinks) {
  CacheFormat format;
  format.layers = 1;
  format.kv_heads = 1;
  format.page.head_dim = 64;
  const int64_t slab = format.slab_bytes();
  Budget budget("disk-memory", kFirstSlotOffset + 8 * slab);
  const std::string path = dir_.File("session");
  Result<std::unique_ptr<SlabFile>> file = CreateSessionAt(env_, path, format, &budget);
  ASSERT_TRUE(file.ok());
  std::vector<Written> cache = WriteCache(file->get(), 7 * 64);
  EXPECT_LE((*file)->file_bytes(), budget.limit());
  ASSERT_TRUE((*file)->Commit(Describe(format, 7 * 64, cache)).ok());
  EXPECT_EQ(budget.available(), 0);
  EXPECT_EQ((*file)->file_bytes(), budget.limit());

  // The next manifest needs a slot of its own before that of the last is free.
  Status status = (*file)->Commit(Describe(format, 7 * 64, cache));
  EXPECT_EQ(status.code(), StatusCode::kOutOfBudget);
  EXPECT_THAT(status.message(), HasSubstr("disk-memory"));
  while (cache.size() > 1) {
    (*file)->Free(cache.back().saved.slot);
    cache.pop_back();
  }
  EXPECT_EQ(budget.available(), 0) << "the committed slabs are not free yet";
  status = (*file)->Commit(Describe(format, 64, cache));
  EXPECT_EQ(status.code(), StatusCode::kOutOfBudget);
  ExpectReads(file->get(), cache);
}

TEST_F(SlabFileTest, FreedSlotsAreReusedAndTheFileShrinks) {
  const CacheFormat format = RandomFormat(&random_);
  const int64_t slots_of_pages = CeilDiv(10, format.segment_pages);
  const int64_t columns = int64_t{format.layers} * format.max_head_groups();
  const std::string path = dir_.File("session");
  Result<std::unique_ptr<SlabFile>> file = CreateSessionAt(env_, path, format, &budget_);
  ASSERT_TRUE(file.ok());
  std::vector<Written> cache = WriteCache(file->get(), 10 * format.page.page_slots);
  ASSERT_TRUE((*file)->Commit(Describe(format, 10 * format.page.page_slots, cache)).ok());
  const int64_t full = (*file)->file_bytes();
  EXPECT_GE(full, kFirstSlotOffset + slots_of_pages * columns * format.slab_bytes());
  for (const Written& written : cache) (*file)->Free(written.saved.slot);
  ASSERT_TRUE((*file)->Commit(Describe(format, 0, {})).ok());
  ASSERT_TRUE((*file)->Commit(Describe(format, 0, {})).ok());
  EXPECT_LE((*file)->file_bytes(), kFirstSlotOffset + 2 * format.slab_bytes());
  EXPECT_LE(budget_.used(), kFirstSlotOffset + format.slab_bytes());
  cache = WriteCache(file->get(), 10 * format.page.page_slots);
  ExpectReads(file->get(), cache);
  ASSERT_TRUE((*file)->Commit(Describe(format, 10 * format.page.page_slots, cache)).ok());
  EXPECT_LE((*file)->file_bytes(), full + 2 * format.slab_bytes());
}

TEST_F(SlabFileTest, ASessionAppearsWithItsFirstCommit) {
  const CacheFormat format = RandomFormat(&random_);
  const std::string path = dir_.File("session");
  {
    Result<std::unique_ptr<SlabFile>> file = CreateSessionAt(env_, path, format, &budget_);
    ASSERT_TRUE(file.ok());
    WriteCache(file->get(), format.page.page_slots);
    EXPECT_FALSE(env_->Exists(path));
    // A second one for the same path.
    const Status second = CreateSessionAt(env_, path, format, &budget_).status();
    EXPECT_THAT(second.message(), HasSubstr("in use by another process"));
  }
  EXPECT_THAT(*env_->List(dir_.path()), testing::IsEmpty());
  {  // what a killed process left is written over
    ASSERT_TRUE(env_->Open(TemporarySessionName(path), OpenMode::kCreate, FileIo::kCached).ok());
    Result<std::unique_ptr<SlabFile>> file = CreateSessionAt(env_, path, format, &budget_);
    ASSERT_TRUE(file.ok()) << file.status().message();
    ASSERT_TRUE((*file)->Commit(Describe(format, 0, {})).ok());
    EXPECT_THAT(*env_->List(dir_.path()), testing::ElementsAre("session"));
    const Status open = OpenSessionAt(env_, path, &budget_).status();
    EXPECT_EQ(open.code(), StatusCode::kIo);
    EXPECT_THAT(open.message(), HasSubstr("in use by another process"));
    EXPECT_TRUE(InspectSession(env_, path).ok());
  }
  EXPECT_THAT(*env_->List(dir_.path()), testing::ElementsAre("session"));
  EXPECT_EQ(budget_.used(), 0);
}

// A file that comes to exist while its temporary one is waited for is what is claimed then.
TEST_F(SlabFileTest, AClaimGoesOnWithWhatAnotherHasSaved) {
  const CacheFormat format = RandomFormat(&random_);
  for (int round = 0; round < 5; ++round) {
    const std::string path = dir_.File("session" + std::to_string(round));
    Result<std::unique_ptr<SlabFile>> file = CreateSessionAt(env_, path, format, &budget_);
    ASSERT_TRUE(file.ok()) << file.status().message();
    std::unique_ptr<SessionClaim> second;
    Status status;
    std::thread waiting([&] {
      Result<std::unique_ptr<SessionClaim>> claim = SessionClaim::Take(env_, path);
      status = claim.status();
      if (claim.ok()) second = std::move(*claim);
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(random_.Below(30)));
    const Manifest manifest = Describe(format, 0, {});
    EXPECT_TRUE((*file)->Commit(manifest).ok());
    file->reset();
    waiting.join();
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_TRUE(second->exists());
    EXPECT_TRUE(SameManifest(second->manifest(), manifest));
    EXPECT_FALSE(env_->Exists(TemporarySessionName(path)));
  }
}

TEST_F(SlabFileTest, AnotherCutReplacesTheSessionWithItsFirstCommit) {
  const CacheFormat format = RandomFormat(&random_);
  CacheFormat other = format;
  ++other.segment_pages;
  const std::string path = dir_.File("session");
  Manifest manifest;
  std::vector<Written> cache;
  {
    Result<std::unique_ptr<SlabFile>> file = CreateSessionAt(env_, path, format, &budget_);
    ASSERT_TRUE(file.ok());
    cache = WriteCache(file->get(), 10 * format.page.page_slots);
    manifest = Describe(format, 10 * format.page.page_slots, cache);
    ASSERT_TRUE((*file)->Commit(manifest).ok());
  }
  const auto recut = [&] {
    Result<std::unique_ptr<SessionClaim>> claim = SessionClaim::Take(env_, path);
    EXPECT_TRUE(claim.ok()) << claim.status().message();
    return std::move(*SlabFile::CreateSession(std::move(*claim), other, &budget_));
  };
  {  // without a commit all stays
    const std::unique_ptr<SlabFile> file = recut();
    WriteCache(file.get(), 3 * format.page.page_slots);
    const Status second = SessionClaim::Take(env_, path).status();
    EXPECT_THAT(second.message(), HasSubstr(path + ": in use by another process"));
  }
  EXPECT_THAT(*env_->List(dir_.path()), testing::ElementsAre("session"));
  {
    Result<std::unique_ptr<SlabFile>> file = OpenSessionAt(env_, path, &budget_);
    ASSERT_TRUE(file.ok()) << file.status().message();
    EXPECT_TRUE(SameManifest((*file)->manifest(), manifest));
    ExpectReads(file->get(), cache);
  }
  const std::unique_ptr<SlabFile> file = recut();
  cache = WriteCache(file.get(), 4 * format.page.page_slots);
  manifest = Describe(other, 4 * format.page.page_slots, cache);
  ASSERT_TRUE(file->Commit(manifest).ok());
  EXPECT_THAT(*env_->List(dir_.path()), testing::ElementsAre("session"));
  const Status second = SessionClaim::Take(env_, path).status();
  EXPECT_THAT(second.message(), HasSubstr("in use by another process"));
  EXPECT_TRUE(SameManifest(*InspectSession(env_, path), manifest));
  ASSERT_TRUE(file->Commit(manifest).ok());
  ExpectReads(file.get(), cache);
}

TEST_F(SlabFileTest, FollowsLinksWhetherOrNotSomethingIsThere) {
  namespace fs = std::filesystem;
  const CacheFormat format = RandomFormat(&random_);
  fs::create_directory(dir_.File("far"));
  fs::create_symlink("far/second", dir_.File("first"));
  fs::create_symlink("session", dir_.File("far/second"));
  fs::create_symlink(dir_.File("nowhere") + "/session", dir_.File("lost"));
  fs::create_symlink("loop", dir_.File("loop"));
  {
    Result<std::unique_ptr<SlabFile>> file =
        CreateSessionAt(env_, dir_.File("first"), format, &budget_);
    ASSERT_TRUE(file.ok()) << file.status().message();
    ASSERT_TRUE((*file)->Commit(Describe(format, 0, {})).ok());
  }
  EXPECT_TRUE(fs::is_symlink(dir_.File("first")));
  EXPECT_TRUE(fs::is_symlink(dir_.File("far/second")));
  EXPECT_TRUE(fs::is_regular_file(fs::symlink_status(dir_.File("far/session"))));
  EXPECT_TRUE(OpenSessionAt(env_, dir_.File("first"), &budget_).ok());
  EXPECT_EQ(env_->List(dir_.File("far"))->size(), 2u);
  for (const char* name : {"lost", "loop"}) {
    const Status status = SessionClaim::Take(env_, dir_.File(name)).status();
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(status.message(), HasSubstr("give another session file"));
    EXPECT_TRUE(fs::is_symlink(dir_.File(name)));
  }
}

TEST_F(SlabFileTest, WhatWasNotSavedGoesWhenItIsClosed) {
  const CacheFormat format = RandomFormat(&random_);
  const std::string path = dir_.File("session");
  const int64_t tokens = 4 * format.page.page_slots;
  std::vector<Written> cache;
  {
    Result<std::unique_ptr<SlabFile>> file = CreateSessionAt(env_, path, format, &budget_);
    ASSERT_TRUE(file.ok());
    cache = WriteCache(file->get(), tokens);
    ASSERT_TRUE((*file)->Commit(Describe(format, tokens, cache)).ok());
  }
  const auto saved = std::filesystem::file_size(path);
  {
    Result<std::unique_ptr<SlabFile>> file = OpenSessionAt(env_, path, &budget_);
    ASSERT_TRUE(file.ok());
    WriteCache(file->get(), 40 * format.page.page_slots);
    EXPECT_GT(std::filesystem::file_size(path), saved);
  }
  EXPECT_EQ(std::filesystem::file_size(path), saved);
  Result<std::unique_ptr<SlabFile>> file = OpenSessionAt(env_, path, &budget_);
  ASSERT_TRUE(file.ok()) << file.status().message();
  ExpectReads(file->get(), cache);
}

TEST_F(SlabFileTest, RefusesWhatItCannotOpen) {
  const CacheFormat format = RandomFormat(&random_);
  EXPECT_EQ(OpenSessionAt(env_, dir_.File("none"), &budget_).status().code(),
            StatusCode::kNotFound);
  Status status = OpenSessionAt(env_, dir_.path(), &budget_).status();
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(status.message(), HasSubstr("give another session file"));
  status = CreateSessionAt(env_, "/proc/none/session", format, &budget_).status();
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(status.message(), HasSubstr("/proc/none/session"));
  EXPECT_FALSE(SlabFile::CreateTemporary(env_, dir_.File("none"), format, &budget_).ok());
  CacheFormat wrong = format;
  wrong.page.head_dim = 0;
  EXPECT_EQ(CreateSessionAt(env_, dir_.File("new"), wrong, &budget_).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(SlabFile::CreateTemporary(env_, dir_.path(), wrong, &budget_).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_FALSE(LooksLikeSession(env_, dir_.path()));
  EXPECT_FALSE(LooksLikeSession(env_, dir_.File("none")));
}

TEST_F(SlabFileTest, CommitRefusesAManifestThatDoesNotHoldTogether) {
  const CacheFormat format = RandomFormat(&random_);
  const std::string path = dir_.File("session");
  Result<std::unique_ptr<SlabFile>> file = CreateSessionAt(env_, path, format, &budget_);
  ASSERT_TRUE(file.ok());
  Manifest manifest = Describe(format, 0, {});
  ASSERT_TRUE((*file)->Commit(manifest).ok());
  manifest.tokens.push_back(-1);
  const Status status = (*file)->Commit(manifest);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("cannot save to " + path));
}

TEST_F(SlabFileTest, ThreadsWriteAndReadWhileAnotherCommits) {
  const CacheFormat format = RandomFormat(&random_);
  const std::string path = dir_.File("session");
  Result<std::unique_ptr<SlabFile>> file = CreateSessionAt(env_, path, format, &budget_);
  ASSERT_TRUE(file.ok());
  const std::vector<Written> cache = WriteCache(file->get(), 3 * format.page.page_slots);
  const Manifest manifest = Describe(format, 3 * format.page.page_slots, cache);
  std::atomic<int> failures = 0;
  const auto work = [&](uint64_t seed) {
    Random random(seed);
    const AlignedBuffer slab = SlabBuffer(env_, format);
    const AlignedBuffer back = SlabBuffer(env_, format);
    for (int i = 0; i < 30; ++i) {
      FillRandom(&random, slab.data(), slab.size());
      const Result<int64_t> slot = (*file)->Allocate();
      if (!slot.ok()) break;
      const Result<std::vector<uint64_t>> checksums =
          (*file)->WritePages(*slot, format.group_heads, 0, format.segment_pages, slab.data());
      const bool same =
          checksums.ok() &&
          (*file)->ReadPages(*slot, format.group_heads, *checksums, back.data()).ok() &&
          SamePages(format, 0, 0, format.segment_pages, slab.data(), back.data());
      if (!same) ++failures;
      (*file)->Free(*slot);
    }
  };
  std::thread first(work, 1);
  std::thread second(work, 2);
  for (int i = 0; i < 5; ++i) {
    const Status status = (*file)->Commit(manifest);
    EXPECT_TRUE(status.ok()) << status.message();
  }
  first.join();
  second.join();
  EXPECT_EQ(failures, 0);
  ExpectReads(file->get(), cache);
}

}  // namespace
}  // namespace headway::kv
