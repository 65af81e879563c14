#include "cli/profile_budgets.h"

#include <gtest/gtest.h>

namespace headway::cli {
namespace {

TEST(ProfileBudgets, TablesHaveLayersAndTexts) {
  eval::BudgetProfile profile;
  profile.layers = profile.kv_heads = 2;
  profile.method = "ada-snapkv";
  profile.budget = "100";
  profile.texts = {{"a", 900, {32, 168, 100, 100}}};
  const std::string one =
      "Ada-SnapKV, budget 100: tokens that heads keep\n"
      "layer  least  mean  most  imbalance\n"
      "0         32   100   168       1.68\n"
      "1        100   100   100       1.00\n"
      "all       32   100   168       1.68\n"
      "imbalance: the largest head beside the mean; 1.34 on average over layers\n";
  EXPECT_EQ(BudgetsText(profile), one);
  profile.texts.push_back({"book.txt", 900, {32, 168, 100, 100}});
  EXPECT_EQ(BudgetsText(profile), one +
                                      "\ncosine similarity      1      2\n"
                                      "1  a               1.000  1.000\n"
                                      "2  book.txt        1.000  1.000\n");
}

}  // namespace
}  // namespace headway::cli
