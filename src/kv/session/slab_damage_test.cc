// Session files that were damaged, cut off, made up, or are something else.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <xxhash.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "kv/session/session_layout.h"
#include "kv/session/slab_file.h"
#include "kv/session/wire.h"
#include "kv/testing/memory_env.h"
#include "kv/testing/session_model.h"
#include "kv/testing/slab_test_util.h"

namespace headway::kv {
namespace {

using testing::HasSubstr;
using Bytes = MemoryEnv::Bytes;

constexpr char kPath[] = "/disk/session";

class SlabDamageTest : public testing::Test {
 protected:
  // A session after some commits; `*before` is the manifest of the last but one.
  Bytes MakeSession(Random* random, Manifest* last, Manifest* before) {
    MemoryEnv env;
    Result<std::unique_ptr<SlabFile>> file =
        CreateSessionAt(&env, kPath, RandomSmallFormat(random), &budget_);
    EXPECT_TRUE(file.ok());
    SessionModel model(&env, file->get(), random);
    for (int i = 0; i < 3; ++i) {
      EXPECT_TRUE(model.Change().ok());
      EXPECT_TRUE(model.Change().ok());
      *before = *last;
      *last = model.Describe();
      EXPECT_TRUE(model.Commit().ok());
    }
    return env.Contents()[kPath];
  }

  // Opens and reads all.
  Status Use(const Bytes& bytes, Manifest* found) {
    MemoryEnv env({{kPath, bytes}});
    Result<std::unique_ptr<SlabFile>> file = OpenSessionAt(&env, kPath, &budget_);
    const Result<Manifest> inspected = InspectSession(&env, kPath);
    EXPECT_EQ(file.ok(), inspected.ok());
    if (!file.ok()) {
      EXPECT_EQ(inspected.status().message(), file.status().message());
      return file.status();
    }
    EXPECT_TRUE(LooksLikeSession(&env, kPath));
    *found = (*file)->manifest();
    return VerifySession(&env, file->get(), *found);
  }

  void ExpectRefused(const Bytes& bytes, StatusCode code, const std::string& text) {
    Manifest found;
    const Status status = Use(bytes, &found);
    EXPECT_EQ(status.code(), code);
    EXPECT_THAT(status.message(), HasSubstr(kPath));
    EXPECT_THAT(status.message(), HasSubstr(text));
    EXPECT_THAT(status.message(), HasSubstr("another session file"));
    EXPECT_EQ(status.message().find('\n'), std::string::npos);
  }

  // Puts a right hash into both superblocks.
  static void Reseal(Bytes* bytes) {
    for (const size_t block : {size_t{0}, kSuperblockBytes}) {
      const size_t at = kSuperblockBytes - sizeof(uint64_t);
      const uint64_t hash = XXH3_64bits(bytes->data() + block, at);
      StoreLittleEndian(hash, bytes->data() + block + at);
    }
  }
  template <typename T>
  static Bytes WithField(Bytes bytes, size_t offset, T value) {
    for (const size_t block : {size_t{0}, kSuperblockBytes}) {
      StoreLittleEndian(value, bytes.data() + block + offset);
    }
    Reseal(&bytes);
    return bytes;
  }

  Budget budget_{"disk-memory", kUnlimited};
};

TEST_F(SlabDamageTest, FlippedBitsAreFoundOrHarmless) {
  int refused = 0;
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    Manifest last;
    Manifest before;
    const Bytes bytes = MakeSession(&random, &last, &before);
    for (int flip = 0; flip < 300; ++flip) {
      Bytes damaged = bytes;
      // Half of them in the superblocks.
      const int64_t range = flip % 2 == 0 ? kFirstSlotOffset : static_cast<int64_t>(bytes.size());
      const auto at = static_cast<size_t>(random.Below(range));
      damaged[at] ^= static_cast<std::byte>(1 << random.Below(8));
      Manifest found;
      const Status status = Use(damaged, &found);
      if (status.ok()) {
        // Between the used bytes, or the newer superblock, which a crash might have torn as well.
        EXPECT_TRUE(SameManifest(found, last) || SameManifest(found, before)) << at;
      } else {
        EXPECT_EQ(status.code(), StatusCode::kCorrupt) << at << ": " << status.message();
        ++refused;
      }
    }
  }
  EXPECT_GT(refused, 100);
}

TEST_F(SlabDamageTest, EveryBitOfAPageAndOfTheManifestCounts) {
  Random random(21);
  Manifest last;
  Manifest before;
  Bytes bytes;
  do {
    bytes = MakeSession(&random, &last, &before);
  } while (last.slabs.empty());
  const CacheFormat& format = last.format;
  for (int i = 0; i < 300; ++i) {
    const SavedSlab& slab =
        last.slabs[static_cast<size_t>(random.Below(static_cast<int64_t>(last.slabs.size())))];
    const int head = static_cast<int>(random.Below(format.HeadsIn(slab.layer, slab.group)));
    const int page = static_cast<int>(random.Below(slab.pages));
    const int64_t in_slab =
        random.Below(2) == 0 ? format.KOffset(head, page) : format.VOffset(head, page);
    const auto at =
        static_cast<size_t>(kFirstSlotOffset + slab.slot * format.slab_bytes() + in_slab +
                            random.Below(static_cast<int64_t>(format.page.closed_bytes())));
    Bytes damaged = bytes;
    damaged[at] ^= static_cast<std::byte>(1 << random.Below(8));
    ExpectRefused(damaged, StatusCode::kCorrupt, "is not what was written");
  }
  const auto slot_at = LoadLittleEndian<int64_t>(bytes.data() + 36);
  const auto size = LoadLittleEndian<int64_t>(bytes.data() + 44);
  Bytes one_side = bytes;  // only superblock A, so that its manifest is the one that is read
  std::memset(one_side.data() + kSuperblockBytes, 0, kSuperblockBytes);
  Manifest found;
  ASSERT_TRUE(Use(one_side, &found).ok());
  for (int i = 0; i < 300; ++i) {
    const int64_t first =
        std::min<int64_t>(size, format.slab_bytes() - static_cast<int64_t>(sizeof(int64_t)));
    const auto at = static_cast<size_t>(kFirstSlotOffset + slot_at * format.slab_bytes() + 8 +
                                        random.Below(first));
    Bytes damaged = one_side;
    damaged[at] ^= static_cast<std::byte>(1 << random.Below(8));
    ExpectRefused(damaged, StatusCode::kCorrupt, "checksum of its manifest");
  }
}

TEST_F(SlabDamageTest, CutFilesAreRefused) {
  Random random(22);
  Manifest last;
  Manifest before;
  const Bytes bytes = MakeSession(&random, &last, &before);
  for (size_t size = 8; size < bytes.size();
       size += 1 + static_cast<size_t>(random.Below(static_cast<int64_t>(bytes.size() / 50)))) {
    Bytes cut = bytes;
    cut.resize(size);
    ExpectRefused(cut, StatusCode::kCorrupt, "cut off");
  }
}

TEST_F(SlabDamageTest, ForeignFilesAreRefused) {
  Random random(23);
  const std::string json = R"({"__metadata__":{"format":"pt"}})";
  std::string safetensors(8, '\0');
  safetensors[0] = static_cast<char>(json.size());
  safetensors += json;
  const std::string files[] = {"",
                               "H",
                               "Chapter 1. It was a dark night.\n",
                               std::string(100000, 'x'),
                               safetensors,
                               safetensors + std::string(20000, '\0')};
  for (const std::string& file : files) {
    const auto* data = reinterpret_cast<const std::byte*>(file.data());
    ExpectRefused(Bytes(data, data + file.size()), StatusCode::kInvalidArgument,
                  "is not a Headway session");
  }
  for (int i = 0; i < 50; ++i) {
    Bytes bytes(static_cast<size_t>(random.Below(40000)));
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.Next());
    ExpectRefused(bytes, StatusCode::kInvalidArgument, "is not a Headway session");
  }
}

TEST_F(SlabDamageTest, LyingSuperblocksAreRefused) {
  Random random(24);
  Manifest last;
  Manifest before;
  const Bytes good = MakeSession(&random, &last, &before);
  Manifest found;
  ASSERT_TRUE(Use(good, &found).ok());
  ExpectRefused(WithField(good, 8, kSessionVersion + 1), StatusCode::kUnsupported,
                "session format " + std::to_string(kSessionVersion + 1));
  EXPECT_TRUE(Use(WithField(good, 8, kOldestSessionVersion), &found).ok());
  EXPECT_TRUE(SameManifest(found, last));
  ExpectRefused(WithField(good, 8, kOldestSessionVersion - 1), StatusCode::kUnsupported,
                "older ones do not say enough about their model");
  ExpectRefused(WithField(good, 12, ~uint64_t{0}), StatusCode::kCorrupt, "generation");
  for (const int64_t slab : {int64_t{-1}, int64_t{0}, int64_t{4096}, int64_t{10000},
                             int64_t{1} << 62, last.format.slab_bytes() * 2}) {
    ExpectRefused(WithField(good, 20, slab), StatusCode::kCorrupt, "damaged");
  }
  for (const int64_t slots : {int64_t{-1}, int64_t{0}, int64_t{1} << 40, int64_t{1} << 25}) {
    ExpectRefused(WithField(good, 28, slots), StatusCode::kCorrupt, "damaged");
  }
  for (const int64_t slot : {int64_t{-1}, int64_t{1} << 40, int64_t{100000}}) {
    ExpectRefused(WithField(good, 36, slot), StatusCode::kCorrupt, "goes on in slot");
  }
  for (const int64_t size : {int64_t{-1}, int64_t{0}, int64_t{1}, int64_t{1} << 50}) {
    ExpectRefused(WithField(good, 44, size), StatusCode::kCorrupt, "manifest");
  }
  ExpectRefused(WithField(good, 52, uint64_t{1}), StatusCode::kCorrupt, "checksum");
}

// One superblock is enough.
TEST_F(SlabDamageTest, AFreshSessionOutlivesEitherSuperblock) {
  for (const size_t block : {size_t{0}, kSuperblockBytes}) {
    Random random(25);
    MemoryEnv env;
    Manifest manifest;
    {
      Result<std::unique_ptr<SlabFile>> file =
          CreateSessionAt(&env, kPath, RandomSmallFormat(&random), &budget_);
      ASSERT_TRUE(file.ok());
      SessionModel model(&env, file->get(), &random);
      ASSERT_TRUE(model.Change().ok());
      manifest = model.Describe();
      ASSERT_TRUE(model.Commit().ok());
    }
    Bytes bytes = env.Contents()[kPath];
    std::memset(bytes.data() + block, 0xff, kSuperblockBytes);
    Manifest found;
    EXPECT_TRUE(Use(bytes, &found).ok());
    EXPECT_TRUE(SameManifest(found, manifest));
  }
}

}  // namespace
}  // namespace headway::kv
