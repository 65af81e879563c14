#include "engine/step/block_mass.h"

#include <gtest/gtest.h>

namespace headway {
namespace {

// Two heads of two query heads each, six blocks of which 1 to 4 are far.
TEST(BlockMass, AddsWhatListsAndOraclesHold) {
  LayerMasses masses{2,
                     6,
                     {0.4, 0.1, 0.3, 0.2, 0.0, 1.0,      // of head 0: 0.6 of 2 are far
                      0.2, 0.8, 0.02, 0.06, 0.1, 0.8}};  // of head 1: 0.98
  SelectionBudget budget;
  budget.far_begin = 1;
  budget.far_end = 5;
  const std::vector<int32_t> first = {0, 3, 5};
  std::vector<int32_t> second = {0, 1, 5};
  std::vector<std::span<const int32_t>> lists = {first, second};
  std::vector<SelectionRecall::Head> heads(2);
  AddRecall(masses, budget, 2, lists, heads);
  EXPECT_DOUBLE_EQ(heads[0].far, 0.3);
  EXPECT_DOUBLE_EQ(heads[1].far, 0.49);
  EXPECT_DOUBLE_EQ(heads[0].listed, 0.1);
  EXPECT_DOUBLE_EQ(heads[1].listed, 0.4);
  EXPECT_DOUBLE_EQ(heads[0].best_of_head, 0.15);
  EXPECT_DOUBLE_EQ(heads[1].best_of_head, 0.4);
  // Of both heads together, the best two blocks have 0.4 and 0.15.
  EXPECT_DOUBLE_EQ(heads[0].best_of_layer, 0.15);
  EXPECT_DOUBLE_EQ(heads[1].best_of_layer, 0.4);
  EXPECT_EQ(heads[0].listed_blocks, 1);
  EXPECT_EQ(heads[1].listed_blocks, 1);
  EXPECT_EQ(heads[0].far_blocks, 4);

  // With two blocks a head, one head may have three of the four.
  second = {0, 1, 3, 4, 5};
  lists[1] = second;
  masses.at(0, 1) = 0.05;
  masses.at(0, 3) = 0.01;
  std::fill(heads.begin(), heads.end(), SelectionRecall::Head());
  AddRecall(masses, budget, 2, lists, heads);
  EXPECT_DOUBLE_EQ(heads[0].best_of_head, 0.175);
  EXPECT_DOUBLE_EQ(heads[0].best_of_layer, 0.15);
  EXPECT_DOUBLE_EQ(heads[1].best_of_layer, 0.48);
  EXPECT_DOUBLE_EQ(heads[1].best_of_head, 0.45);
  EXPECT_EQ(heads[1].listed_blocks, 3);
  // With a budget for each head, each is compared with as many as it lists.
  budget.share = BudgetShare::kHead;
  std::fill(heads.begin(), heads.end(), SelectionRecall::Head());
  AddRecall(masses, budget, 2, lists, heads);
  EXPECT_DOUBLE_EQ(heads[0].best_of_head, 0.15);
  EXPECT_DOUBLE_EQ(heads[1].best_of_head, 0.48);
}

}  // namespace
}  // namespace headway
