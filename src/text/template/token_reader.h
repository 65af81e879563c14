// Reads the tokens of a template one by one, and keeps the first error.
#ifndef HEADWAY_TEXT_TEMPLATE_TOKEN_READER_H_
#define HEADWAY_TEXT_TEMPLATE_TOKEN_READER_H_

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "headway/status.h"
#include "text/template/lexer.h"

namespace headway::jinja {

// After an error no function takes a token because of its kind or text: all return false.
class TokenReader {
 public:
  // `tokens` ends with kEnd; both outlive the reader.
  TokenReader(const std::vector<Token>& tokens, const std::string& name)
      : tokens_(tokens), name_(name) {}

  const Token& Current() const { return tokens_[position_]; }
  const Token& Look() const { return tokens_[std::min(position_ + 1, tokens_.size() - 1)]; }
  const Token& Advance();
  bool IsName(std::string_view name) const { return IsName(Current(), name); }
  static bool IsName(const Token& token, std::string_view name) {
    return token.kind == TokenKind::kName && token.text == name;
  }
  bool IsOperator(std::string_view op) const { return IsOperator(Current(), op); }
  static bool IsOperator(const Token& token, std::string_view op) {
    return token.kind == TokenKind::kOperator && token.text == op;
  }
  bool SkipName(std::string_view name);
  bool SkipOperator(std::string_view op);
  bool ExpectOperator(std::string_view op);
  bool Expect(TokenKind kind, std::string_view what);
  // The name that must come now.
  std::string ExpectName();

  const Status& status() const { return status_; }
  bool failed() const { return !status_.ok(); }
  std::nullptr_t Fail(std::string_view message) { return FailAt(Current().line, message); }
  std::nullptr_t FailAt(int line, std::string_view message,
                        StatusCode code = StatusCode::kInvalidArgument);

  // An error of this template.
  Status ErrorAt(int line, std::string_view message, StatusCode code) const;

 private:
  const std::vector<Token>& tokens_;
  const std::string& name_;
  size_t position_ = 0;
  Status status_;
};

}  // namespace headway::jinja

#endif  // HEADWAY_TEXT_TEMPLATE_TOKEN_READER_H_
