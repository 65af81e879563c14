#include "engine/chat_variables.h"

#include <nlohmann/json.hpp>
#include <string>

namespace headway {

using Json = nlohmann::ordered_json;

Result<Json> ChatVariables(const ChatOptions& options) {
  if (options.variables.empty()) return Json::object();
  constexpr int kMaxDepth = 100;  // copying a value takes stack for each level
  bool deep = false;
  const auto see = [&deep](int depth, Json::parse_event_t, const Json&) {
    deep = deep || depth > kMaxDepth;
    return !deep;
  };
  Json variables = Json::parse(options.variables, see, /*allow_exceptions=*/false);
  if (deep) {
    return Status(StatusCode::kInvalidArgument, "the template's variables are nested too deeply");
  }
  if (!variables.is_object()) {
    return Status(
        StatusCode::kInvalidArgument,
        "the template's variables are no JSON object such as {\"enable_thinking\": false}");
  }
  for (const char* name : {"messages", "add_generation_prompt"}) {
    if (variables.contains(name)) {
      return Status(StatusCode::kInvalidArgument, std::string("the template's variables have ") +
                                                      name +
                                                      ", which Headway sets itself; leave it out");
    }
  }
  return variables;
}

Status ChatOptions::Validate() const { return ChatVariables(*this).status(); }

}  // namespace headway
