#include "kernels/block_cache.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/random.h"

namespace headway::block_cache {
namespace {

TEST(BlockCache, EntriesHoldNamesAndAges) {
  Random random(1);
  for (int i = 0; i < 1000; ++i) {
    const auto version = static_cast<uint32_t>(1 + random.Below(0xFFFFFFFF));
    const auto number = static_cast<uint32_t>(random.Below(int64_t{1} << kNumberBits));
    const auto step = static_cast<uint32_t>(random.Next());
    const auto later = static_cast<uint32_t>(random.Below(1 << kStepBits));
    const uint64_t name = Name(version, number);
    const uint64_t entry = Entry(name, step);
    EXPECT_EQ(NameOf(entry), name);
    EXPECT_NE(entry, 0u);
    EXPECT_EQ(AgeOf(entry, step), 0u);
    EXPECT_EQ(AgeOf(entry, step + later), later);  // also where steps begin anew
    EXPECT_NE(Name(version, number ^ 1), name);
    EXPECT_NE(Name(version ^ 2, number), name);
  }
}

// Blocks of one slab, which are neighbours, are dealt out to sets about evenly.
TEST(BlockCache, NeighboursAreDealtOutToSets) {
  for (const uint32_t sets : {1u, 3u, 64u, 1000u}) {
    std::vector<int> of_set(sets);
    const uint32_t blocks = sets * 64;
    for (uint32_t number = 0; number < blocks; ++number) {
      const uint32_t set = SetOf(Name(7, number), sets);
      ASSERT_LT(set, sets);
      ++of_set[set];
    }
    for (const int count : of_set) {
      EXPECT_GT(count, 32);
      EXPECT_LT(count, 128);
    }
  }
}

TEST(BlockCache, LinesHoldKeysValuesAndParameters) {
  PageFormat page = {.dtype = DType::kBF16, .page_slots = 64, .head_dim = 128};
  EXPECT_EQ(CacheLineBytes(page, 16), 2 * 16 * 128 * 2);
  page.encoding = Encoding::kInt4;
  EXPECT_EQ(CacheLineBytes(page, 16), 2 * 16 * 64 + ParamBytes(page));
}

}  // namespace
}  // namespace headway::block_cache
