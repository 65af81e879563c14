#include "engine/eval/files/many_tasks.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

namespace headway::eval {
namespace {

constexpr const char* kBook = "A book follows, and a question about it.";
constexpr const char* kShort = "Question: {}\nGive the answer alone, in few words.\nAnswer:";
constexpr const char* kShortChinese = "问题：{}\n只给出答案，尽量简短。\n答案：";
constexpr const char* kLetter = "Question: {}\nReply with the letter of the right answer.\nAnswer:";

constexpr TaskSchema kInfiniteBench[] = {
    {"passkey", Metric::kFirstInteger, 16, "", "{}"},
    {"number_string", Metric::kFirstInteger, 32, "", "{}"},
    {"kv_retrieval", Metric::kWord, 96, "JSON data follow.", "{}"},
    {"longbook_sum_eng", Metric::kRouge, 1200, "A book follows.", "Summarise the book.\nSummary:"},
    {"longbook_choice_eng", Metric::kChoice, 40, kBook, kLetter},
    {"longbook_qa_eng", Metric::kF1, 40, kBook, kShort},
    {"longbook_qa_chn", Metric::kF1Chinese, 40, "", kShortChinese},
    {"longdialogue_qa_eng", Metric::kContainsAny, 40,
     "A script follows, in which $$MASK$$ stands for the name of a character.",
     "Whose name is $$MASK$$? Give the name alone.\nAnswer:"},
    {"math_find", Metric::kFirstNumber, 16, "", "{}\nGive the number alone.\nAnswer:"},
    {"math_calc", Metric::kLeadingNumbers, 4096, "",
     "{}\nGive the result after each operation, from the first on, divided by commas.\nAnswer:"},
    {"code_run", Metric::kLastInteger, 16, "", "{}\nGive the number alone.\nAnswer:"},
    {"code_debug", Metric::kChoice, 40,
     "The code of a project follows. One of its functions has an error.",
     "Which function has the error?{}\nReply with the letter of the right answer.\nAnswer:"},
};

constexpr TaskSchema kScBench[] = {
    {"scbench_kv", Metric::kContains, 150, "", "{}"},
    {"scbench_kv_hard", Metric::kContains, 150, "", "{}"},
    {"scbench_kv_compressible", Metric::kContains, 150, "", "{}"},
    {"scbench_prefix_suffix", Metric::kContains, 150, "", "{}"},
    {"scbench_hashhop", Metric::kContains, 150, "", "{}"},
    {"scbench_vt", Metric::kContainsFolded, 64, "", "{}"},
    {"scbench_passkey", Metric::kFirstInteger, 16, "", "{}"},
    {"scbench_mf", Metric::kFirstNumber, 16, "", "{}"},
    {"scbench_qa_eng", Metric::kContainsAny, 40, kBook, kShort},
    {"scbench_qa_chn", Metric::kF1Chinese, 40, "", kShortChinese},
    {"scbench_choice_eng", Metric::kChoice, 40, kBook, kLetter},
    {"scbench_many_shot", Metric::kContainsAny, 16, "", "{}"},
    {"scbench_summary", Metric::kRouge, 800, "", "{}"},
};

// Files whose turns are of several tasks, each of which a turn names.
constexpr TaskSchema kScBenchMixed[] = {
    {"scbench_summary_with_needles", Metric::kContains, 0, "", "{}"},
    {"scbench_repoqa_and_kv", Metric::kContains, 0, "", "{}"},
};
constexpr const char* kRepoQa = "scbench_repoqa";

bool IsMixed(const std::string& task) {
  for (const TaskSchema& mixed : kScBenchMixed) {
    if (task == mixed.name) return true;
  }
  return false;
}

// A question of either data set: both have "input", "answer" and, for choices, "options".
Result<Question> ReadQuestion(const Json& object, const TaskSchema& schema,
                              const std::string& where) {
  Result<std::string> input = ReadStringOr(object, "input", where);
  if (!input.ok()) return input.status();
  Result<std::vector<std::string>> answers = ReadAnswers(object, "answer", where);
  if (!answers.ok()) return answers.status();
  Question question;
  question.expected = {schema.metric, std::move(*answers), {}, schema.part};
  question.text = QuestionText(schema, *input);
  question.max_tokens = schema.max_tokens;
  question.labels = {{"task", schema.name}, {"metric", MetricName(schema.metric)}};
  if (schema.metric != Metric::kChoice) return question;
  Result<std::vector<std::string>> options = ReadStrings(object, "options", where);
  if (!options.ok()) return options.status();
  Result<std::string> letter = LetterOf(question.expected.answers, *options, where);
  if (!letter.ok()) return letter.status();
  question.text = QuestionText(schema, *input + ChoicesText(*options));
  question.expected.answers = {std::move(*letter)};
  question.expected.classes = std::move(*options);
  return question;
}

}  // namespace

Result<Document> InfiniteBenchDocument(const Json& line, const std::string& task,
                                       const std::string& id, const std::string& where) {
  const Result<const TaskSchema*> schema = SchemaOf(kInfiniteBench, task, where);
  if (!schema.ok()) return schema.status();
  const Result<std::string> context = ReadString(line, "context", where);
  if (!context.ok()) return context.status();
  Result<Question> question = ReadQuestion(line, **schema, where);
  if (!question.ok()) return question.status();
  question->id = id;
  return Document{DocumentText(**schema, *context), (*schema)->turn, {std::move(*question)}};
}

Result<Document> ScBenchDocument(const Json& line, const std::string& task, const std::string& id,
                                 const std::string& where, int64_t* left_out) {
  const bool mixed = IsMixed(task);
  Document document;
  Result<std::string> context =
      ReadString(line, line.contains("context") ? "context" : "input", where);
  if (!context.ok()) return context.status();
  document.text = std::move(*context);
  const auto turns = line.find("multi_turns");
  if (turns == line.end() || !turns->is_array() || turns->empty()) {
    return WrongLine(where, "\"multi_turns\" must be a list of questions");
  }
  for (size_t i = 0; i < turns->size(); ++i) {
    const Json& turn = (*turns)[i];
    const std::string at = fmt::format("{}, turn {}", where, i + 1);
    if (!turn.is_object()) return WrongLine(at, "is not a JSON object");
    Result<std::string> own = ReadStringOr(turn, "task", at);
    if (!own.ok()) return own.status();
    const std::string name = mixed && !own->empty() ? *own : task;
    if (name == kRepoQa) {
      ++*left_out;
      continue;
    }
    const Result<const TaskSchema*> schema = SchemaOf(kScBench, name, at);
    if (!schema.ok()) return schema.status();
    Result<Question> question = ReadQuestion(turn, **schema, at);
    if (!question.ok()) return question.status();
    question->id = fmt::format("{}-{}", id, i + 1);
    question->labels.emplace_back("turn", std::to_string(i + 1));
    // The document begins alike for all of its questions, so that it is read once.
    if (document.questions.empty()) document.text = DocumentText(**schema, document.text);
    document.questions.push_back(std::move(*question));
  }
  return document;
}

}  // namespace headway::eval
