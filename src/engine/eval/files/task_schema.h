// What the readers of files share: how a task of a data set is asked and scored, and reading the
// members of its lines.
#ifndef HEADWAY_ENGINE_EVAL_FILES_TASK_SCHEMA_H_
#define HEADWAY_ENGINE_EVAL_FILES_TASK_SCHEMA_H_

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/eval/question.h"
#include "headway/status.h"

namespace headway::eval {

using Json = nlohmann::ordered_json;

struct TaskSchema {
  const char* name;
  Metric metric;
  int64_t max_tokens;  // of the output
  const char* before;  // ahead of the document
  const char* after;   // behind it; {} is the line's input
  Turn turn = Turn::kChat;
  OutputPart part = OutputPart::kWhole;
};

// Where a line lies in its file, for messages: "f.jsonl, line 3".
Status WrongLine(const std::string& where, const std::string& what);

// kInvalidArgument with all names where none is `name`.
Result<const TaskSchema*> SchemaOf(std::span<const TaskSchema> schemas, std::string_view name,
                                   const std::string& where);

// A member that must be a string.
Result<std::string> ReadString(const Json& object, const char* key, const std::string& where);
// The same, or "" where it is not there or null.
Result<std::string> ReadStringOr(const Json& object, const char* key, const std::string& where);
// A string, a number or a list of them, as strings; at least one, none empty.
Result<std::vector<std::string>> ReadAnswers(const Json& object, const char* key,
                                             const std::string& where);
// A list of strings; empty where it is not there or null.
Result<std::vector<std::string>> ReadStrings(const Json& object, const char* key,
                                             const std::string& where);

// "before", a blank line, the context.
std::string DocumentText(const TaskSchema& schema, const std::string& context);
// `after` with the input in it.
std::string QuestionText(const TaskSchema& schema, const std::string& input);
// "\nA. ...\nB. ..."
std::string ChoicesText(const std::vector<std::string>& options);
// The letter of the answer, which is one of the options or a letter already.
Result<std::string> LetterOf(const std::vector<std::string>& answers,
                             const std::vector<std::string>& options, const std::string& where);

}  // namespace headway::eval

#endif  // HEADWAY_ENGINE_EVAL_FILES_TASK_SCHEMA_H_
