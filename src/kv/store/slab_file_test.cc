#include "kv/store/slab_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/test_dir.h"
#include "kv/store/slab_test_util.h"

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
      for (int group = 0; group < format.head_groups(); ++group) {
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
            Result<std::vector<uint64_t>> checksums =
                file->WritePages(*slot, group, from, count, written.slab.data());
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
      const Status status = file->ReadPages(saved.slot, saved.group, saved.checksums, slab.data());
      ASSERT_TRUE(status.ok()) << status.message();
      EXPECT_TRUE(
          SamePages(file->format(), saved.group, 0, saved.pages, slab.data(), written.slab.data()));
    }
  }

  TestDir dir_;
  Env* const env_ = Env::Default();
  Random random_{testing::UnitTest::GetInstance()->random_seed() + uint64_t{20}};
  Budget budget_{"disk-memory", kUnlimited};
};

TEST_F(SlabFileTest, SessionsOfRandomFormatsComeBack) {
  for (int round = 0; round < 40; ++round) {
    const CacheFormat format = RandomFormat(&random_);
    SCOPED_TRACE(round);
    const std::string path = dir_.File("session" + std::to_string(round));
    const int64_t tokens = random_.Below(20) * format.page.page_slots;
    Manifest manifest;
    std::vector<Written> cache;
    {
      Result<std::unique_ptr<SlabFile>> file =
          SlabFile::CreateSession(env_, path, format, &budget_);
      ASSERT_TRUE(file.ok()) << file.status().message();
      cache = WriteCache(file->get(), tokens);
      ExpectReads(file->get(), cache);
      manifest = Describe(format, tokens, cache);
      const Status status = (*file)->Commit(manifest);
      ASSERT_TRUE(status.ok()) << status.message();
      ExpectReads(file->get(), cache);
    }
    EXPECT_EQ(budget_.used(), 0);
    Result<Manifest> inspected = InspectSession(env_, path);
    ASSERT_TRUE(inspected.ok()) << inspected.status().message();
    EXPECT_TRUE(SameManifest(*inspected, manifest));
    Result<std::unique_ptr<SlabFile>> file = SlabFile::OpenSession(env_, path, &budget_);
    ASSERT_TRUE(file.ok()) << file.status().message();
    EXPECT_TRUE(SameManifest((*file)->manifest(), manifest));
    ExpectReads(file->get(), cache);
  }
}

}  // namespace
}  // namespace headway::kv
