#include "text/template/chat_template.h"

#include <fmt/format.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/json/json.h"
#include "base/utf8.h"
#include "text/template/ast.h"
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
  if (!IsValidUtf8(text, &bad)) rt.Fail("a text of the context is not UTF-8 (byte {})", bad);
  rt.Extend(text.size());
  return rt.Str(text);
}

jinja::Value NumberFromJson(jinja::Runtime& rt, const nlohmann::ordered_json& json) {
  if (json.is_number_float()) return jinja::Value::Float(json.get<double>());
  if (json.is_number_unsigned() && !std::in_range<int64_t>(json.get<uint64_t>())) {
    return rt.Refuse("an integer of the context does not fit in 64 bits");
  }
  return jinja::Value::Int(json.get<int64_t>());
}

// JSON as a value of the template, its size added to the limits of the rendering. Fails for text
// that is not UTF-8, for numbers beyond 64 bits and for data nested too deeply.
jinja::Value FromJson(jinja::Runtime& rt, const nlohmann::ordered_json& json) {
  rt.Extend(1);
  const jinja::Nested nested(rt);
  if (!nested.ok()) return {};
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

// An empty object when there is no such file.
Result<nlohmann::json> ReadIfThere(Env* env, const std::string& path) {
  if (!env->Exists(path)) return nlohmann::json::object();
  return ReadJsonObject(*env, path);
}

// The text at a key of an object; null when there is none.
const std::string* TextAt(const nlohmann::json& json, const char* key) {
  const auto found = json.find(key);
  return found == json.end() ? nullptr : found->get_ptr<const std::string*>();
}

Status Invalid(const std::string& message) { return Status(StatusCode::kInvalidArgument, message); }

}  // namespace

ChatTemplate::ChatTemplate() = default;
ChatTemplate::~ChatTemplate() = default;

Status ChatTemplate::Add(const std::string& name, std::string_view source,
                         const std::string& where) {
  if (source.size() > kMaxTemplateBytes) {
    return Invalid(fmt::format("chat template {} has {} bytes; at most {} are allowed", where,
                               source.size(), kMaxTemplateBytes));
  }
  size_t bad = 0;
  if (!IsValidUtf8(source, &bad)) {
    return Invalid(fmt::format("chat template {} is not UTF-8 (byte {})", where, bad));
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

// --- model folders ---

Status ChatTemplate::LoadFiles(Env* env, const std::string& model_dir) {
  const auto add = [&](const std::string& name, const std::string& path) -> Status {
    const Result<std::string> source = env->ReadFile(path, kMaxConfigBytes);
    return source.ok() ? Add(name, *source, path) : source.status();
  };
  const std::string main = model_dir + "/chat_template.jinja";
  if (env->Exists(main)) {
    Status added = add("default", main);
    if (!added.ok()) return added;
  }
  const std::string folder = model_dir + "/additional_chat_templates";
  if (!env->IsDirectory(folder)) return OkStatus();
  const Result<std::vector<std::string>> files = env->List(folder);
  if (!files.ok()) return files.status();
  constexpr std::string_view kSuffix = ".jinja";
  for (const std::string& file : *files) {
    if (!file.ends_with(kSuffix)) continue;
    Status added = add(file.substr(0, file.size() - kSuffix.size()), folder + "/" + file);
    if (!added.ok()) return added;
  }
  return OkStatus();
}

Status ChatTemplate::LoadFromConfig(const nlohmann::json& config, const std::string& path) {
  const auto found = config.find("chat_template");
  if (found == config.end() || found->is_null()) return OkStatus();
  const std::string where = path + " (chat_template)";
  if (found->is_string()) return Add("default", found->get_ref<const std::string&>(), where);
  const Status malformed(
      StatusCode::kCorrupt,
      fmt::format("{}: chat_template is neither a string nor a list of name and template", path));
  if (!found->is_array()) return malformed;
  for (const auto& item : *found) {
    const std::string* name = TextAt(item, "name");
    const std::string* source = TextAt(item, "template");
    if (name == nullptr || source == nullptr) return malformed;
    Status added = Add(*name, *source, where + " '" + *name + "'");
    if (!added.ok()) return added;
  }
  return OkStatus();
}

Status ChatTemplate::LoadSpecialTokens(Env* env, const std::string& model_dir,
                                       const nlohmann::json& config) {
  // A token is its text, or an object with its `content`.
  const auto add = [this](const std::string& name, const nlohmann::json& token) {
    const auto* text =
        token.is_object() ? TextAt(token, "content") : token.get_ptr<const std::string*>();
    if (text != nullptr && !text->empty()) special_tokens_[name] = *text;
  };
  // Any name of this form counts ("image_token"), as those in an object of further ones do.
  const auto take = [&](const nlohmann::json& tokens) {
    for (const auto& [key, value] : tokens.items()) {
      if (key.ends_with("_token")) add(key, value);
      if (key != "extra_special_tokens" || !value.is_object()) continue;
      for (const auto& [name, token] : value.items()) add(name, token);
    }
  };
  take(config);
  if (config.contains("added_tokens_decoder")) return OkStatus();
  const Result<nlohmann::json> map = ReadIfThere(env, model_dir + "/special_tokens_map.json");
  if (!map.ok()) return map.status();
  take(*map);
  return OkStatus();
}

Result<std::unique_ptr<ChatTemplate>> ChatTemplate::Load(Env* env, const std::string& model_dir) {
  std::unique_ptr<ChatTemplate> result(new ChatTemplate());
  const std::string config_path = model_dir + "/tokenizer_config.json";
  const Result<nlohmann::json> config = ReadIfThere(env, config_path);
  if (!config.ok()) return config.status();
  Status status = result->LoadFiles(env, model_dir);
  if (status.ok() && result->templates_.empty()) {
    status = result->LoadFromConfig(*config, config_path);
  }
  if (status.ok() && result->templates_.empty()) {
    // The file that Transformers' processors wrote before chat_template.jinja.
    const std::string path = model_dir + "/chat_template.json";
    const Result<nlohmann::json> legacy = ReadIfThere(env, path);
    status = legacy.ok() ? result->LoadFromConfig(*legacy, path) : legacy.status();
  }
  if (status.ok()) status = result->LoadSpecialTokens(env, model_dir, *config);
  if (!status.ok()) return status;
  if (result->templates_.empty()) {
    return Status(StatusCode::kNotFound,
                  fmt::format("{} has no chat template (chat_template.jinja, or chat_template in "
                              "tokenizer_config.json); give the prompt as plain text",
                              model_dir));
  }
  return result;
}

// --- rendering ---

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
  if (!context.is_object()) return Invalid("the context of a chat template is no object");
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
  std::string output = jinja::RunTemplate(rt, parsed, variables);
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
