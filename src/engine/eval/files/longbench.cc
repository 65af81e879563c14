#include "engine/eval/files/longbench.h"

#include <fmt/format.h>

#include <utility>

namespace headway::eval {
namespace {

constexpr const char* kShort =
    "Question: {}\nGive the answer alone, in as few words as possible.\nAnswer:";
constexpr const char* kShortChinese = "问题：{}\n只给出答案，尽量简短。\n答案：";
constexpr const char* kPassages = "Passages follow, and a question about them.";
constexpr const char* kExamples = "Go on as in the examples.";

// Metrics and lengths of outputs are LongBench's. It shows few-shot tasks and code to models as
// text to continue, and scores the first line of few-shot outputs.
constexpr TaskSchema kLongBench[] = {
    {"narrativeqa", Metric::kF1, 128, "A story follows, and a question about it.", kShort},
    {"qasper", Metric::kF1, 128, "A scientific paper follows, and a question about it.",
     "Question: {}\nGive the answer alone, in as few words as possible: yes or no where that is "
     "asked, unanswerable where the paper does not say.\nAnswer:"},
    {"multifieldqa_en", Metric::kF1, 64, "A text follows, and a question about it.", kShort},
    {"multifieldqa_zh", Metric::kF1Chinese, 64, "", kShortChinese},
    {"hotpotqa", Metric::kF1, 32, kPassages, kShort},
    {"2wikimqa", Metric::kF1, 32, kPassages, kShort},
    {"musique", Metric::kF1, 32, kPassages, kShort},
    {"dureader", Metric::kRougeChinese, 128, "", "问题：{}\n根据以上文章回答。\n答案："},
    {"gov_report", Metric::kRouge, 512, "A report follows.",
     "Summarise the report on at most one page.\nSummary:"},
    {"qmsum", Metric::kRouge, 512, "A transcript of a meeting follows, and a question about it.",
     "Question: {}\nAnswer in one sentence or several.\nAnswer:"},
    {"multi_news", Metric::kRouge, 512, "Articles of several newspapers follow.",
     "Summarise all of the articles on at most one page.\nSummary:"},
    {"vcsum", Metric::kRougeChinese, 512, "", "请总结以上会议记录。\n总结："},
    {"trec", Metric::kClass, 64, kExamples, "{}", Turn::kPlain, OutputPart::kFirstLine},
    {"triviaqa", Metric::kF1, 32, kExamples, "{}", Turn::kPlain, OutputPart::kFirstLine},
    {"samsum", Metric::kRouge, 128, kExamples, "{}", Turn::kPlain, OutputPart::kFirstLine},
    {"lsht", Metric::kClass, 64, "按照示例继续。", "{}", Turn::kPlain, OutputPart::kFirstLine},
    {"passage_count", Metric::kNumberShare, 32, "Paragraphs follow, some of them more than once.",
     "How many different paragraphs are there? Give the number alone.\nAnswer:"},
    {"passage_retrieval_en", Metric::kNumberShare, 32, "Numbered paragraphs follow.",
     "Abstract: {}\nWhich paragraph does it sum up? Answer \"Paragraph 1\" or the like.\nAnswer:"},
    {"passage_retrieval_zh", Metric::kNumberShare, 32, "",
     "摘要：{}\n它概括的是哪一段？按“段落1”的格式回答。\n答案："},
    {"lcc", Metric::kCode, 64, "", "", Turn::kPlain},
    {"repobench-p", Metric::kCode, 64, "", "{}", Turn::kPlain},
};

}  // namespace

Result<Document> LongBenchDocument(const Json& line, const std::string& task, const std::string& id,
                                   const std::string& where) {
  Result<std::string> dataset = ReadStringOr(line, "dataset", where);
  if (!dataset.ok()) return dataset.status();
  std::string name = dataset->empty() ? task : *dataset;
  if (name.ends_with("_e")) name.resize(name.size() - 2);  // LongBench-E
  const Result<const TaskSchema*> schema = SchemaOf(kLongBench, name, where);
  if (!schema.ok()) return schema.status();
  const Result<std::string> context = ReadString(line, "context", where);
  if (!context.ok()) return context.status();
  const Result<std::string> input = ReadStringOr(line, "input", where);
  if (!input.ok()) return input.status();
  const Result<std::vector<std::string>> answers = ReadAnswers(line, "answers", where);
  if (!answers.ok()) return answers.status();
  const Result<std::vector<std::string>> classes = ReadStrings(line, "all_classes", where);
  if (!classes.ok()) return classes.status();
  const TaskSchema& task_schema = **schema;
  if (task_schema.metric == Metric::kClass && classes->empty()) {
    return WrongLine(where, "\"all_classes\" must have the labels of " + name);
  }
  Question question;
  question.id = id;
  question.text = QuestionText(task_schema, *input);
  question.expected = {task_schema.metric, *answers, *classes, task_schema.part};
  question.max_tokens = task_schema.max_tokens;
  question.labels = {{"dataset", name}, {"metric", MetricName(task_schema.metric)}};
  return Document{DocumentText(task_schema, *context), task_schema.turn, {std::move(question)}};
}

Result<Document> LongBench2Document(const Json& line, const std::string& id,
                                    const std::string& where) {
  std::string text[9];
  constexpr const char* kKeys[] = {"context",  "question", "answer", "choice_A",  "choice_B",
                                   "choice_C", "choice_D", "length", "difficulty"};
  for (size_t i = 0; i < std::size(kKeys); ++i) {
    Result<std::string> value = ReadString(line, kKeys[i], where);
    if (!value.ok()) return value.status();
    text[i] = std::move(*value);
  }
  const std::vector<std::string> options(text + 3, text + 7);
  const Result<std::string> letter = LetterOf({text[2]}, options, where);
  if (!letter.ok()) return letter.status();
  Question question;
  question.id = id;
  question.text = fmt::format(
      "Question: {}\n{}\n\nWhich answer is right? Reply \"The correct answer is (A)\", or (B), (C) "
      "or (D).",
      text[1], ChoicesText(options));
  question.expected = {Metric::kChoice, {*letter}, options, OutputPart::kWhole};
  question.max_tokens = 128;
  question.labels = {{"length", text[7]}, {"difficulty", text[8]}};
  return Document{std::move(text[0]), Turn::kChat, {std::move(question)}};
}

}  // namespace headway::eval
