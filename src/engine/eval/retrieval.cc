#include "engine/eval/retrieval.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "engine/eval/json_lines.h"

namespace headway::eval {
namespace {

using Json = nlohmann::ordered_json;

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

Result<RetrievalLine> ParseLine(const Json& object, const std::string& where, size_t index) {
  if (!object.is_object()) {
    return Status(StatusCode::kInvalidArgument, where + ": is not a JSON object");
  }
  RetrievalLine line;
  for (const auto& [key, target] :
       {std::pair{"context", &line.context}, std::pair{"question", &line.question}}) {
    const std::string* value = Text(object, key);
    if (value == nullptr) {
      return Status(StatusCode::kInvalidArgument,
                    fmt::format("{}: \"{}\" must be a string", where, key));
    }
    *target = *value;
  }
  Result<std::vector<std::string>> answer = ParseAnswer(object, where);
  if (!answer.ok()) return answer.status();
  line.answer = std::move(*answer);
  const auto id = object.find("id");
  if (id == object.end()) {
    line.id = std::to_string(index);
  } else {
    line.id = id->is_string() ? id->get<std::string>() : id->dump();
  }
  return line;
}

}  // namespace

Result<std::vector<RetrievalLine>> ParseRetrievalLines(std::string_view jsonl,
                                                       const std::string& name,
                                                       std::set<std::string>* others) {
  std::vector<RetrievalLine> lines;
  const auto take = [&](const Json& value, const std::string& where) {
    Result<RetrievalLine> line = ParseLine(value, where, lines.size());
    if (!line.ok()) return line.status();
    for (std::string& key : OtherKeys(value, {"context", "question", "answer", "id"})) {
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
  return object.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string AskAbout(std::string_view document, std::string_view question) {
  return fmt::format("{}\n\n{}", document, question);
}

double ScoreOutput(const std::vector<std::string>& answer, std::string_view output) {
  if (answer.empty()) return 0.0;
  int64_t found = 0;
  for (const std::string& wanted : answer) {
    found += output.find(wanted) != std::string_view::npos ? 1 : 0;
  }
  return static_cast<double>(found) / static_cast<double>(answer.size());
}

Result<std::vector<TokenId>> RetrievalPrompt(const Engine& engine, const RetrievalLine& line,
                                             const ChatOptions& options) {
  const ChatMessage turn{"user", AskAbout(line.context, line.question)};
  Result<std::string> text = engine.RenderChat({&turn, 1}, options);
  if (!text.ok()) return text.status();
  return engine.Encode(*text, {.add_special_tokens = false, .parse_special = true});
}

Result<RetrievalResult> RunRetrievalLine(Context& context, const RetrievalLine& line,
                                         Request request, const Hooks& hooks) {
  context.Reset();
  Result<std::vector<Generation>> made = context.Generate({&request, 1}, hooks);
  if (!made.ok()) return made.status();
  Generation& generation = made->front();
  if (generation.finish == FinishReason::kCancelled) {
    return Status(StatusCode::kCancelled, "stopped in line " + line.id);
  }
  RetrievalResult result;
  result.id = line.id;
  result.score = ScoreOutput(line.answer, generation.text);
  result.output = std::move(generation.text);
  result.prompt_tokens = generation.prompt_tokens;
  return result;
}

}  // namespace headway::eval
