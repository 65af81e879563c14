// Chat templates and special tokens of a model folder.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/json/json.h"
#include "text/template/ast.h"
#include "text/template/chat_template.h"

namespace headway {
namespace {

// An empty object when there is no such file.
Result<nlohmann::json> ReadIfThere(Env* env, const std::string& path) {
  if (!env->Exists(path)) return nlohmann::json::object();
  return ReadJsonObject(*env, path);
}

// The text of a token: a string, or an object with its `content`. Empty for anything else.
std::string TokenText(const nlohmann::json& token) {
  if (token.is_string()) return token.get<std::string>();
  if (!token.is_object()) return "";
  const auto content = token.find("content");
  return content != token.end() && content->is_string() ? content->get<std::string>() : "";
}

}  // namespace

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
    if (!item.is_object()) return malformed;
    const auto name = item.find("name");
    const auto source = item.find("template");
    if (name == item.end() || !name->is_string() || source == item.end() || !source->is_string()) {
      return malformed;
    }
    const auto& text = name->get_ref<const std::string&>();
    Status added = Add(text, source->get_ref<const std::string&>(), where + " '" + text + "'");
    if (!added.ok()) return added;
  }
  return OkStatus();
}

// The file that Transformers' processors wrote before chat_template.jinja.
Status ChatTemplate::LoadLegacy(Env* env, const std::string& path) {
  const Result<nlohmann::json> json = ReadIfThere(env, path);
  return json.ok() ? LoadFromConfig(*json, path) : json.status();
}

Status ChatTemplate::LoadSpecialTokens(Env* env, const std::string& model_dir,
                                       const nlohmann::json& config) {
  const auto add = [this](const std::string& name, const nlohmann::json& token) {
    const std::string text = TokenText(token);
    if (!text.empty()) special_tokens_[name] = text;
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
    status = result->LoadLegacy(env, model_dir + "/chat_template.json");
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

}  // namespace headway
