#include "engine/eval/files/eval_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace headway::eval {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

EvalFile Read(const std::string& text, const std::string& path = "f.jsonl") {
  FileRequest request;
  request.path = path;
  Result<EvalFile> file = ReadEvalFile(text, request);
  EXPECT_TRUE(file.ok()) << file.status().message();
  return file.ok() ? std::move(*file) : EvalFile();
}

std::string ErrorOf(const std::string& text, const FileRequest& request) {
  const Result<EvalFile> file = ReadEvalFile(text, request);
  EXPECT_FALSE(file.ok()) << text;
  return file.ok() ? "" : std::string(file.status().message());
}

const std::string kTrec =
    R"({"input": "Question: Who?\nType:", "context": "Question: a\nType: X", "answers": ["Person"],)"
    R"( "length": 5, "dataset": "trec", "language": "en", "all_classes": ["Person", "Place"],)"
    R"( "_id": "t1"})";
const std::string kQa =
    R"({"input": "Who?", "context": "Some text.", "answers": ["Ann", "Anna"], "length": 2,)"
    R"( "dataset": "hotpotqa_e", "language": "en", "all_classes": null, "_id": "h1"})";

TEST(EvalFile, ReadsLongBench) {
  const EvalFile file = Read(kTrec + "\n\n" + kQa + "\n");
  EXPECT_EQ(file.format, FileFormat::kLongBench);
  EXPECT_TRUE(file.others.empty());
  ASSERT_EQ(file.documents.size(), 2u);
  const Document& trec = file.documents[0];
  EXPECT_EQ(trec.turn, Turn::kPlain);
  EXPECT_EQ(trec.questions[0].id, "t1");
  EXPECT_EQ(trec.questions[0].text, "Question: Who?\nType:");
  EXPECT_EQ(ScoreOutput(trec.questions[0].expected, " Person\nPlace"), 1.0);
  const Document& qa = file.documents[1];
  EXPECT_EQ(qa.turn, Turn::kChat);
  EXPECT_THAT(qa.text, HasSubstr("\n\nSome text."));
  EXPECT_THAT(qa.questions[0].text, StartsWith("Question: Who?\n"));
  EXPECT_EQ(qa.questions[0].max_tokens, 32);
  EXPECT_EQ(qa.questions[0].labels[0], (Labels::value_type{"dataset", "hotpotqa"}));
  EXPECT_EQ(ScoreOutput(qa.questions[0].expected, "Anna"), 1.0);
}

// Each data set of LongBench has an output that scores 1.
TEST(EvalFile, KnowsAllOfLongBench) {
  const std::pair<const char*, const char*> sets[] = {{"narrativeqa", "Ann"},
                                                      {"qasper", "Ann"},
                                                      {"multifieldqa_en", "Ann"},
                                                      {"multifieldqa_zh", "Ann"},
                                                      {"hotpotqa", "Ann"},
                                                      {"2wikimqa", "Ann"},
                                                      {"musique", "Ann"},
                                                      {"dureader", "Ann"},
                                                      {"gov_report", "Ann"},
                                                      {"qmsum", "Ann"},
                                                      {"multi_news", "Ann"},
                                                      {"vcsum", "Ann"},
                                                      {"trec", "Ann"},
                                                      {"triviaqa", "Ann"},
                                                      {"samsum", "Ann"},
                                                      {"lsht", "Ann"},
                                                      {"passage_count", "7"},
                                                      {"passage_retrieval_en", "Paragraph 7"},
                                                      {"passage_retrieval_zh", "段落7"},
                                                      {"lcc", "x = 1"},
                                                      {"repobench-p", "x = 1"}};
  for (const auto& [name, answer] : sets) {
    const std::string line = std::string(R"({"input": "i", "context": "c", "answers": [")") +
                             answer + R"("], "all_classes": ["Ann", "Bob"], "dataset": ")" + name +
                             "\"}";
    const EvalFile file = Read(line);
    ASSERT_EQ(file.documents.size(), 1u) << name;
    EXPECT_EQ(ScoreOutput(file.documents[0].questions[0].expected, answer), 1.0) << name;
    EXPECT_EQ(ScoreOutput(file.documents[0].questions[0].expected, "zzz"), 0.0) << name;
  }
}

const std::string kLongBench2Item =
    R"({"_id": "v", "domain": "d", "sub_domain": "s", "difficulty": "hard", "length": "short",)"
    R"( "question": "Which?", "choice_A": "one", "choice_B": "two", "choice_C": "three",)"
    R"( "choice_D": "four", "answer": "C", "context": "Text."})";

TEST(EvalFile, ReadsLongBench2AsAList) {
  const EvalFile file = Read("[\n " + kLongBench2Item + ",\n " + kLongBench2Item + "\n]\n");
  EXPECT_EQ(file.format, FileFormat::kLongBench2);
  EXPECT_EQ(file.grouping, Grouping::kEach);
  EXPECT_TRUE(file.others.empty());
  ASSERT_EQ(file.documents.size(), 2u);
  const Question& question = file.documents[1].questions[0];
  EXPECT_EQ(question.id, "v");
  EXPECT_THAT(question.text, HasSubstr("\nC. three\nD. four"));
  EXPECT_EQ(question.labels, (Labels{{"length", "short"}, {"difficulty", "hard"}}));
  EXPECT_EQ(ScoreOutput(question.expected, "The correct answer is (C)"), 1.0);
}

TEST(EvalFile, ReadsInfiniteBenchByTheFilesName) {
  const EvalFile passkey =
      Read(R"({"id": 3, "context": "c", "input": "What is the pass key?", "answer": ["71432"],)"
           R"( "options": []})",
           "data/passkey.jsonl");
  EXPECT_EQ(passkey.format, FileFormat::kInfiniteBench);
  EXPECT_EQ(passkey.documents[0].questions[0].id, "3");
  EXPECT_EQ(ScoreOutput(passkey.documents[0].questions[0].expected, "It is 71432"), 1.0);

  const EvalFile debug = Read(
      R"({"id": 0, "context": "c", "input": "", "answer": ["g"], "options": ["f", "g", "h", "i"]})",
      "code_debug.jsonl");
  EXPECT_EQ(debug.documents[0].questions[0].expected.answers, std::vector<std::string>{"B"});
  EXPECT_THAT(debug.documents[0].questions[0].text, HasSubstr("\nB. g"));
  const EvalFile calc =
      Read(R"({"id": 0, "context": "1+2", "input": "", "answer": [3, 4]})", "math_calc.jsonl");
  EXPECT_EQ(ScoreOutput(calc.documents[0].questions[0].expected, "3, 5"), 0.5);

  FileRequest request;
  request.path = "renamed.jsonl";
  const std::string line = R"({"context": "c", "input": "q", "answer": 95})";
  EXPECT_THAT(ErrorOf(line, request), HasSubstr("line 1: unknown task \"renamed\"; there are "
                                                "passkey, number_string"));
  request.task = "math_find";
  const Result<EvalFile> named = ReadEvalFile(line, request);
  ASSERT_TRUE(named.ok()) << named.status().message();
  EXPECT_EQ(ScoreOutput(named->documents[0].questions[0].expected, "95"), 1.0);
}

TEST(EvalFile, ReadsAllQuestionsOfScBench) {
  const EvalFile file =
      Read(R"({"id": 5, "context": "{}", "multi_turns": [{"input": "a?", "answer": "1-2"},)"
           R"( {"input": "b?", "answer": ["3-4"]}]})",
           "scbench_kv.jsonl");
  EXPECT_EQ(file.format, FileFormat::kScBench);
  ASSERT_EQ(file.documents.size(), 1u);
  ASSERT_EQ(file.documents[0].questions.size(), 2u);
  EXPECT_EQ(file.documents[0].questions[1].id, "5-2");
  EXPECT_EQ(file.documents[0].questions[1].labels[2], (Labels::value_type{"turn", "2"}));
  EXPECT_EQ(ScoreOutput(file.documents[0].questions[1].expected, "\"3-4\""), 1.0);

  const EvalFile mixed = Read(R"({"id": 0, "context": "c", "multi_turns": [)"
                              R"({"input": "f", "answer": "code", "task": "scbench_repoqa"},)"
                              R"({"input": "k", "answer": "v", "task": "scbench_kv"}]})",
                              "scbench_repoqa_and_kv.jsonl");
  EXPECT_EQ(mixed.documents[0].questions.size(), 1u);
  ASSERT_EQ(mixed.notes.size(), 1u);
  EXPECT_THAT(mixed.notes[0], StartsWith("1 turns of scbench_repoqa are left out"));
  FileRequest repoqa;
  repoqa.path = "scbench_repoqa.jsonl";
  EXPECT_THAT(
      ErrorOf(R"({"context": "c", "multi_turns": [{"input": "f", "answer": "code"}]})", repoqa),
      HasSubstr("has no lines: 1 turns of scbench_repoqa are left out"));
}

TEST(EvalFile, ReadsOwnLines) {
  const EvalFile file =
      Read(R"({"context": "c", "question": "q", "answer": "x", "extra": 1, "metric": "qa-f1"})");
  EXPECT_EQ(file.format, FileFormat::kLines);
  EXPECT_EQ(file.others, std::set<std::string>{"\"extra\""});
  EXPECT_EQ(file.documents[0].questions[0].expected.metric, Metric::kF1);
}

TEST(EvalFile, TakesAsManyLinesAsAsked) {
  FileRequest request;
  request.path = "f";
  request.most = 2;
  const Result<EvalFile> file = ReadEvalFile(kQa + "\n" + kQa + "\n" + kQa + "\n", request);
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(file->documents.size(), 2u);
}

TEST(EvalFile, SaysWhichLineIsWrong) {
  const auto with = [](const std::string& line, const std::string& from, const std::string& to) {
    std::string changed = line;
    changed.replace(changed.find(from), from.size(), to);
    return changed;
  };
  const std::pair<std::string, std::string> cases[] = {
      {kQa.substr(0, kQa.size() / 2), "line 2: is not a JSON object"},  // cut off
      {"[1]", "line 2: is not a JSON object"},
      {"null", "line 2: is not a JSON object"},
      {with(kQa, "\"Some text.\"", "7"), "line 2: \"context\" must be a string"},
      {with(kQa, "\"Some text.\"", "\"\xff\""), "line 2: is not a JSON object"},
      {with(kQa, "[\"Ann\", \"Anna\"]", "[]"), "line 2: \"answers\" must be"},
      {with(kQa, "[\"Ann\", \"Anna\"]", "[[]]"), "line 2: \"answers\" must be"},
      {with(kQa, "[\"Ann\", \"Anna\"]", "[\"\"]"), "line 2: \"answers\" must be"},
      {with(kQa, "\"Who?\"", "{}"), "line 2: \"input\" must be a string"},
      {with(kQa, "hotpotqa_e", "x\\ny\\u0000"), "line 2: unknown task \"x\\ny\\u0000\""},
      {with(kQa, "hotpotqa_e", std::string(100'000, 'x')), "line 2: unknown task \"xxx"},
      {with(kTrec, "[\"Person\", \"Place\"]", "null"), "\"all_classes\" must have"},
      {with(kTrec, "[\"Person\", \"Place\"]", "[3]"), "\"all_classes\" must be"},
      {std::string(100'000, '['), "line 2 is nested too deeply"},
  };
  FileRequest request;
  request.path = "f.jsonl";
  for (const auto& [line, message] : cases) {
    const std::string error = ErrorOf(kQa + "\n" + line, request);
    EXPECT_THAT(error, HasSubstr("f.jsonl, line 2"));
    EXPECT_THAT(error, HasSubstr(message));
    EXPECT_EQ(error.find('\n'), std::string::npos);
    EXPECT_LT(error.size(), 700u);
  }
  EXPECT_THAT(ErrorOf("{\"a\": 1}", request), HasSubstr("--format"));
  EXPECT_THAT(ErrorOf("", request), HasSubstr("f.jsonl has no lines"));
  EXPECT_THAT(ErrorOf("[]", request), HasSubstr("f.jsonl has no lines"));
  EXPECT_THAT(ErrorOf("[" + kLongBench2Item + ", {\"a\": 1}]", request),
              HasSubstr("f.jsonl, item 2: \"context\" must be a string"));
  EXPECT_THAT(ErrorOf("[" + kLongBench2Item, request), HasSubstr("is no JSON list"));
  EXPECT_THAT(ErrorOf(with(kLongBench2Item, "\"C\"", "\"E\""), request),
              HasSubstr("none of the options"));
  request.path = "scbench_kv.jsonl";
  for (const char* turns : {"7", "[]", "[1]", "[{}]", "[{\"input\": 1, \"answer\": \"x\"}]"}) {
    EXPECT_THAT(
        ErrorOf("{\"context\": \"c\", \"multi_turns\": " + std::string(turns) + "}", request),
        HasSubstr("scbench_kv.jsonl, line 1"));
  }
}

TEST(EvalFile, NamesItsFormats) {
  for (const std::string& name : FileFormatNames()) {
    ASSERT_TRUE(FileFormatOf(name).has_value());
    EXPECT_EQ(FileFormatName(*FileFormatOf(name)), name);
  }
  EXPECT_EQ(FileFormatOf("auto"), std::nullopt);
}

}  // namespace
}  // namespace headway::eval
