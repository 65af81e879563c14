#include "engine/eval/question.h"

#include <gtest/gtest.h>

namespace headway::eval {
namespace {

TEST(Question, AsksBehindABlankLine) {
  EXPECT_EQ(AskAbout("Doc.", "Q?"), "Doc.\n\nQ?");
  EXPECT_EQ(AskAbout("Doc.", ""), "Doc.");
  EXPECT_EQ(AskAbout("", "Q?"), "Q?");
}

Answered Result(double score, Labels labels) {
  Answered result;
  result.score = score;
  result.labels = std::move(labels);
  return result;
}

TEST(Question, GroupsScoresByLabels) {
  const std::vector<Answered> results = {
      Result(1.0, {{"task", "a"}, {"length", "8"}}), Result(0.0, {{"task", "b"}, {"length", "8"}}),
      Result(0.5, {{"task", "a"}, {"length", "8"}}), Result(0.2, {{"task", "a"}, {"length", "9"}})};
  EXPECT_DOUBLE_EQ(MeanScore(results), 0.425);
  EXPECT_EQ(MeanScore({}), 0.0);
  const auto together = GroupScores(results, Grouping::kTogether);
  ASSERT_EQ(together.size(), 3u);
  EXPECT_EQ(together[0].labels, (Labels{{"task", "a"}, {"length", "8"}}));
  EXPECT_EQ(together[0].questions, 2);
  EXPECT_DOUBLE_EQ(together[0].score, 0.75);
  const auto each = GroupScores(results, Grouping::kEach);
  ASSERT_EQ(each.size(), 4u);
  EXPECT_EQ(each[0].labels, (Labels{{"task", "a"}}));
  EXPECT_EQ(each[0].questions, 3);
  EXPECT_EQ(each[2].labels, (Labels{{"length", "8"}}));
  EXPECT_DOUBLE_EQ(each[2].score, 0.5);
}

}  // namespace
}  // namespace headway::eval
