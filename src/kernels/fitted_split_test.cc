#include "kernels/fitted_split.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <queue>
#include <vector>

#include "base/bytes.h"
#include "base/random.h"

namespace headway {
namespace {

constexpr int64_t kPage = 64;

int64_t OfEight(const std::vector<int64_t>& lengths, int64_t segment = 131072,
                int64_t least = 128) {
  return FittedSplit(lengths, {8, segment, kPage, least, 264});
}

// When the last of all heads' parts ends, each beginning as one before it ends, with what a part
// takes besides its keys.
int64_t EndOf(const std::vector<int64_t>& lengths, const KeyCut& cut, int64_t split) {
  constexpr int64_t kBegin = 128;
  std::priority_queue<int64_t, std::vector<int64_t>, std::greater<>> ends;
  for (int64_t i = 0; i < cut.at_once; ++i) ends.push(0);
  int64_t last = 0;
  for (int64_t length : lengths) {
    for (int64_t segment = 0; segment < length; segment += cut.segment) {
      const int64_t segment_end = std::min(length, segment + cut.segment);
      for (int head = 0; head < cut.kv_heads; ++head) {
        for (int64_t key = segment; key < segment_end; key += split) {
          const int64_t end = ends.top() + kBegin + std::min(split, segment_end - key);
          ends.pop();
          ends.push(end);
          last = std::max(last, end);
        }
      }
    }
  }
  return last;
}

TEST(FittedSplitTest, IsTheLeastWhereTheNumberOfPartsDoesNotMatter) {
  EXPECT_EQ(FittedSplit(std::vector<int64_t>{131072}, {8, 131072, kPage, 500, 0}), 512);
  EXPECT_EQ(FittedSplit(std::vector<int64_t>{131072}, {8, 131072, kPage, 500, 15}), 512);
  EXPECT_EQ(FittedSplit({}, {8, 131072, kPage, 500, 264}), 512);
  EXPECT_EQ(OfEight(std::vector<int64_t>(65, 5000)), 128);
}

TEST(FittedSplitTest, PartsOfALoneSequenceAndItsOpenPageEndTogether) {
  for (int64_t keys : {34816, 40960, 49152, 65536, 131072}) {
    const int64_t split = OfEight({keys});
    EXPECT_EQ(split, RoundUp(CeilDiv(keys, 32), kPage)) << keys;
    EXPECT_LE(8 * (CeilDiv(keys, split) + 1), 264) << keys;
  }
  // Of a million keys ten turns, 41 parts of each segment.
  EXPECT_EQ(OfEight({1 << 20}), 3200);
}

TEST(FittedSplitTest, SegmentsAreCutByThemselves) {
  // Two of 65,600 in parts of 4,100 keys or so would be 34 a head, two more than there are at once.
  EXPECT_EQ(OfEight({131200}, 65600), 4160);
  // A part each: they are more than there are at once.
  EXPECT_EQ(OfEight({64000}, 640), 640);
}

TEST(FittedSplitTest, SequencesShareTheParts) {
  EXPECT_EQ(OfEight({10240, 10240, 10240, 10240}, 131072, 1024), 1280);
  // 33 parts of a head at once: short sequences are one each.
  EXPECT_EQ(OfEight(std::vector<int64_t>(32, 3000), 131072, 1024), 3008);
  // A long one among short ones keeps parts that they can be done beside.
  std::vector<int64_t> uneven(32, 1000);
  uneven[0] = 100'000;
  EXPECT_EQ(OfEight(uneven, 131072, 1024), 1024);
}

TEST(FittedSplitTest, PartsEndNoLaterThanShortOnesDo) {
  Random random(71);
  int64_t fitted_ends = 0;
  int64_t least_ends = 0;
  for (int round = 0; round < 400; ++round) {
    const int64_t least = int64_t{128} << random.Below(4);
    const KeyCut cut = {1 << random.Below(6), kPage * static_cast<int64_t>(64 + random.Below(1984)),
                        kPage, least, static_cast<int64_t>(100 + random.Below(400))};
    std::vector<int64_t> lengths(1 + random.Below(8));
    for (int64_t& length : lengths) length = static_cast<int64_t>(1 + random.Below(60'000));
    const int64_t split = FittedSplit(lengths, cut);
    ASSERT_GE(split, least);
    ASSERT_EQ(split % kPage, 0);
    const int64_t end = EndOf(lengths, cut, split);
    const int64_t end_of_least = EndOf(lengths, cut, least);
    // Bounds are compared, not times: what is as good by its bound may be a little later.
    ASSERT_LE(end, end_of_least + end_of_least / 8) << round;
    fitted_ends += end;
    least_ends += end_of_least;
  }
  EXPECT_LT(fitted_ends, least_ends * 19 / 20);
}

}  // namespace
}  // namespace headway
