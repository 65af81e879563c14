#include "cli/prompt.h"

#include <fmt/format.h>

#include <CLI/App.hpp>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "base/bytes.h"
#include "base/utf8.h"
#include "cli/flags.h"
#include "cli/help_formatter.h"
#include "engine/eval/retrieval.h"

namespace headway::cli {
namespace {

constexpr size_t kMaxTextBytes = size_t{1} << 30;
constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

bool Given(const CLI::App& app, const std::string& name) { return app.count(name) > 0; }

Result<std::string> ReadBytes(const std::string& path, Console& console) {
  if (path == "-") return console.ReadAll(kMaxTextBytes);
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"),
                                                             std::fclose);
  if (file != nullptr) return ReadStream(file.get(), path, kMaxTextBytes);
  return Status(errno == ENOENT ? StatusCode::kNotFound : StatusCode::kIo,
                "cannot open " + path + ": " + std::strerror(errno));
}

}  // namespace

void AddPromptFlags(CLI::App& app, PromptFlags* flags) {
  const std::string group = "Prompt";
  AddText(app, group, "-p,--prompt", &flags->prompt,
          "the prompt; without it and without --file, standard input is read")
      ->type_name("TEXT");
  AddText(
      app, group, "-f,--file", &flags->file,
      "file with the prompt or the document; - is standard input. The newline that ends it does "
      "not count")
      ->type_name("FILE");
  AddText(app, group, "--ask", &flags->ask,
          "question about the document: both go through the model's chat template as one turn, the "
          "document first, then a blank line, then the question")
      ->type_name("QUESTION");
  AddSwitch(app, group, "--chat", &flags->chat,
            "put the prompt through the chat template as one turn");
  AddText(app, More(group), "--system,--system-prompt", &flags->system,
          "system message; needs --ask or --chat")
      ->type_name("TEXT");
  AddTemplateFlag(app, group, &flags->template_options);
  app.get_option("--prompt")->excludes(app.get_option("--file"));
}

std::string CheckPromptFlags(const CLI::App& app, const Console& console, PromptFlags* flags) {
  flags->has_prompt = Given(app, "--prompt");
  flags->has_file = Given(app, "--file");
  flags->has_ask = Given(app, "--ask");
  flags->has_system = Given(app, "--system");
  for (const char* flag : {"--system", "--chat-template-kwargs"}) {
    if (Given(app, flag) && !flags->has_ask && !flags->chat) {
      return std::string(flag) + " needs --ask or --chat, which use the chat template";
    }
  }
  if (!flags->has_prompt && !flags->has_file && console.in_is_terminal()) {
    return "there is no prompt; give --prompt TEXT or --file FILE, or pipe text in";
  }
  return "";
}

Status CheckText(std::string_view text, const std::string& what) {
  if (text.empty()) return Status(StatusCode::kInvalidArgument, what + " is empty");
  size_t bad = 0;
  if (!IsValidUtf8(text, &bad)) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("{} is not valid UTF-8: byte {:#04x} at offset {}; convert it first",
                              what, static_cast<unsigned char>(text[bad]), bad));
  }
  return OkStatus();
}

Status WriteText(const std::string& path, std::string_view text) {
  std::FILE* file = std::fopen(path.c_str(), "wb");
  if (file == nullptr) return Status(StatusCode::kIo, "cannot create " + path);
  const bool written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  if (std::fclose(file) == 0 && written) return OkStatus();
  return Status(StatusCode::kIo, "cannot write all of " + path);
}

Status CheckWritable(const std::string& path) {
  std::FILE* file = std::fopen(path.c_str(), "ab");
  if (file == nullptr) return Status(StatusCode::kIo, "cannot create " + path);
  std::fclose(file);
  return OkStatus();
}

Result<std::string> ReadText(const std::string& path, Console& console) {
  Result<std::string> text = ReadBytes(path, console);
  if (!text.ok()) return text.status();
  const std::string name = path == "-" ? "standard input" : path;
  if (text->starts_with(kByteOrderMark)) {
    text->erase(0, kByteOrderMark.size());
    console.Say("headway: note: " + name + " begins with a byte order mark, which is left out");
  }
  if (Status s = CheckText(*text, name); !s.ok()) return s;
  return text;
}

Result<PromptText> ReadPrompt(const PromptFlags& flags, Console& console) {
  PromptText prompt;
  prompt.template_options = flags.template_options;
  if (flags.has_prompt) {
    if (Status s = CheckText(flags.prompt, "the prompt"); !s.ok()) return s;
    prompt.text = flags.prompt;
  } else {
    const std::string path = flags.has_file ? flags.file : "-";
    Result<std::string> text = ReadText(path, console);
    if (!text.ok()) return text.status();
    prompt.text = std::move(*text);
    if (prompt.text.ends_with('\n')) prompt.text.pop_back();
    if (prompt.text.ends_with('\r')) prompt.text.pop_back();
    if (Status s = CheckText(prompt.text, path == "-" ? "standard input" : path); !s.ok()) return s;
  }
  if (flags.has_ask) {
    if (Status s = CheckText(flags.ask, "the question"); !s.ok()) return s;
    prompt.text = eval::AskAbout(prompt.text, flags.ask);
  }
  if (flags.has_system) {
    if (Status s = CheckText(flags.system, "the system message"); !s.ok()) return s;
    prompt.messages.push_back({"system", flags.system});
  }
  if (flags.has_ask || flags.chat) prompt.messages.push_back({"user", prompt.text});
  return prompt;
}

Result<std::vector<TokenId>> EncodePrompt(const Engine& engine, const PromptText& prompt) {
  if (prompt.messages.empty()) {
    return engine.Encode(prompt.text, {.add_special_tokens = true, .parse_special = true});
  }
  Result<std::string> text = engine.RenderChat(prompt.messages, prompt.template_options);
  if (!text.ok()) return text.status();
  return engine.Encode(*text, {.add_special_tokens = false, .parse_special = true});
}

std::string LongContextWarning(const ModelInfo& info, int64_t tokens, const PlanReport& plan,
                               const EngineOptions& options) {
  if (info.max_position <= 0 || tokens <= info.max_position) return "";
  // Not every selector reaches beyond the window, nor does every model or device.
  if (plan.selection.has_value() && plan.selection->reach) {
    return fmt::format(
        "a context of {} tokens is longer than the {} that this model was trained for; prompts and "
        "answers read chosen keys, moved together",
        tokens, info.max_position);
  }
  if (!options.self_extend.empty()) {
    return fmt::format(
        "a context of {} tokens is longer than the {} that this model was trained for; positions "
        "that lie far back are grouped (Self-Extend {})",
        tokens, info.max_position, options.self_extend);
  }
  return fmt::format(
      "a context of {0} tokens is longer than the {1} that this model was trained for; expect "
      "worse answers beyond token {1}",
      tokens, info.max_position);
}

void WarnOfLength(const ModelInfo& info, int64_t tokens, const PlanReport& plan,
                  const EngineOptions& options, Console& console) {
  const std::string warning = LongContextWarning(info, tokens, plan, options);
  if (!warning.empty()) console.Warn(warning);
}

}  // namespace headway::cli
