#include "engine/eval/recall.h"

#include <gtest/gtest.h>

namespace headway::eval {
namespace {

TEST(Recall, SharesAreOfTheFarAttention) {
  const SelectionRecall::Head heads[] = {{.far = 1.0,
                                          .listed = 0.5,
                                          .best_of_head = 0.75,
                                          .best_of_layer = 0.9,
                                          .listed_blocks = 2,
                                          .far_blocks = 8},
                                         {.far = 3.0,
                                          .listed = 2.5,
                                          .best_of_head = 2.75,
                                          .best_of_layer = 2.7,
                                          .listed_blocks = 4,
                                          .far_blocks = 8}};
  const RecallShares shares = SharesOf(heads, 10);
  EXPECT_DOUBLE_EQ(shares.listed, 0.75);
  EXPECT_DOUBLE_EQ(shares.best_of_head, 0.875);
  EXPECT_DOUBLE_EQ(shares.best_of_layer, 0.9);
  EXPECT_DOUBLE_EQ(shares.far, 0.2);  // 4 over 10 steps of 2 heads
  EXPECT_DOUBLE_EQ(shares.blocks, 6.0 / 16.0);
}

TEST(Recall, NothingIsLeftOutOfNothing) {
  const RecallShares shares = SharesOf({}, 0);
  EXPECT_EQ(shares.listed, 1.0);
  EXPECT_EQ(shares.blocks, 1.0);
}

}  // namespace
}  // namespace headway::eval
