#include "engine/eval/files/task_schema.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/eval/metric_text.h"

namespace headway::eval {

Status WrongLine(const std::string& where, const std::string& what) {
  return Status(StatusCode::kInvalidArgument, where + ": " + what);
}

Result<const TaskSchema*> SchemaOf(std::span<const TaskSchema> schemas, std::string_view name,
                                   const std::string& where) {
  std::string names;
  for (const TaskSchema& schema : schemas) {
    if (name == schema.name) return &schema;
    names += (names.empty() ? "" : ", ") + std::string(schema.name);
  }
  // A name of a file of others may be anything.
  const std::string shown =
      Json(name.substr(0, 60)).dump(-1, ' ', true, Json::error_handler_t::replace);
  return WrongLine(where, fmt::format("unknown task {}; there are {}", shown, names));
}

Result<std::string> ReadString(const Json& object, const char* key, const std::string& where) {
  const auto found = object.find(key);
  if (found != object.end() && found->is_string()) return found->get<std::string>();
  return WrongLine(where, fmt::format("\"{}\" must be a string", key));
}

Result<std::string> ReadStringOr(const Json& object, const char* key, const std::string& where) {
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) return std::string();
  return ReadString(object, key, where);
}

Result<std::vector<std::string>> ReadAnswers(const Json& object, const char* key,
                                             const std::string& where) {
  const Status wrong = WrongLine(
      where, fmt::format("\"{}\" must be a string, a number or a list of these, none empty", key));
  const auto found = object.find(key);
  if (found == object.end()) return wrong;
  const Json list = found->is_array() ? *found : Json::array({*found});
  std::vector<std::string> answers;
  for (const Json& item : list) {
    if (!item.is_string() && !item.is_number()) return wrong;
    answers.push_back(item.is_string() ? item.get<std::string>() : item.dump());
    if (answers.back().empty()) return wrong;
  }
  if (answers.empty()) return wrong;
  return answers;
}

Result<std::vector<std::string>> ReadStrings(const Json& object, const char* key,
                                             const std::string& where) {
  std::vector<std::string> strings;
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) return strings;
  const Status wrong = WrongLine(where, fmt::format("\"{}\" must be a list of strings", key));
  if (!found->is_array()) return wrong;
  for (const Json& item : *found) {
    if (!item.is_string()) return wrong;
    strings.push_back(item.get<std::string>());
  }
  return strings;
}

std::string DocumentText(const TaskSchema& schema, const std::string& context) {
  return *schema.before == 0 ? context : fmt::format("{}\n\n{}", schema.before, context);
}

std::string QuestionText(const TaskSchema& schema, const std::string& input) {
  std::string text = schema.after;
  if (const size_t at = text.find("{}"); at != std::string::npos) text.replace(at, 2, input);
  return text;
}

std::string ChoicesText(const std::vector<std::string>& options) {
  std::string text;
  for (size_t i = 0; i < options.size(); ++i) {
    text += fmt::format("\n{}. {}", static_cast<char>('A' + i), options[i]);
  }
  return text;
}

Result<std::string> LetterOf(const std::vector<std::string>& answers,
                             const std::vector<std::string>& options, const std::string& where) {
  constexpr size_t kLetters = 26;
  if (options.size() < 2 || options.size() > kLetters) {
    return WrongLine(where,
                     fmt::format("2 to {} options are needed, not {}", kLetters, options.size()));
  }
  for (const std::string& answer : answers) {
    const auto found = std::find(options.begin(), options.end(), answer);
    if (found != options.end()) {
      return std::string(1, static_cast<char>('A' + (found - options.begin())));
    }
  }
  for (const std::string& answer : answers) {
    const std::string_view letter = Trimmed(answer);
    if (letter.size() == 1 && letter[0] >= 'A' &&
        letter[0] < static_cast<char>('A' + options.size())) {
      return std::string(letter);
    }
  }
  return WrongLine(where, "the answer is none of the options");
}

}  // namespace headway::eval
