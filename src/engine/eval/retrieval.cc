#include "engine/eval/retrieval.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "engine/eval/json_lines.h"

namespace headway::eval {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMaxOutput = 1'000'000;

// A member of a line as text. Null when it is not there or is no text.
const std::string* Text(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get_ptr<const std::string*>()
                                                     : nullptr;
}

Result<std::vector<std::string>> ParseAnswer(const Json& object, const std::string& where) {
  const Status wrong(StatusCode::kInvalidArgument,
                     where + ": \"answer\" must be a string or a list of strings, none empty");
  const auto found = object.find("answer");
  if (found == object.end()) return wrong;
  const Json list = found->is_array() ? *found : Json::array({*found});
  std::vector<std::string> answer;
  for (const Json& item : list) {
    if (!item.is_string() || item.get_ref<const std::string&>().empty()) return wrong;
    answer.push_back(item.get<std::string>());
  }
  if (answer.empty()) return wrong;
  return answer;
}

Status Wrong(const std::string& where, const std::string& what) {
  return Status(StatusCode::kInvalidArgument, where + ": " + what);
}

// The members that a line may lack.
Status ParseOptional(const Json& object, const std::string& where, RetrievalLine* line) {
  if (const auto id = object.find("id"); id != object.end()) {
    line->id = id->is_string() ? id->get<std::string>() : id->dump();
  }
  if (object.contains("metric")) {
    const std::string* name = Text(object, "metric");
    const std::optional<Metric> metric = name == nullptr ? std::nullopt : MetricOf(*name);
    if (!metric.has_value()) {
      return Wrong(where, "\"metric\" must be one of " + MetricNames());
    }
    line->metric = *metric;
  }
  if (const auto tokens = object.find("max_tokens"); tokens != object.end()) {
    if (!tokens->is_number_integer() || *tokens < 1 || *tokens > kMaxOutput) {
      return Wrong(where, fmt::format("\"max_tokens\" must be 1 to {}", kMaxOutput));
    }
    line->max_tokens = tokens->get<int64_t>();
  }
  if (const auto labels = object.find("labels"); labels != object.end()) {
    if (!labels->is_object()) return Wrong(where, "\"labels\" must be an object");
    for (const auto& [name, value] : labels->items()) {
      if (!value.is_string() && !value.is_number()) {
        return Wrong(where, "\"labels\" may have strings and numbers alone");
      }
      line->labels.emplace_back(name, value.is_string() ? value.get<std::string>() : value.dump());
    }
  }
  return OkStatus();
}

}  // namespace

Result<RetrievalLine> ParseRetrievalLine(const Json& object, const std::string& where,
                                         size_t index) {
  if (!object.is_object()) return Wrong(where, "is not a JSON object");
  RetrievalLine line;
  for (const auto& [key, target] :
       {std::pair{"context", &line.context}, std::pair{"question", &line.question}}) {
    const std::string* value = Text(object, key);
    if (value == nullptr) return Wrong(where, fmt::format("\"{}\" must be a string", key));
    *target = *value;
  }
  Result<std::vector<std::string>> answer = ParseAnswer(object, where);
  if (!answer.ok()) return answer.status();
  line.answer = std::move(*answer);
  line.id = std::to_string(index);
  if (Status s = ParseOptional(object, where, &line); !s.ok()) return s;
  return line;
}

Document DocumentOf(const RetrievalLine& line) {
  Question question{line.id, line.question, {}, line.max_tokens, line.labels};
  question.expected.metric = line.metric;
  question.expected.answers = line.answer;
  return {line.context, Turn::kChat, {std::move(question)}};
}

Result<std::vector<RetrievalLine>> ParseRetrievalLines(std::string_view jsonl,
                                                       const std::string& name,
                                                       std::set<std::string>* others) {
  std::vector<RetrievalLine> lines;
  const auto take = [&](const Json& value, const std::string& where) {
    Result<RetrievalLine> line = ParseRetrievalLine(value, where, lines.size());
    if (!line.ok()) return line.status();
    for (std::string& key : OtherKeys(
             value, {"context", "question", "answer", "id", "metric", "max_tokens", "labels"})) {
      others->insert(std::move(key));
    }
    lines.push_back(std::move(*line));
    return OkStatus();
  };
  if (Status s = ForEachJsonLine(jsonl, name, take); !s.ok()) return s;
  if (lines.empty()) return Status(StatusCode::kInvalidArgument, name + " has no lines");
  return lines;
}

std::string RetrievalLineJson(const RetrievalLine& line) {
  Json object;
  object["id"] = line.id;
  object["context"] = line.context;
  object["question"] = line.question;
  object["answer"] = line.answer;
  if (line.metric != Metric::kContains) object["metric"] = MetricName(line.metric);
  if (line.max_tokens > 0) object["max_tokens"] = line.max_tokens;
  for (const auto& [name, value] : line.labels) object["labels"][name] = value;
  return object.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

Result<std::vector<TokenId>> RetrievalPrompt(const Engine& engine, const RetrievalLine& line,
                                             const ChatOptions& options) {
  const Document document = DocumentOf(line);
  return PromptOf(engine, document, document.questions.front(), options);
}

}  // namespace headway::eval
