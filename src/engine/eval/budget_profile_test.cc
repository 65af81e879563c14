#include "engine/eval/budget_profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace headway::eval {
namespace {

using testing::DoubleNear;
using testing::ElementsAre;

BudgetProfile TwoTexts() {
  BudgetProfile profile;
  profile.layers = profile.kv_heads = 2;
  profile.config = "0123";
  profile.method = "ada-snapkv";
  profile.budget = "100";
  profile.anyway = 32;
  profile.texts = {{"a", 900, {32, 168, 100, 100}}, {"b \"", 800, {52, 148, 60, 140}}};
  return profile;
}

TEST(BudgetProfile, SpreadsAreOfTheMeanOverTexts) {
  const BudgetProfile profile = TwoTexts();
  EXPECT_THAT(MeanBudgets(profile), ElementsAre(42.0, 158.0, 80.0, 120.0));
  const std::vector<LayerSpread> spreads = SpreadsOf(profile);
  ASSERT_EQ(spreads.size(), 2u);
  EXPECT_EQ(spreads[0].least, 42.0);
  EXPECT_EQ(spreads[0].mean, 100.0);
  EXPECT_EQ(spreads[0].most, 158.0);
  EXPECT_DOUBLE_EQ(spreads[1].imbalance(), 1.2);
}

TEST(BudgetProfile, TextsAreComparedByTheirAngle) {
  // 32*52 + 168*148 + 100*60 + 100*140 = 46528; the squares' sums are 49248 and 47808.
  const double cosine = 46528.0 / std::sqrt(49248.0 * 47808.0);
  EXPECT_THAT(Similarities(TwoTexts()),
              ElementsAre(DoubleNear(1.0, 1e-12), DoubleNear(cosine, 1e-12),
                          DoubleNear(cosine, 1e-12), DoubleNear(1.0, 1e-12)));
}

// kv/policy/head_profile_test.cc reads such a file.
TEST(BudgetProfile, IsWrittenWithItsTexts) {
  EXPECT_EQ(
      BudgetProfileJson(TwoTexts()),
      R"({"format":"headway head profile","version":1,)"
      R"("model":{"layers":2,"kv_heads":2,"config":"0123"},"kind":"budgets",)"
      R"("method":"ada-snapkv","budget":"100","anyway":32,"heads":[[42.0,158.0],[80.0,120.0]],)"
      R"("texts":[{"name":"a","tokens":900,"heads":[[32,168],[100,100]]},)"
      R"({"name":"b \"","tokens":800,"heads":[[52,148],[60,140]]}]})"
      "\n");
}

TEST(BudgetProfile, ImportanceIsWrittenWithItsModel) {
  HeadProfile scores;
  scores.layers = 1;
  scores.kv_heads = 2;
  scores.answered = 3;
  scores.scores = {0.25, 0.5};
  ModelInfo model;
  model.config_hash = "ab";
  EXPECT_EQ(ImportanceJson(scores, model),
            R"({"format":"headway head profile","version":1,)"
            R"("model":{"layers":1,"kv_heads":2,"config":"ab"},"kind":"importance",)"
            R"("answered":3,"heads":[[0.25,0.5]]})"
            "\n");
}

}  // namespace
}  // namespace headway::eval
