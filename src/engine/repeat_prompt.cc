#include "engine/repeat_prompt.h"

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "engine/chat_variables.h"
#include "kv/policy/eviction.h"

namespace headway {
namespace {

constexpr const char* kFirst = "Repeat the previous context exactly.";
constexpr const char* kNext = "Repeat the part of the previous context exactly, starting with ";

// A conversation with these words of the user as its last turn, if any; empty where the template
// does not render it.
std::string Talk(const ChatTemplate& chat, const std::string& words) {
  Result<nlohmann::ordered_json> context = ChatVariables({});
  if (!context.ok()) return "";
  nlohmann::ordered_json& messages = (*context)["messages"];
  messages = {{{"role", "user"}, {"content", "a"}}, {{"role", "assistant"}, {"content", "b"}}};
  if (!words.empty()) messages.push_back({{"role", "user"}, {"content", words}});
  (*context)["add_generation_prompt"] = !words.empty();
  const Result<std::string> text = chat.Render(*context);
  return text.ok() ? *text : "";
}

// What stands before and behind the words in their turn.
struct Turn {
  std::string before = "\n\n", behind;
};

// Templates may cut blanks off the end of words.
Turn TurnOf(const ChatTemplate* chat) {
  const std::string words = kFirst;
  const std::string before = chat == nullptr ? "" : Talk(*chat, "");
  const std::string all = chat == nullptr ? "" : Talk(*chat, words);
  if (before.empty() || !all.starts_with(before)) return {};
  const size_t at = all.find(words, before.size());
  if (at == std::string::npos) return {};
  return {all.substr(before.size(), at - before.size()), all.substr(at + words.size())};
}

}  // namespace

RepeatPrompt RepeatPromptOf(const Tokenizer* tokenizer, const ChatTemplate* chat) {
  if (tokenizer == nullptr) return {};
  const Turn turn = TurnOf(chat);
  RepeatPrompt prompt;
  size_t longest = 0;
  for (const auto& [text, tokens] : {std::pair{turn.before + kFirst, &prompt.first},
                                     {turn.before + kNext, &prompt.next},
                                     {turn.behind, &prompt.behind}}) {
    Result<std::vector<TokenId>> encoded =
        tokenizer->Encode(text, {.add_special_tokens = false, .parse_special = true});
    if (!encoded.ok()) return {};
    *tokens = std::move(*encoded);
    longest += tokens->size();
  }
  if (static_cast<int64_t>(longest) > kv::EvictionPolicy::kRepeatWords) return {};
  return prompt;
}

}  // namespace headway
