#include "kernels/lone_split.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>

#include "base/bytes.h"
#include "base/random.h"

namespace headway {
namespace {

constexpr int64_t kPage = 64;

TEST(LoneSplitTest, IsDecodeSplitsWhereTheNumberOfPartsDoesNotMatter) {
  EXPECT_EQ(LoneSplit({131072, 8, 131072, kPage}, 500, 0), 512);
  EXPECT_EQ(LoneSplit({131072, 8, 131072, kPage}, 500, 15), 512);
}

TEST(LoneSplitTest, PartsAndOpenPagesEndTogether) {
  for (int64_t keys : {34816, 40960, 49152, 65536, 131072}) {
    const int64_t split = LoneSplit({keys, 8, 131072, kPage}, 128, 264);
    EXPECT_EQ(split, RoundUp(CeilDiv(keys, 32), kPage)) << keys;
    EXPECT_LE(8 * (CeilDiv(keys, split) + 1), 264) << keys;
  }
  // Of a million keys eight turns: parts are no longer than what ends together needs.
  EXPECT_EQ(LoneSplit({1 << 20, 8, 131072, kPage}, 1024, 264), 4096);
}

TEST(LoneSplitTest, SegmentsAreCutByThemselves) {
  // Two of 65,600 in parts of 4,100 keys or so would be 34 a head, two more than there are at once.
  EXPECT_EQ(LoneSplit({131200, 8, 65600, kPage}, 128, 264), 4160);
  // More segments than parts.
  EXPECT_EQ(LoneSplit({64000, 8, 640, kPage}, 128, 264), 128);
}

TEST(LoneSplitTest, PartsAreNoMoreThanWholeTurnsAndNoShorterThanTheLeast) {
  Random random(71);
  int fitted = 0;
  for (int round = 0; round < 2000; ++round) {
    const int heads = 1 + static_cast<int>(random.Below(48));
    const auto at_once = static_cast<int64_t>(random.Below(600));
    const int64_t least = int64_t{64} << random.Below(5);
    const int64_t segment = kPage * static_cast<int64_t>(8 + random.Below(2040));
    const auto keys = static_cast<int64_t>(1 + random.Below(300'000));
    const int64_t split = LoneSplit({keys, heads, segment, kPage}, least, at_once);
    ASSERT_GE(split, least);
    ASSERT_EQ(split % kPage, 0);
    if (split == least) continue;
    ++fitted;
    int64_t parts = 1;  // the open page
    for (int64_t left = keys; left > 0; left -= segment) {
      parts += CeilDiv(std::min(left, segment), split);
    }
    const int64_t of_turn = at_once / heads;
    ASSERT_LE(parts, CeilDiv(keys, of_turn * 4096) * of_turn) << keys << ' ' << split;
  }
  EXPECT_GT(fitted, 500);
}

}  // namespace
}  // namespace headway
