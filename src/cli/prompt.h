// Where a prompt comes from, and what becomes of it: text from flags, a file or standard input, as
// it is or through the model's chat template.
#ifndef HEADWAY_CLI_PROMPT_H_
#define HEADWAY_CLI_PROMPT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/console.h"
#include "cli/flags.h"
#include "headway/engine.h"

namespace headway::cli {

struct PromptFlags {
  std::string prompt;
  std::string file;  // "-": standard input
  std::string ask;
  std::string system;
  bool chat = false;
  ChatOptions template_options;
  // Whether the flag or its variable was given; an empty prompt is not the same as none.
  bool has_prompt = false, has_file = false, has_ask = false, has_system = false;
};
void AddPromptFlags(CLI::App& app, PromptFlags* flags);
// Fills the has_ members. What is wrong with the combination, empty when nothing is.
std::string CheckPromptFlags(const CLI::App& app, const Console& console, PromptFlags* flags);

// kInvalidArgument naming the offset of the first byte that is no UTF-8, or that the text is empty.
// `what` begins the message: "the prompt", "notes.txt".
Status CheckText(std::string_view text, const std::string& what);

// A whole file or pipe, or standard input for "-": valid UTF-8, not empty, without a byte order
// mark.
Result<std::string> ReadText(const std::string& path, Console& console);

// Makes or replaces a file.
Status WriteText(const std::string& path, std::string_view text);
// Fails where WriteText would, before the work whose result is to be written.
Status CheckWritable(const std::string& path);

// A prompt before the model is known.
struct PromptText {
  std::string text;
  std::vector<ChatMessage> messages;  // for the chat template; empty: `text` is the prompt
  ChatOptions template_options;
};
Result<PromptText> ReadPrompt(const PromptFlags& flags, Console& console);

// Text through the chat template where there are messages. Special tokens in the text count as
// such, as they do in Transformers and llama.cpp.
Result<std::vector<TokenId>> EncodePrompt(const Engine& engine, const PromptText& prompt);

// What to expect of a context longer than the model was trained on, under its plan; empty when it
// is not longer.
std::string LongContextWarning(const ModelInfo& info, int64_t tokens, const PlanReport& plan,
                               const EngineOptions& options);
// Prints it.
void WarnOfLength(const ModelInfo& info, int64_t tokens, const PlanReport& plan,
                  const EngineOptions& options, Console& console);

}  // namespace headway::cli

#endif  // HEADWAY_CLI_PROMPT_H_
