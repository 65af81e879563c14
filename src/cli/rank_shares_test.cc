#include "cli/rank_shares.h"

#include <gtest/gtest.h>

namespace headway::cli {
namespace {

// Two ranks that attend 3 and 4 seconds, but wait for 2 + 3 = 5: one is the last of each layer.
TEST(RankShares, AreOfTheLastRankOfEachLayer) {
  const RankShares shares = SharesOf({{2.0, 1.0}, {1.0, 3.0}});
  EXPECT_EQ(shares.ranks, (std::vector<double>{0.6, 0.8}));
  EXPECT_DOUBLE_EQ(shares.all, 0.7);
  EXPECT_DOUBLE_EQ(shares.least_layer, (1.0 + 1.0 / 3.0) / 2.0);
  ASSERT_EQ(shares.layers.size(), 2u);
  EXPECT_EQ(shares.layers[0], (std::vector<double>{1.0, 0.5}));
  EXPECT_EQ(RankSharesText(shares), "ranks attend 60.0/80.0% (70.0%, a layer 66.7% or more)");
  EXPECT_EQ(RankSharesTable(shares),
            "  layer   all   rank 0   rank 1\n"
            "      0  75.0    100.0     50.0\n"
            "      1  66.7     33.3    100.0\n");
}

TEST(RankShares, LayersWithoutAttentionDoNotCount) {
  const RankShares shares = SharesOf({{0.0, 1.0}, {0.0, 1.0}});
  EXPECT_EQ(shares.ranks, (std::vector<double>{1.0, 1.0}));
  EXPECT_DOUBLE_EQ(shares.least_layer, 1.0);
}

TEST(RankShares, AreNoneOfOneRankAndOfWhatWasNotTimed) {
  for (const AttendTimes& times : {AttendTimes{}, AttendTimes{{1.0, 2.0}},
                                   AttendTimes{{0.0, 0.0}, {0.0, 0.0}}, AttendTimes{{}, {}}}) {
    EXPECT_EQ(RankSharesText(SharesOf(times)), "");
    EXPECT_EQ(RankSharesTable(SharesOf(times)), "");
  }
}

}  // namespace
}  // namespace headway::cli
