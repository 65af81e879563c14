#include "engine/eval/tasks/passages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace headway::eval {
namespace {

using ::testing::HasSubstr;

TEST(Passages, ReadsSquad) {
  const auto passages = ParsePassages(
      R"({"version": "v2.0", "data": [{"title": "t", "paragraphs": [
          {"context": "One.", "qas": [
            {"question": "q1", "id": "1", "answers": [{"text": "A", "answer_start": 0},
                                                      {"text": "A", "answer_start": 0},
                                                      {"text": "B", "answer_start": 2}]},
            {"question": "q2", "id": "2", "answers": [], "is_impossible": true}]},
          {"context": "Two.", "qas": [{"question": "q3", "answers": [{"text": "C"}]}]}]}]})",
      "f.json");
  ASSERT_TRUE(passages.ok()) << passages.status().message();
  EXPECT_EQ(passages->paragraphs, (std::vector<std::string>{"One.", "Two."}));
  ASSERT_EQ(passages->questions.size(), 2u);
  EXPECT_EQ(passages->questions[0].answers, (std::vector<std::string>{"A", "B"}));
  EXPECT_EQ(passages->questions[1].question, "q3");
  EXPECT_EQ(passages->questions[1].golden, std::vector<size_t>{1});
}

TEST(Passages, ReadsHotpot) {
  const auto passages = ParsePassages(
      R"([{"question": "q", "answer": "yes", "supporting_facts": [["T2", 0], ["T1", 1]],
           "context": [["T1", ["a.", " b."]], ["T2", ["c."]], ["T3", ["d."]]]},
          {"question": "r", "answer": "no", "supporting_facts": [["T3", 0]],
           "context": [["T3", ["d."]]]}])",
      "f.json");
  ASSERT_TRUE(passages.ok()) << passages.status().message();
  EXPECT_EQ(passages->paragraphs, (std::vector<std::string>{"T1\na. b.", "T2\nc.", "T3\nd."}));
  EXPECT_EQ(passages->questions[0].golden, (std::vector<size_t>{0, 1}));
  EXPECT_EQ(passages->questions[1].golden, std::vector<size_t>{2});
}

TEST(Passages, SaysWhatIsWrong) {
  const std::pair<std::string, std::string> cases[] = {
      {"{", "is no JSON of questions"},
      {"{\"a\": 1}", "is no JSON of questions"},
      {"[]", "has no question"},
      {"[1]", "question 1: needs"},
      {R"([{"question": "q", "answer": "", "context": []}])", "question 1: needs"},
      {R"([{"question": "q", "answer": "a", "context": []}])", "\"supporting_facts\" must be"},
      {R"([{"question": "q", "answer": "a", "context": [["t"]], "supporting_facts": []}])",
       "a title and a list"},
      {R"([{"question": "q", "answer": "a", "context": [["t", ["x"]]], "supporting_facts": []}])",
       "no paragraph has one"},
      {"{\"data\": 1}", "must be a list"},
      {"{\"data\": [{}]}", "article 1: \"paragraphs\""},
      {"{\"data\": [{\"paragraphs\": [{\"context\": \"c\", \"qas\": [{}]}]}]}", "each of \"qas\""},
      {std::string(100'000, '['), "nested too deeply"},
  };
  for (const auto& [text, message] : cases) {
    const auto passages = ParsePassages(text, "f.json");
    ASSERT_FALSE(passages.ok()) << text;
    EXPECT_THAT(passages.status().message(), HasSubstr("f.json"));
    EXPECT_THAT(passages.status().message(), HasSubstr(message));
  }
}

TEST(Passages, GoldenOnesLieAmongOthers) {
  Passages passages;
  for (int i = 0; i < 20; ++i) passages.paragraphs.push_back("p" + std::to_string(i) + ".");
  const Passages::Asked asked{"q", {"a"}, {3, 7}};
  const std::vector<size_t> order = PassageOrder(passages, asked, 5);
  ASSERT_EQ(order.size(), 20u);
  EXPECT_EQ(order[0], 3u);
  EXPECT_EQ(order[1], 7u);
  for (const int64_t count : {1, 2, 10, 20}) {
    const RetrievalLine line = AskAboutPassages(passages, asked, order, count, 6);
    EXPECT_THAT(line.context, HasSubstr(":\np3."));
    EXPECT_THAT(line.context, HasSubstr(":\np7."));
    const auto last = std::to_string(std::max<int64_t>(count, 2));
    EXPECT_THAT(line.context, HasSubstr("Document " + last + ":\n"));
  }
  EXPECT_EQ(PassageOrder(passages, asked, 5), order);
  EXPECT_NE(PassageOrder(passages, asked, 6), order);
}

}  // namespace
}  // namespace headway::eval
