#include "engine/eval/retrieval.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace headway::eval {
namespace {

using ::testing::HasSubstr;

TEST(Retrieval, ReadsLines) {
  std::set<std::string> others;
  const auto lines = ParseRetrievalLines(
      "{\"id\": \"a\", \"context\": \"c\\n1\", \"question\": \"q\", \"answer\": [\"x\", \"y\"]}\r\n"
      "\n"
      "{\"context\": \"d\", \"question\": \"r\", \"answer\": \"z\", \"other\": {}}\n"
      "{\"id\": 17, \"context\": \"\", \"question\": \"\", \"answer\": [\"w\"]}",
      "f.jsonl", &others);
  ASSERT_TRUE(lines.ok()) << lines.status().message();
  ASSERT_EQ(lines->size(), 3u);
  EXPECT_EQ((*lines)[0].id, "a");
  EXPECT_EQ((*lines)[0].context, "c\n1");
  EXPECT_EQ((*lines)[0].answer, (std::vector<std::string>{"x", "y"}));
  EXPECT_EQ((*lines)[1].id, "1");
  EXPECT_EQ((*lines)[1].answer, (std::vector<std::string>{"z"}));
  EXPECT_EQ((*lines)[2].id, "17");
  EXPECT_EQ(others, std::set<std::string>{"\"other\""});
}

TEST(Retrieval, SaysWhatIsWrongWithALine) {
  const char* good = "{\"context\": \"c\", \"question\": \"q\", \"answer\": [\"x\"]}\n";
  const std::pair<std::string, std::string> cases[] = {
      {"[1, 2]", "line 2: is not a JSON object"},
      {"{\"context\": \"c\"", "line 2: is not a JSON object"},
      {"{\"context\": \"\xff\", \"question\": \"q\", \"answer\": [\"x\"]}", "not a JSON object"},
      {"{\"context\": 1, \"question\": \"q\", \"answer\": [\"x\"]}", "\"context\" must be"},
      {"{\"context\": \"c\", \"answer\": [\"x\"]}", "\"question\" must be"},
      {"{\"context\": \"c\", \"context\": \"d\", \"question\": \"q\", \"answer\": \"x\"}",
       "line 2: the key \"context\" is there twice"},
      {"{\"context\": \"c\", \"question\": \"q\"}", "\"answer\" must be"},
      {"{\"context\": \"c\", \"question\": \"q\", \"answer\": []}", "\"answer\" must be"},
      {"{\"context\": \"c\", \"question\": \"q\", \"answer\": [\"\"]}", "\"answer\" must be"},
      {"{\"context\": \"c\", \"question\": \"q\", \"answer\": [3]}", "\"answer\" must be"},
      {"{\"context\": \"c\", \"question\": \"q\", \"answer\": \"x\", \"metric\": \"bleu\"}",
       "\"metric\" must be one of contains, "},
      {"{\"context\": \"c\", \"question\": \"q\", \"answer\": \"x\", \"max_tokens\": 0}",
       "\"max_tokens\" must be 1 to"},
      {"{\"context\": \"c\", \"question\": \"q\", \"answer\": \"x\", \"max_tokens\": 1e3}",
       "\"max_tokens\" must be 1 to"},
      {"{\"context\": \"c\", \"question\": \"q\", \"answer\": \"x\", \"labels\": []}",
       "\"labels\" must be an object"},
      {"{\"context\": \"c\", \"question\": \"q\", \"answer\": \"x\", \"labels\": {\"a\": {}}}",
       "\"labels\" may have strings and numbers"},
  };
  std::set<std::string> others;
  for (const auto& [text, message] : cases) {
    const auto lines = ParseRetrievalLines(good + text, "f.jsonl", &others);
    ASSERT_FALSE(lines.ok()) << text;
    EXPECT_THAT(lines.status().message(), HasSubstr("f.jsonl, line 2"));
    EXPECT_THAT(lines.status().message(), HasSubstr(message));
  }
  EXPECT_FALSE(ParseRetrievalLines("\n\n", "f.jsonl", &others).ok());
  EXPECT_FALSE(ParseRetrievalLines(std::string(100'000, '['), "f.jsonl", &others).ok());
}

TEST(Retrieval, WritesWhatItReads) {
  const RetrievalLine line{"n-1", "some \"text\"\nétage", "what?", {"a b", "c"}};
  std::set<std::string> others;
  const auto read = ParseRetrievalLines(RetrievalLineJson(line), "f", &others);
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ((*read)[0].id, line.id);
  EXPECT_EQ((*read)[0].context, line.context);
  EXPECT_EQ((*read)[0].question, line.question);
  EXPECT_EQ((*read)[0].answer, line.answer);
}

TEST(Retrieval, ReadsHowALineIsScoredAndLabelled) {
  const char* line =
      "{\"context\": \"c\", \"question\": \"q\", \"answer\": \"x\", \"metric\": \"qa-f1\", "
      "\"max_tokens\": 9, \"labels\": {\"task\": \"t\", \"length\": 512}}";
  std::set<std::string> others;
  const auto lines = ParseRetrievalLines(line, "f", &others);
  ASSERT_TRUE(lines.ok()) << lines.status().message();
  EXPECT_EQ((*lines)[0].metric, Metric::kF1);
  EXPECT_EQ((*lines)[0].max_tokens, 9);
  EXPECT_EQ((*lines)[0].labels, (Labels{{"task", "t"}, {"length", "512"}}));
  EXPECT_TRUE(others.empty());
  const auto again = ParseRetrievalLines(RetrievalLineJson((*lines)[0]), "f", &others);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ((*again)[0].metric, Metric::kF1);
  EXPECT_EQ((*again)[0].max_tokens, 9);
  EXPECT_EQ((*again)[0].labels, (*lines)[0].labels);

  const Document document = DocumentOf((*lines)[0]);
  EXPECT_EQ(document.text, "c");
  ASSERT_EQ(document.questions.size(), 1u);
  EXPECT_EQ(document.questions[0].text, "q");
  EXPECT_EQ(document.questions[0].expected.metric, Metric::kF1);
  EXPECT_EQ(document.questions[0].expected.answers, std::vector<std::string>{"x"});
}

}  // namespace
}  // namespace headway::eval
