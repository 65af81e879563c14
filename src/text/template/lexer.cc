#include "text/template/lexer.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <optional>

#include "base/utf8.h"
#include "text/template/runtime.h"
#include "text/unicode/unicode.h"

namespace headway::jinja {
namespace {

constexpr size_t kNone = std::string_view::npos;

// One kind of line end, and none at the end of the template.
std::string NormalizeSource(std::string_view source) {
  std::string text;
  text.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      text += source[i];
    } else if (!source.substr(i + 1).starts_with('\n')) {
      text += '\n';
    }
  }
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

class Lexer {
 public:
  Lexer(std::string_view source, const std::string& name)
      : name_(name), text_(NormalizeSource(source)) {}

  Result<std::vector<Token>> Run() {
    while (position_ < text_.size() && status_.ok()) Root();
    if (!status_.ok()) return status_;
    Push(TokenKind::kEnd);
    return std::move(tokens_);
  }

 private:
  void Fail(std::string_view message) { Fail(StatusCode::kInvalidArgument, message); }
  void Fail(StatusCode code, std::string_view message) {
    if (status_.ok()) status_ = TemplateError(code, name_, line_, message);
  }

  Token* Push(TokenKind kind) {
    tokens_.push_back({.kind = kind, .line = line_});
    return &tokens_.back();
  }

  bool At(std::string_view what, size_t position) const {
    return std::string_view(text_).substr(std::min(position, text_.size())).starts_with(what);
  }

  // Moves to `end`, counting lines.
  void MoveTo(size_t end) {
    line_ += static_cast<int>(std::count(text_.begin() + static_cast<ptrdiff_t>(position_),
                                         text_.begin() + static_cast<ptrdiff_t>(end), '\n'));
    position_ = end;
  }

  size_t SkipSpace(size_t position) const {
    while (position < text_.size() && unicode::IsSpace(CharAt(text_, position))) {
      position += CharBytes(text_, position);
    }
    return position;
  }

  // The sign at a position, '-' or '+'; 0 when there is none.
  char SignAt(size_t position) const {
    return At("-", position) || At("+", position) ? text_[position] : '\0';
  }

  // --- text and tags ---

  // Text up to the next tag, and what that tag opens.
  void Root() {
    size_t tag = text_.find('{', position_);
    while (tag != kNone && !At("{%", tag) && !At("{{", tag) && !At("{#", tag)) {
      tag = text_.find('{', tag + 1);
    }
    if (tag == kNone) return EmitText(text_.size(), '+');
    const char mark = text_[tag + 1];
    const char sign = SignAt(tag + 2);
    const size_t after = tag + 2 + (sign != 0 ? 1 : 0);
    EmitText(tag, mark == '{' && sign == 0 ? '+' : sign);
    const size_t raw = mark == '%' ? RawBegin(after) : kNone;
    if (raw != kNone) {
      FinishTag(raw);
      Raw();
    } else if (mark == '#') {
      MoveTo(after);
      Comment();
    } else {
      Push(mark == '{' ? TokenKind::kVariableBegin : TokenKind::kBlockBegin);
      MoveTo(after);
      Code(mark == '{' ? "}}" : "%}");
    }
  }

  // Emits the text from here to `end` and moves there. White space before a tag with the sign '-'
  // is left out, and without a sign that of the tag's own line, as lstrip_blocks has it.
  void EmitText(size_t end, char sign) {
    std::string_view text = std::string_view(text_).substr(position_, end - position_);
    if (sign == '-') {
      text = unicode::StripRight(text);
    } else if (sign == 0) {
      const size_t last_line = text.rfind('\n') + 1;  // 0 when there is no line end
      const bool blank = unicode::Strip(text.substr(last_line)).empty();
      if (blank && (last_line > 0 || line_starting_)) text = text.substr(0, last_line);
    }
    if (!text.empty()) Push(TokenKind::kData)->text = text;
    MoveTo(end);
  }

  // The end of "raw %}" after "{%" and a sign; kNone when it is another tag.
  size_t RawBegin(size_t position) const {
    position = SkipSpace(position);
    if (!At("raw", position)) return kNone;
    position = SkipSpace(position + 3);
    if (At("-%}", position)) return SkipSpace(position + 3);
    return At("%}", position) ? position + 2 : kNone;
  }

  // The end of a tag's closing mark ("}}", "%}", "#}") at `position`, with what it takes of the
  // text after it; kNone when there is none.
  size_t TagEnd(size_t position, std::string_view mark) const {
    const bool variable = mark == "}}";
    const char sign = SignAt(position);
    if (sign == '-' && At(mark, position + 1)) return SkipSpace(position + 3);
    if (sign == '+' && At(mark, position + 1) && !variable) return position + 3;
    if (!At(mark, position)) return kNone;
    return position + (At("\n", position + 2) && !variable ? 3 : 2);
  }

  void FinishTag(size_t end) {
    MoveTo(end);
    line_starting_ = text_[end - 1] == '\n';
  }

  void Raw() {
    if (position_ >= text_.size()) return;
    for (size_t tag = text_.find("{%", position_); tag != kNone; tag = text_.find("{%", tag + 1)) {
      const char sign = SignAt(tag + 2);
      const size_t after = SkipSpace(tag + 2 + (sign != 0 ? 1 : 0));
      const size_t end = At("endraw", after) ? TagEnd(SkipSpace(after + 6), "%}") : kNone;
      if (end == kNone) continue;
      EmitText(tag, sign);
      return FinishTag(end);
    }
    Fail("missing end of raw directive");
  }

  void Comment() {
    if (position_ >= text_.size()) return;
    size_t end = text_.find("#}", position_);
    if (end == kNone) return Fail("missing end of comment tag");
    if (end > position_ && SignAt(end - 1) != 0) --end;
    FinishTag(TagEnd(end, "#}"));
  }

  // --- code ---

  // Tokens up to the closing mark of a tag.
  void Code(std::string_view mark) {
    brackets_.clear();
    while (status_.ok() && position_ < text_.size()) {
      const size_t end = brackets_.empty() ? TagEnd(position_, mark) : kNone;
      if (end != kNone) {
        Push(mark == "}}" ? TokenKind::kVariableEnd : TokenKind::kBlockEnd);
        return FinishTag(end);
      }
      const size_t space = SkipSpace(position_);
      if (space > position_) {
        MoveTo(space);
      } else {
        OneToken();
      }
    }
  }

  void OneToken() {
    const char c = text_[position_];
    if (c >= '0' && c <= '9') {
      Number();
    } else if (c == '\'' || c == '"') {
      String();
    } else if (const size_t end = NameEnd(position_); end > position_) {
      Name(end);
    } else {
      Operator();
    }
  }

  size_t NameEnd(size_t position) const {
    while (position < text_.size()) {
      const char32_t c = CharAt(text_, position);
      if (c != '_' && !unicode::IsAlnum(c)) break;
      position += CharBytes(text_, position);
    }
    return position;
  }

  void Name(size_t end) {
    const char32_t first = CharAt(text_, position_);
    if (first != '_' && !unicode::IsAlpha(first)) Fail("invalid character in identifier");
    Push(TokenKind::kName)->text = text_.substr(position_, end - position_);
    MoveTo(end);
  }

  size_t DigitsEnd(size_t position) const {
    return std::min(text_.find_first_not_of("0123456789", position), text_.size());
  }

  // digits, digits.digits or either with an exponent; after a dot an integer alone, so that "a.1.2"
  // is two subscripts.
  void Number() {
    const bool subscript = position_ > 0 && text_[position_ - 1] == '.';
    const size_t whole = DigitsEnd(position_);
    size_t end = whole;
    if (!subscript && At(".", end) && DigitsEnd(end + 1) > end + 1) end = DigitsEnd(end + 1);
    if (!subscript && (At("e", end) || At("E", end))) {
      const size_t sign = At("+", end + 1) || At("-", end + 1) ? 1 : 0;
      if (DigitsEnd(end + 1 + sign) > end + 1 + sign) end = DigitsEnd(end + 1 + sign);
    }
    if (NameEnd(end) > end) {
      return Fail(StatusCode::kUnsupported,
                  "Headway has numbers in decimal alone, without underscores");
    }
    const char* begin = text_.data() + position_;
    if (end > whole) {
      Push(TokenKind::kFloat)->real = std::strtod(begin, nullptr);
    } else {
      int64_t value = 0;
      if (std::from_chars(begin, text_.data() + end, value).ec != std::errc()) {
        Fail(StatusCode::kUnsupported, "an integer does not fit in 64 bits");
      }
      Push(TokenKind::kInteger)->integer = value;
    }
    MoveTo(end);
  }

  void Operator() {
    constexpr std::string_view kTwo[] = {"//", "**", "==", "!=", ">=", "<="};
    constexpr std::string_view kOne = "+-/*%~[](){}><=.:|,;";
    size_t size = 0;
    for (const std::string_view two : kTwo) size = At(two, position_) ? 2 : size;
    if (size == 0 && kOne.find(text_[position_]) != kNone) size = 1;
    if (size == 0) {
      const std::string shown = text_.substr(position_, CharBytes(text_, position_));
      return Fail(fmt::format("unexpected character '{}'", shown));
    }
    const std::string op = text_.substr(position_, size);
    if (op == "(") brackets_ += ')';
    if (op == "[") brackets_ += ']';
    if (op == "{") brackets_ += '}';
    if (op == ")" || op == "]" || op == "}") {
      if (!brackets_.ends_with(op)) return Fail(fmt::format("unexpected '{}'", op));
      brackets_.pop_back();
    }
    Push(TokenKind::kOperator)->text = op;
    MoveTo(position_ + size);
  }

  // --- strings ---

  void String() {
    const char quote = text_[position_];
    size_t end = position_ + 1;
    while (end < text_.size() && text_[end] != quote) end += text_[end] == '\\' ? 2 : 1;
    if (end >= text_.size()) {
      return Fail(fmt::format("unexpected character '{}': a string does not end", quote));
    }
    const std::string_view body =
        std::string_view(text_).substr(position_ + 1, end - position_ - 1);
    Token* token = Push(TokenKind::kString);
    for (size_t i = 0; i < body.size() && status_.ok();) {
      if (body[i] != '\\') {
        token->text += body[i++];
      } else {
        i = EscapeSequence(body, i + 1, &token->text);
      }
    }
    MoveTo(end + 1);
  }

  // The escape whose letter is at `i`; returns where it ends.
  size_t EscapeSequence(std::string_view body, size_t i, std::string* out) {
    constexpr std::string_view kLetters = "\\'\"abfnrtv";
    constexpr std::string_view kValues = "\\'\"\a\b\f\n\r\t\v";
    const char c = body[i];
    if (c == '\n') return i + 1;
    if (const size_t at = kLetters.find(c); at != kNone) {
      *out += kValues[at];
      return i + 1;
    }
    const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (digits > 0) return NumericEscape(body, i + 1, i + 1 + digits, out);
    if ((c >= '0' && c <= '7') || c == 'N') {
      Fail(StatusCode::kUnsupported, fmt::format("Headway does not have '\\{}' in strings", c));
    }
    if (static_cast<uint8_t>(c) >= 0x80) {
      Fail(StatusCode::kUnsupported, "Headway does not have a backslash before such a character");
    }
    *out += '\\';  // which escapes nothing
    return i;
  }

  // Hexadecimal digits in [begin, end).
  size_t NumericEscape(std::string_view body, size_t begin, size_t end, std::string* out) {
    uint32_t code = 0;
    const std::string_view digits = body.substr(begin, end - begin);
    const auto result = std::from_chars(digits.data(), digits.data() + digits.size(), code, 16);
    if (begin + digits.size() < end || result.ptr != body.data() + end) {
      Fail("truncated escape in a string");
    } else if (code > 0x10FFFF) {
      Fail("an escape in a string is no character");
    } else if (code >= 0xD800 && code <= 0xDFFF) {
      Fail(StatusCode::kUnsupported, "Headway does not have surrogates in strings");
    } else {
      AppendUtf8(code, out);
    }
    return end;
  }

  const std::string& name_;
  const std::string text_;
  size_t position_ = 0;
  int line_ = 1;
  bool line_starting_ = true;  // what was read last ended a line
  std::string brackets_;       // the closing brackets that are due
  std::vector<Token> tokens_;
  Status status_;
};

}  // namespace

std::string DescribeToken(const Token& token) {
  constexpr const char* kNames[] = {"template text",
                                    "begin of print statement",
                                    "end of print statement",
                                    "begin of statement block",
                                    "end of statement block",
                                    "a name",
                                    "a string",
                                    "an integer",
                                    "a float",
                                    "an operator",
                                    "end of template"};
  const bool shown = token.kind == TokenKind::kName || token.kind == TokenKind::kOperator;
  return shown ? fmt::format("'{}'", token.text) : kNames[static_cast<size_t>(token.kind)];
}

Result<std::vector<Token>> Tokenize(std::string_view source, const std::string& name) {
  return Lexer(source, name).Run();
}

}  // namespace headway::jinja
