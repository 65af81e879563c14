// Tokens that a step appends as drafts, and that may be taken back behind it.
#include <gtest/gtest.h>

#include "kv/testing/rig.h"

namespace headway::kv {
namespace {

// Drafts stay in the open page, and can be taken back until the next step, no more than there were.
TEST(StoreDrafts, CanBeTakenBack) {
  RigOptions options;
  options.store = SmallStore();  // pages of 4
  Rig rig(options);
  ASSERT_TRUE(rig.Open().ok());
  const SequenceId id = *rig.NewSequence();
  ASSERT_TRUE(rig.Step(id, 8).ok());
  EXPECT_EQ(rig.TakeBack(id, 1).code(), StatusCode::kInvalidArgument);
  const auto step = [&](int64_t tokens, int64_t drafts) {
    StepEntry entry{id, tokens};
    entry.drafts = drafts;
    return rig.Step({&entry, 1});
  };
  EXPECT_EQ(step(3, 4).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(step(3, -1).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(step(4, 1).code(), StatusCode::kInvalidArgument);  // the page would close
  ASSERT_TRUE(step(3, 2).ok());
  EXPECT_EQ(rig.TakeBack(id, -1).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(rig.TakeBack(id, 3).code(), StatusCode::kInvalidArgument);
  ASSERT_TRUE(rig.TakeBack(id, 1).ok());
  ASSERT_TRUE(rig.TakeBack(id, 1).ok());
  EXPECT_EQ(rig.TakeBack(id, 1).code(), StatusCode::kInvalidArgument);
  ASSERT_TRUE(step(2, 1).ok());
  ASSERT_TRUE(rig.Step(id, 1).ok());  // the draft stays, and the page closes
  EXPECT_EQ(rig.TakeBack(id, 1).code(), StatusCode::kInvalidArgument);
  ASSERT_TRUE(rig.Step(id, 1).ok());
  EXPECT_EQ(rig.store().Length(id), 13);
  EXPECT_EQ(rig.Mismatches(), 0);
}

// Steps of drafts alone add to one another until they are taken back or others follow.
TEST(StoreDrafts, OfSeveralStepsCanBeTakenBackTogether) {
  RigOptions options;
  options.store = SmallStore();
  Rig rig(options);
  ASSERT_TRUE(rig.Open().ok());
  const SequenceId id = *rig.NewSequence();
  ASSERT_TRUE(rig.Step(id, 8).ok());
  const StepEntry draft{.sequence = id, .tokens = 1, .drafts = 1};
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(rig.Step({&draft, 1}).ok());
  EXPECT_EQ(rig.Step({&draft, 1}).code(), StatusCode::kInvalidArgument);  // the page would close
  EXPECT_EQ(rig.TakeBack(id, 4).code(), StatusCode::kInvalidArgument);
  ASSERT_TRUE(rig.TakeBack(id, 3).ok());
  EXPECT_EQ(rig.store().Length(id), 8);
  ASSERT_TRUE(rig.Step({&draft, 1}).ok());
  ASSERT_TRUE(rig.Step(id, 1).ok());
  EXPECT_EQ(rig.TakeBack(id, 1).code(), StatusCode::kInvalidArgument);
  ASSERT_TRUE(rig.Step(id, 2).ok());
  EXPECT_EQ(rig.Mismatches(), 0);
}

}  // namespace
}  // namespace headway::kv
