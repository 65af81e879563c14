#include "text/template/chat_template.h"

#include <fmt/format.h>

#include <chrono>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/utf8.h"
#include "text/template/ast.h"
#include "text/template/interpreter.h"
#include "text/template/runtime.h"

namespace headway {
namespace {

// Published templates have some 30 KiB at most.
constexpr size_t kMaxTemplateBytes = size_t{1} << 20;

int64_t SystemSeconds() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::seconds>(now).count();
}

jinja::Value TextFromJson(jinja::Runtime& rt, const std::string& text) {
  size_t bad = 0;
  if (!IsValidUtf8(text, &bad)) {
    return rt.Fail(fmt::format("a text of the context is not UTF-8 (byte {})", bad));
  }
  rt.Extend(static_cast<int64_t>(text.size()));
  return rt.Str(text);
}

jinja::Value NumberFromJson(jinja::Runtime& rt, const nlohmann::ordered_json& json) {
  if (json.is_number_float()) return jinja::Value::Float(json.get<double>());
  if (json.is_number_unsigned() &&
      json.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    return rt.Fail(StatusCode::kUnsupported, "an integer of the context does not fit in 64 bits");
  }
  return jinja::Value::Int(json.get<int64_t>());
}

// JSON as a value of the template, its size added to the limits of the rendering. Fails for text
// that is not UTF-8, for numbers beyond 64 bits and for data nested too deeply.
jinja::Value FromJson(jinja::Runtime& rt, const nlohmann::ordered_json& json) {
  const jinja::Nested nested(rt);
  if (!nested.ok()) return {};
  rt.Extend(1);
  if (json.is_null()) return jinja::Value::None();
  if (json.is_boolean()) return jinja::Value::Bool(json.get<bool>());
  if (json.is_number()) return NumberFromJson(rt, json);
  if (json.is_string()) return TextFromJson(rt, json.get_ref<const std::string&>());
  if (json.is_array()) {
    std::vector<jinja::Value> items;
    for (const auto& item : json) {
      items.push_back(FromJson(rt, item));
      if (rt.failed()) return {};
    }
    return rt.List(std::move(items));
  }
  if (!json.is_object()) return rt.Fail("the context holds what is no JSON");
  auto dict = std::make_shared<jinja::Dict>();
  for (const auto& [name, item] : json.items()) {
    const jinja::Value key = TextFromJson(rt, name);
    jinja::Value value = FromJson(rt, item);
    if (rt.failed()) return {};
    dict->Set(rt, key, std::move(value));
  }
  return rt.MakeDict(std::move(dict));
}

}  // namespace

ChatTemplate::ChatTemplate() = default;
ChatTemplate::~ChatTemplate() = default;

Status ChatTemplate::Add(const std::string& name, std::string_view source,
                         const std::string& where) {
  if (source.size() > kMaxTemplateBytes) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("chat template {} has {} bytes; at most {} are allowed", where,
                              source.size(), kMaxTemplateBytes));
  }
  size_t bad = 0;
  if (!IsValidUtf8(source, &bad)) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("chat template {} is not UTF-8 (byte {})", where, bad));
  }
  Result<std::unique_ptr<jinja::Template>> parsed = jinja::ParseTemplate(source, where);
  if (!parsed.ok()) return parsed.status();
  templates_[name] = std::move(*parsed);
  return OkStatus();
}

Result<std::unique_ptr<ChatTemplate>> ChatTemplate::Parse(std::string_view source,
                                                          std::string name) {
  std::unique_ptr<ChatTemplate> result(new ChatTemplate());
  Status added = result->Add("default", source, name);
  if (!added.ok()) return added;
  return result;
}

std::vector<std::string> ChatTemplate::names() const {
  std::vector<std::string> names;
  for (const auto& [name, unused] : templates_) names.push_back(name);
  return names;
}

Result<const jinja::Template*> ChatTemplate::Choose(const nlohmann::ordered_json& context) const {
  const auto tools = context.find("tools");
  const bool has_tools = tools != context.end() && !tools->is_null();
  auto chosen = has_tools ? templates_.find("tool_use") : templates_.end();
  if (chosen == templates_.end()) chosen = templates_.find("default");
  if (chosen == templates_.end()) {
    return Status(StatusCode::kUnsupported,
                  "the model has several chat templates and none is named 'default'");
  }
  return chosen->second.get();
}

Result<std::string> ChatTemplate::Render(const nlohmann::ordered_json& context,
                                         const RenderOptions& options) const {
  if (!context.is_object()) {
    return Status(StatusCode::kInvalidArgument, "the context of a chat template is no object");
  }
  const Result<const jinja::Template*> chosen = Choose(context);
  if (!chosen.ok()) return chosen.status();
  const jinja::Limits limits{.steps = options.max_steps, .output = options.max_output_bytes};
  const jinja::Template& parsed = **chosen;
  jinja::Runtime rt(parsed.name, limits, options.now_s.value_or(SystemSeconds()));
  const jinja::Value value = FromJson(rt, context);
  if (rt.failed()) return rt.status();
  jinja::Dict variables;
  for (const auto& [name, token] : special_tokens_) {
    variables.SetText(name, jinja::Value::Constant(token));
  }
  variables.SetText("tools", jinja::Value::None());
  variables.SetText("documents", jinja::Value::None());
  variables.SetText("add_generation_prompt", jinja::Value::Bool(false));
  for (const auto& [name, item] : value.entries().entries()) variables.SetText(name.text(), item);
  std::string output = jinja::Interpreter(rt, parsed, variables).Run();
  if (rt.failed()) return rt.status();
  return output;
}

nlohmann::ordered_json MakeChatContext(const nlohmann::ordered_json& messages,
                                       const nlohmann::ordered_json& tools,
                                       bool add_generation_prompt) {
  constexpr const char* kReasoning[] = {"reasoning_content", "thinking", "reasoning"};
  nlohmann::ordered_json prepared = nlohmann::ordered_json::array();
  for (const auto& message : messages) {
    if (!message.is_object()) {
      prepared.push_back(message);
      continue;
    }
    nlohmann::ordered_json fields = nlohmann::ordered_json::object();
    const nlohmann::ordered_json* reasoning = nullptr;
    for (const char* name : kReasoning) {
      const auto it = message.find(name);
      if (reasoning == nullptr && it != message.end() && !it->is_null()) reasoning = &*it;
    }
    if (reasoning != nullptr) fields["thinking"] = *reasoning;
    for (const auto& [name, value] : message.items()) {
      if (!value.is_null()) fields[name] = value;
    }
    if (reasoning != nullptr) fields["reasoning_content"] = *reasoning;
    prepared.push_back(std::move(fields));
  }
  nlohmann::ordered_json context = nlohmann::ordered_json::object();
  context["messages"] = std::move(prepared);
  context["tools"] = tools;
  context["add_generation_prompt"] = add_generation_prompt;
  return context;
}

}  // namespace headway
