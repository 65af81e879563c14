#include "engine/eval/head_profile.h"

#include <gtest/gtest.h>

namespace headway::eval {
namespace {

TEST(HeadProfile, IsWrittenAsHeadPatternReadsIt) {
  HeadProfile profile;
  profile.layers = 2;
  profile.kv_heads = 3;
  profile.sink = 4;
  profile.recent = 256;
  profile.scores = {0.0, 0.25, 1.0, 1.0 / 3, 1e-9, 0.5};
  profile.answered = 7;
  EXPECT_EQ(HeadProfileTsv(profile),
            "# share of attention behind 4 sink and 256 recent tokens, 7 prompts; a line a layer, "
            "a column a KV head\n"
            "0.000000\t0.250000\t1.000000\n"
            "0.333333\t0.000000\t0.500000\n");
  EXPECT_EQ(HeadProfileJson(profile),
            "{\"sink\": 4, \"recent\": 256,\n \"scores\": [\n"
            "  [0.000000, 0.250000, 1.000000],\n"
            "  [0.333333, 0.000000, 0.500000]\n ]}\n");
}

}  // namespace
}  // namespace headway::eval
