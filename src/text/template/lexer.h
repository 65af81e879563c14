// Cuts a template into tokens, with white space control as jinja2 applies it under trim_blocks,
// lstrip_blocks and keep_trailing_newline=False.
#ifndef HEADWAY_TEXT_TEMPLATE_LEXER_H_
#define HEADWAY_TEXT_TEMPLATE_LEXER_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "headway/status.h"

namespace headway::jinja {

enum class TokenKind : uint8_t {
  kData,           // text between tags
  kVariableBegin,  // {{
  kVariableEnd,
  kBlockBegin,  // {%
  kBlockEnd,
  kName,
  kString,    // text: its value
  kInteger,   // integer
  kFloat,     // real
  kOperator,  // text: "+", "//" ...
  kEnd,
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  int line = 1;
  std::string text = {};
  int64_t integer = 0;
  double real = 0.0;
};

// What an error message calls a token.
std::string DescribeToken(const Token& token);

// Ends with a token kEnd. `name` is the template's, for messages.
Result<std::vector<Token>> Tokenize(std::string_view source, const std::string& name);

}  // namespace headway::jinja

#endif  // HEADWAY_TEXT_TEMPLATE_LEXER_H_
