// ChatTemplate: turns messages into the prompt that a model was trained on, through the Jinja
// template of its folder. Output is what jinja2 gives in the sandbox that Transformers sets up; see
// README.md here for what of the language there is.
#ifndef HEADWAY_TEXT_TEMPLATE_CHAT_TEMPLATE_H_
#define HEADWAY_TEXT_TEMPLATE_CHAT_TEMPLATE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "base/env.h"
#include "headway/status.h"

namespace headway {

namespace jinja {
struct Template;
}

struct RenderOptions {
  // The time that strftime_now sees, in seconds since 1970; by default the system's clock.
  std::optional<int64_t> now_s = std::nullopt;
  // Bounds on what a template may do, to which the size of the context is added: steps (about one
  // for each operation, list element and 16 bytes of text made), and bytes of output.
  int64_t max_steps = 4'000'000;
  int64_t max_output_bytes = int64_t{16} << 20;
};

// Safe to use from several threads at once.
class ChatTemplate {
 public:
  // `name` is for messages. kInvalidArgument when the template is wrong, kUnsupported when it uses
  // what Headway does not have; both name the line.
  static Result<std::unique_ptr<ChatTemplate>> Parse(std::string_view source, std::string name);

  // The template of a model folder, as Transformers chooses it: chat_template.jinja with
  // additional_chat_templates/*.jinja, else `chat_template` of tokenizer_config.json (one, or a
  // list with names), else chat_template.json. Special tokens come from tokenizer_config.json and,
  // where that has no added_tokens_decoder, special_tokens_map.json. kNotFound when the folder has
  // no template.
  static Result<std::unique_ptr<ChatTemplate>> Load(Env* env, const std::string& model_dir);

  ~ChatTemplate();
  ChatTemplate(const ChatTemplate&) = delete;
  ChatTemplate& operator=(const ChatTemplate&) = delete;

  // `context` is an object: `messages`, and whatever else the template reads (`tools`,
  // `add_generation_prompt`, `enable_thinking` ...). What it lacks is added: the special tokens,
  // tools and documents as none, add_generation_prompt as false. The template named "tool_use"
  // renders when there is one and tools are given. When the template calls raise_exception, its
  // message is that of the status, kInvalidArgument.
  Result<std::string> Render(const nlohmann::ordered_json& context,
                             const RenderOptions& options = {}) const;

  // "bos_token" -> "<s>" and so on.
  const std::map<std::string, std::string>& special_tokens() const { return special_tokens_; }

 private:
  ChatTemplate();

  Status Add(const std::string& name, std::string_view source, const std::string& where);
  Status LoadFiles(Env* env, const std::string& model_dir);
  Status LoadFromConfig(const nlohmann::json& config, const std::string& path);
  Status LoadSpecialTokens(Env* env, const std::string& model_dir, const nlohmann::json& config);
  Result<const jinja::Template*> Choose(const nlohmann::ordered_json& context) const;

  std::map<std::string, std::unique_ptr<jinja::Template>> templates_;
  std::map<std::string, std::string> special_tokens_;
};

// The context of a conversation, as Transformers' apply_chat_template prepares it: keys of messages
// that are null are dropped, and what a message was thinking is found under each of the names that
// templates know (`reasoning_content`, `thinking`). `tools` may be null.
nlohmann::ordered_json MakeChatContext(const nlohmann::ordered_json& messages,
                                       const nlohmann::ordered_json& tools,
                                       bool add_generation_prompt);

}  // namespace headway

#endif  // HEADWAY_TEXT_TEMPLATE_CHAT_TEMPLATE_H_
