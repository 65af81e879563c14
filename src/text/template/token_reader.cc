#include "text/template/token_reader.h"

#include <fmt/format.h>

#include "text/template/error.h"

namespace headway::jinja {

const Token& TokenReader::Advance() {
  const Token& token = tokens_[position_];
  if (token.kind != TokenKind::kEnd) ++position_;
  return token;
}

bool TokenReader::SkipName(std::string_view name) {
  if (failed() || !IsName(name)) return false;
  Advance();
  return true;
}

bool TokenReader::SkipOperator(std::string_view op) {
  if (failed() || !IsOperator(op)) return false;
  Advance();
  return true;
}

bool TokenReader::ExpectOperator(std::string_view op) {
  if (SkipOperator(op)) return true;
  Fail(fmt::format("expected '{}', got {}", op, DescribeToken(Current())));
  return false;
}

bool TokenReader::Expect(TokenKind kind, std::string_view what) {
  if (!failed() && Current().kind == kind) {
    Advance();
    return true;
  }
  Fail(fmt::format("expected {}, got {}", what, DescribeToken(Current())));
  return false;
}

std::string TokenReader::ExpectName() {
  const Token& token = Current();
  return Expect(TokenKind::kName, "a name") ? token.text : "";
}

std::nullptr_t TokenReader::FailAt(int line, std::string_view message, StatusCode code) {
  if (status_.ok()) status_ = ErrorAt(line, message, code);
  return nullptr;
}

Status TokenReader::ErrorAt(int line, std::string_view message, StatusCode code) const {
  return TemplateError(code, name_, line, message);
}

}  // namespace headway::jinja
