// tokenizer.json and texts for it. The input is the JSON, a zero byte, and the text; an input
// without one is both. The first part is also tried as a split pattern on the second.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "base/utf8.h"
#include "text/tokenizer/regex.h"
#include "text/tokenizer/tokenizer.h"

namespace {

using headway::TokenId;

// What callers rely on, whatever the tokenizer: decoded text is UTF-8, piece by piece and together.
void CheckDecoding(const headway::Tokenizer& tokenizer, const std::vector<TokenId>& tokens) {
  for (const auto special : {headway::SpecialTokens::kKeep, headway::SpecialTokens::kSkip}) {
    headway::Detokenizer detokenizer(&tokenizer, special);
    std::string text;
    for (TokenId token : tokens) {
      const std::string piece = detokenizer.Push(token);
      if (!headway::IsValidUtf8(piece)) abort();
      text += piece;
    }
    text += detokenizer.Finish();
    if (text != tokenizer.Decode(tokens, special)) abort();
  }
}

void CheckText(const headway::Tokenizer& tokenizer, std::string_view text) {
  const int vocab_size = tokenizer.vocab_size();
  for (bool special : {false, true}) {
    const auto tokens =
        tokenizer.Encode(text, {.add_special_tokens = special, .parse_special = special});
    if (!tokens.ok()) {
      if (tokens.status().message().find('\n') != std::string::npos) abort();
      continue;
    }
    for (TokenId token : *tokens) {
      if (token < 0 || token >= vocab_size) abort();
    }
    CheckDecoding(tokenizer, *tokens);
  }
  std::vector<TokenId> any;
  for (char c : text) any.push_back(static_cast<uint8_t>(c) % (vocab_size + 1));
  CheckDecoding(tokenizer, any);
}

// Stretches cover the text in order; the limits keep time and memory bounded.
void CheckPattern(std::string_view pattern, std::string_view text) {
  const auto regex = headway::tok::Regex::FromOniguruma(pattern);
  if (!regex.ok() || !headway::IsValidUtf8(text)) return;
  headway::tok::RegexScratch scratch(text.size());
  std::vector<headway::tok::Stretch> stretches;
  if (!regex->Split(text, &scratch, &stretches).ok()) return;
  size_t end = 0;
  for (const headway::tok::Stretch& stretch : stretches) {
    if (stretch.begin != end || stretch.end < stretch.begin) abort();
    end = stretch.end;
    if (!headway::IsValidUtf8(text.substr(stretch.begin, stretch.end - stretch.begin))) abort();
  }
  if (end != text.size()) abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t zero = input.find('\0');
  const std::string_view json = input.substr(0, zero);
  const std::string_view text = zero == std::string_view::npos ? input : input.substr(zero + 1);
  CheckPattern(json, text);
  const auto tokenizer = headway::Tokenizer::FromJson(json, "fuzz");
  if (!tokenizer.ok()) {
    if (tokenizer.status().message().find('\n') != std::string::npos) abort();
    return 0;
  }
  CheckText(**tokenizer, text);
  return 0;
}
