#include <gtest/gtest.h>

#include "engine/blueprint_testing.h"

namespace headway {
namespace {

// A subject whose model was trained for 800 tokens; contexts have 1,000.
Subject Extending(int64_t group, int64_t window) {
  Subject subject(64);
  subject.config.max_position = 800;
  subject.config.rope.type = RopeType::kDefault;
  subject.settings.self_extend = {group, window};
  return subject;
}

TEST(Blueprint, SelfExtendIsForContextsThatItsWindowDoesNotHold) {
  const auto of = [](const Result<Blueprint>& blueprint) {
    return blueprint->layout.executor.self_extend;
  };
  const Result<Blueprint> extended = Extending(2, 400).OnCpu();
  EXPECT_EQ(of(extended), (SelfExtend{2, 400}));
  EXPECT_LE(extended->plan.cache.chunk, 400 - 64);
  EXPECT_FALSE(of(Extending(2, 1000).OnCpu()).on());
  Subject chunked = Extending(2, 400);
  chunked.settings.cut.chunk = 400 - 64;
  EXPECT_TRUE(of(chunked.OnCpu()).on());
  chunked.settings.cut.chunk = 400 - 63;
  EXPECT_EQ(chunked.OnCpu().status().message(),
            "self_extend: a chunk and a page have to fit into its window; give at most chunk 336");
  Subject plain = Extending(2, 400);
  plain.config.rope.type = RopeType::kNone;
  ExpectUnsupported(plain.OnCpu(), "self_extend: this model does not rotate its keys");
}

// The last of 1,000 tokens counts at 499 + w - w / 2.
TEST(Blueprint, SelfExtendStaysWithinTheTrainedWindow) {
  EXPECT_TRUE(Extending(2, 600).OnCpu().ok());
  EXPECT_EQ(Extending(2, 602).OnCpu().status().message(),
            "self_extend 2:602: the last of 1000 tokens counts at position 800, and this model was "
            "trained for 800; give larger groups, or a smaller window");
}

}  // namespace
}  // namespace headway
