#include "engine/eval/metric.h"

#include <gtest/gtest.h>

#include "engine/eval/metric_text.h"

namespace headway::eval {
namespace {

double Score(Metric metric, const std::vector<std::string>& answers, std::string_view output) {
  return ScoreOutput({metric, answers, {}, OutputPart::kWhole}, output);
}

TEST(MetricText, CutsAsTheMetricsDo) {
  EXPECT_EQ(AnswerWords("The  cat's (a) Theme, AN\n!"), (Units{"cats", "theme"}));
  EXPECT_EQ(AnswerCharacters("《红楼梦》, A b。"), (Units{"红", "楼", "梦", "a", "b"}));
  EXPECT_EQ(RougeWords("It's 3.5 é—x"), (Units{"it", "s", "3", "5", "é—x"}));
  EXPECT_EQ(Numbers("a007b, 10 and 0"), (Units{"7", "10", "0"}));
  EXPECT_EQ(Characters("a\xff"), (Units{"a", "\uFFFD"}));
}

TEST(MetricText, CountsWhatIsCommon) {
  // Two of three words are right, and two of four are found: 2 * 2 / (3 + 4).
  EXPECT_DOUBLE_EQ(OverlapF1({"x", "y", "z"}, {"y", "x", "u", "v"}), 4.0 / 7.0);
  // A word counts as often as both have it.
  EXPECT_DOUBLE_EQ(OverlapF1({"x", "x", "x"}, {"x", "y"}), 2.0 / 5.0);
  EXPECT_EQ(OverlapF1({}, {"x"}), 0.0);
  EXPECT_EQ(CommonSubsequence({"a", "b", "c", "b", "d", "a", "b"}, {"b", "d", "c", "a", "b", "a"}),
            4);
  EXPECT_EQ(CommonSubsequence({}, {"a"}), 0);
}

TEST(Metric, ContainsIsTheShareThatAppears) {
  EXPECT_EQ(Score(Metric::kContains, {"5632729"}, "The number is 5632729."), 1.0);
  EXPECT_EQ(Score(Metric::kContains, {"5632729"}, "The number is 563272."), 0.0);
  EXPECT_EQ(Score(Metric::kContains, {"UY", "PG", "QX", "AB"}, "are: UY, QX, AB."), 0.75);
  EXPECT_EQ(Score(Metric::kContains, {"UY"}, "buy"), 0.0);
  EXPECT_EQ(Score(Metric::kContains, {"x"}, ""), 0.0);
  EXPECT_EQ(Score(Metric::kContainsFolded, {"Bali", "koto"}, "BALI"), 0.5);
  EXPECT_EQ(Score(Metric::kContainsAny, {"New York", "NYC"}, "in nyc."), 1.0);
  EXPECT_EQ(Score(Metric::kContainsAny, {"New York", "NYC"}, "in Boston"), 0.0);
}

TEST(Metric, F1IsTheBestOverTheAnswers) {
  EXPECT_EQ(Score(Metric::kF1, {"The Eiffel Tower"}, "eiffel tower!"), 1.0);
  // "it is eiffel tower" beside "eiffel tower": 2 * 2 / (4 + 2).
  EXPECT_DOUBLE_EQ(Score(Metric::kF1, {"Paris", "the Eiffel Tower"}, "It is the Eiffel Tower."),
                   2.0 / 3.0);
  EXPECT_EQ(Score(Metric::kF1, {"a"}, "a"), 0.0);  // nothing is left of it, as in SQuAD's script
  // 北京 of 在北京: 2 * 2 / (3 + 2).
  EXPECT_DOUBLE_EQ(Score(Metric::kF1Chinese, {"北京"}, "在北京。"), 0.8);
}

TEST(Metric, RougeIsTheLongestCommonSubsequence) {
  // "police killed the gunman" and "police kill the gunman": 3 of 4 and 4.
  EXPECT_DOUBLE_EQ(Score(Metric::kRouge, {"Police killed the gunman."}, "police kill the gunman"),
                   0.75);
  // "the gunman" or "police": 2 of 4 and 4.
  EXPECT_DOUBLE_EQ(Score(Metric::kRouge, {"police killed the gunman"}, "the gunman kill police"),
                   0.5);
  EXPECT_DOUBLE_EQ(Score(Metric::kRougeChinese, {"今天开会"}, "今天，开了会"), 8.0 / 9.0);
  EXPECT_EQ(Score(Metric::kRouge, {"x"}, ""), 0.0);
}

TEST(Metric, NumbersAreComparedAsEachDataSetDoes) {
  EXPECT_EQ(Score(Metric::kNumberShare, {"Paragraph 12"}, "Paragraph 12"), 1.0);
  EXPECT_EQ(Score(Metric::kNumberShare, {"Paragraph 12"}, "Paragraph 12 or 3"), 0.5);
  EXPECT_EQ(Score(Metric::kNumberShare, {"段落7"}, "是段落7"), 1.0);
  EXPECT_EQ(Score(Metric::kNumberShare, {"5"}, "none"), 0.0);
  EXPECT_EQ(Score(Metric::kFirstInteger, {"71432"}, "The key is 71432, not 1."), 1.0);
  EXPECT_EQ(Score(Metric::kFirstInteger, {"71432"}, "1, then 71432"), 0.0);
  EXPECT_EQ(Score(Metric::kFirstInteger, {"0071"}, "0071"), 1.0);
  EXPECT_EQ(Score(Metric::kFirstNumber, {"95"}, "It is 95.0."), 1.0);
  EXPECT_EQ(Score(Metric::kFirstNumber, {"9.5"}, "9.50"), 1.0);
  EXPECT_EQ(Score(Metric::kFirstNumber, {"9.5"}, "9"), 0.0);
  EXPECT_EQ(Score(Metric::kLastInteger, {"-12"}, "The value is `-12`."), 1.0);
  EXPECT_EQ(Score(Metric::kLastInteger, {"12"}, "12 is it"), 0.0);
  EXPECT_EQ(Score(Metric::kLeadingNumbers, {"34", "2", "58", "37"}, "[34, 2, 57, 37]"), 0.5);
  EXPECT_EQ(Score(Metric::kLeadingNumbers, {"34", "2"}, "34"), 0.5);
  EXPECT_EQ(Score(Metric::kWord, {"b1-c2"}, "{\"b1-c2\"}"), 1.0);
  EXPECT_EQ(Score(Metric::kWord, {"b1-c2"}, "ab1-c2"), 0.0);
}

TEST(Metric, CodeIsTheFirstLineOfIt) {
  EXPECT_EQ(Score(Metric::kCode, {"return x;"}, "\n// done\n```cpp\nreturn x;\nother"), 1.0);
  // "abcd" beside "abxd": 3 characters of each are common, 2 * 3 / 8.
  EXPECT_EQ(Score(Metric::kCode, {"abxd"}, "abcd"), 0.75);
  // 2 * 1 / 3, in whole percents.
  EXPECT_EQ(Score(Metric::kCode, {"ab"}, "a"), 0.67);
  EXPECT_EQ(Score(Metric::kCode, {"x"}, "# only a comment"), 0.0);
}

TEST(Metric, ClassesThatAreNamedBesideCount) {
  const std::vector<std::string> classes = {"Disease and medicine", "Disease", "Food", "Other"};
  const auto score = [&](const char* answer, const char* output) {
    return ScoreOutput({Metric::kClass, {answer}, classes, OutputPart::kFirstLine}, output);
  };
  EXPECT_EQ(score("Food", "Food"), 1.0);
  EXPECT_EQ(score("Food", "Food or Other"), 0.5);
  EXPECT_EQ(score("Food", "\nFood\nOther"), 1.0);  // the first line alone
  EXPECT_EQ(score("Food", "Other"), 0.0);
  // "Disease" is part of what is right.
  EXPECT_EQ(score("Disease and medicine", "Disease and medicine"), 1.0);
}

TEST(Metric, AChoiceIsALetter) {
  const std::vector<std::string> options = {"a red house", "the sea", "nothing", "John"};
  for (const char* output : {"B", "B.", " (B) the sea", "B: the sea", "The correct answer is (B)",
                             "the answer is B.", "Answer: **B**", "My answer is: option B",
                             "It must be the sea", "I think it is B, surely"}) {
    EXPECT_EQ(ChosenLetter(output, options), 'B') << output;
  }
  for (const char* output : {"", "E", "Because", "maybe", "BC"}) {
    EXPECT_EQ(ChosenLetter(output, options), 0) << output;
  }
  const Expected expected{Metric::kChoice, {"D"}, options, OutputPart::kWhole};
  EXPECT_EQ(ScoreOutput(expected, "John"), 1.0);
  EXPECT_EQ(ScoreOutput(expected, "A"), 0.0);
}

TEST(Metric, HasNames) {
  EXPECT_EQ(MetricOf("rouge-l"), Metric::kRouge);
  EXPECT_STREQ(MetricName(Metric::kCode), "code-similarity");
  EXPECT_EQ(MetricOf("bleu"), std::nullopt);
}

// Outputs may be anything.
TEST(Metric, NoOutputBreaksIt) {
  for (const std::string& output :
       {std::string("\xff\xfe\x80"), std::string(3, '\0'), std::string(5000, '9'),
        std::string(5000, '('), std::string("\xe4\xbd")}) {
    for (int metric = 0; metric <= static_cast<int>(Metric::kChoice); ++metric) {
      const Expected expected{static_cast<Metric>(metric), {"1", "x"}, {"1", "x"}, {}};
      const double score = ScoreOutput(expected, output);
      EXPECT_GE(score, 0.0);
      EXPECT_LE(score, 1.0);
    }
  }
}

}  // namespace
}  // namespace headway::eval
