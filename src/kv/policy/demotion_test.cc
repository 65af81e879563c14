#include "kv/policy/demotion.h"

#include <gtest/gtest.h>

namespace headway::kv {
namespace {

TEST(Demotion, LetsGoOfWhatIsNotKept) {
  EXPECT_EQ(LetGoOf(std::vector<int32_t>{0, 3, 4, 7}, 8), (std::vector<int32_t>{1, 2, 5, 6}));
  EXPECT_EQ(LetGoOf({}, 3), (std::vector<int32_t>{0, 1, 2}));
  EXPECT_EQ(LetGoOf(std::vector<int32_t>{0, 1}, 2), std::vector<int32_t>());
}

TEST(Demotion, ReadsWholeBlocks) {
  EXPECT_FALSE(DemotionPolicy().demotes());
  EXPECT_EQ((DemotionPolicy{.keys = 1}).blocks(), 1);
  EXPECT_EQ((DemotionPolicy{.keys = 32}).blocks(), 2);
  EXPECT_EQ((DemotionPolicy{.keys = 33}).blocks(), 3);
}

}  // namespace
}  // namespace headway::kv
