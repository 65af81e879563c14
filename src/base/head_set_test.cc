#include "base/head_set.h"

#include <gtest/gtest.h>

namespace headway {
namespace {

TEST(RankHeads, TellsWhoHoldsAHead) {
  EXPECT_FALSE(RankHeads().Shares());
  EXPECT_FALSE(RankHeads::Alone(2, 4).Shares());
  RankHeads heads = {3, 0, {{{{0, 1}}, {{0}}}, {{{2}}, {{1, 2}}}}};
  EXPECT_FALSE(heads.Shares());
  heads.ranks[1][0] = {{1, 2}, {0.75, 1.0}};
  heads.ranks[0][0].shares = {1.0, 0.25};
  EXPECT_TRUE(heads.Shares());
  const std::vector<HeadHolder> holders = heads.HoldersOf(0, 1);
  ASSERT_EQ(holders.size(), 2U);
  EXPECT_EQ(holders[0].rank, 0);
  EXPECT_EQ(holders[0].slot, 1);
  EXPECT_EQ(holders[0].share, 0.25);
  EXPECT_EQ(holders[1].rank, 1);
  EXPECT_EQ(holders[1].slot, 0);
  EXPECT_EQ(holders[1].share, 0.75);
  EXPECT_EQ(heads.HoldersOf(1, 2).front().share, 1.0);
}

}  // namespace
}  // namespace headway
