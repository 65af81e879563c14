#include "text/tokenizer/onig_pattern.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/utf8.h"
#include "text/tokenizer/onig_class.h"
#include "text/tokenizer/text.h"

namespace headway::tok {
namespace {

// A callout, by which the matcher counts its steps: one behind all that can be matched in several
// ways. Going back to try another way always passes one.
constexpr std::string_view kStep = "(?C)";

constexpr int kMaxClassDepth = 8;
constexpr int kMaxRepeat = 60'000;  // PCRE2 ends at 65535

bool IsAsciiLetter(char32_t c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool IsAsciiDigit(char32_t c) { return c >= '0' && c <= '9'; }
char32_t AsciiLower(char32_t c) { return c >= 'A' && c <= 'Z' ? c + 32 : c; }

// Translates from left to right; groups need no tree, classes are read by recursive descent.
class Translator {
 public:
  explicit Translator(std::string_view pattern) : pattern_(pattern) {}

  Result<std::string> Run() {
    while (at_ < pattern_.size()) {
      Status status = Item();
      if (!status.ok()) return status;
    }
    if (!scopes_.empty()) return Corrupt("a group is not closed");
    return std::move(out_);
  }

 private:
  // What a '(' changed, to be undone at its ')'.
  struct Scope {
    bool caseless;
    bool assertion;
    bool atomic;
    bool alternatives;  // a '|' was seen inside
  };

  Status Corrupt(std::string_view what) const {
    return Status(StatusCode::kCorrupt,
                  fmt::format("the pattern {} is wrong: {}", Quoted(pattern_), what));
  }
  Status Unsupported(std::string_view what) const {
    return Status(
        StatusCode::kUnsupported,
        fmt::format("the pattern {} uses {}, which is not supported", Quoted(pattern_), what));
  }

  bool Ahead(std::string_view text) const { return pattern_.substr(at_).starts_with(text); }
  bool Take(std::string_view text) {
    if (!Ahead(text)) return false;
    at_ += text.size();
    return true;
  }

  Status Item();
  Status OpenGroup();
  Status Quantifier();
  Status Escape();
  Status HexEscape(char letter, char32_t* c);
  Result<CharacterSet> Property(char letter);
  Result<CharacterSet> Class(int depth);
  Status ClassPart(int depth, CharacterSet* set);
  Status ClassEscape(CharacterSet* set, char32_t* c, bool* is_set);
  Status RangeOrCharacter(char32_t first, CharacterSet* set);
  Status PosixBracket(CharacterSet* set);

  // A literal character outside of classes.
  Status Literal(char32_t c);
  void Atom(std::string_view expression) {
    out_ += expression;
    quantifiable_ = true;
    previous_literal_ = 0;
  }
  void Anchor(std::string_view expression) {
    out_ += expression;
    quantifiable_ = false;
    previous_literal_ = 0;
  }

  std::string_view pattern_;
  size_t at_ = 0;
  std::string out_;
  std::vector<Scope> scopes_;
  bool caseless_ = false;
  bool quantifiable_ = false;      // the last item can be repeated
  char32_t previous_literal_ = 0;  // the last item when it was a literal, 0 otherwise
};

// \x{H..}, \xHH, \uHHHH, after the letter.
Status Translator::HexEscape(char letter, char32_t* c) {
  size_t max_digits = letter == 'u' ? 4 : 2;
  const bool braces = letter == 'x' && Take("{");
  if (braces) max_digits = 8;
  uint32_t value = 0;
  size_t digits = 0;
  for (; digits < max_digits && at_ < pattern_.size(); ++digits, ++at_) {
    const char32_t d = static_cast<unsigned char>(pattern_[at_]);
    const char32_t lower = AsciiLower(d);
    if (IsAsciiDigit(d)) {
      value = value * 16 + (d - '0');
    } else if (lower >= 'a' && lower <= 'f') {
      value = value * 16 + (lower - 'a' + 10);
    } else {
      break;
    }
  }
  if (braces && !Take("}")) return Corrupt("\\x{ without }");
  if (digits == 0 || (letter == 'u' && digits != 4)) return Corrupt("too short a hex escape");
  if (value > 0x10FFFF || (value >= 0xD800 && value < 0xE000)) {
    return Corrupt("an escape is no character");
  }
  // Two digits are a byte, not a character.
  if (letter == 'x' && !braces && value >= 0x80) return Unsupported("a byte escape");
  *c = value;
  return OkStatus();
}

Result<CharacterSet> Translator::Property(char letter) {
  if (!Take("{")) return Unsupported(fmt::format("\\{} without {{}}", letter));
  const bool caret = Take("^");
  const size_t end = pattern_.find('}', at_);
  if (end == std::string_view::npos) return Corrupt("\\p{ without }");
  const std::string_view name = pattern_.substr(at_, end - at_);
  at_ = end + 1;
  std::optional<CharacterSet> set = PropertySet(name);
  if (!set.has_value()) return Unsupported(fmt::format("the property {}", Quoted(name)));
  // Oniguruma keeps the case of these classes under (?i), PCRE2's versions differ.
  if (caseless_ && (name.size() != 1)) return Unsupported("a property under (?i)");
  if (caret != (letter == 'P')) set->Negate();
  return *std::move(set);
}

Status Translator::Literal(char32_t c) {
  if (caseless_) {
    if (c >= 0x80) return Unsupported("a non-ASCII character under (?i)");
    // Where a character folds to two letters (eszett, ligatures), Oniguruma lets the pair match it.
    const char32_t pair[2] = {AsciiLower(previous_literal_), AsciiLower(c)};
    for (const char* folding : {"ss", "ff", "fi", "fl", "st"}) {
      if (pair[0] == static_cast<char32_t>(folding[0]) &&
          pair[1] == static_cast<char32_t>(folding[1])) {
        return Unsupported(fmt::format("\"{}\" under (?i)", folding));
      }
    }
  }
  std::string text;
  if (c < 0x20 || c == 0x7F) {
    text = fmt::format("\\x{{{:x}}}", static_cast<uint32_t>(c));
  } else {
    if (c < 0x80 && !IsAsciiLetter(c) && !IsAsciiDigit(c) && c != ' ') text.push_back('\\');
    AppendUtf8(c, &text);
  }
  Atom(text);
  previous_literal_ = c;
  return OkStatus();
}

Status Translator::Escape() {
  if (at_ >= pattern_.size()) return Corrupt("it ends in a backslash");
  const char32_t c = NextCharacter(pattern_, &at_);
  if (!IsAsciiLetter(c) && !IsAsciiDigit(c)) return Literal(c);
  const char letter = static_cast<char>(c);
  switch (letter) {
    case 't':
      return Literal('\t');
    case 'n':
      return Literal('\n');
    case 'r':
      return Literal('\r');
    case 'f':
      return Literal('\f');
    case 'v':
      return Literal('\v');
    case 'a':
      return Literal('\a');
    case 'e':
      return Literal(0x1B);
    case 'x':
    case 'u': {
      char32_t value = 0;
      Status status = HexEscape(letter, &value);
      return status.ok() ? Literal(value) : status;
    }
    case 's':
    case 'w':
    case 'd':
    case 'h':
      Atom(ShorthandSet(letter, false).Expression());
      return OkStatus();
    case 'S':
    case 'W':
    case 'D':
    case 'H': {
      CharacterSet set = ShorthandSet(static_cast<char>(AsciiLower(c)), false);
      set.Negate();
      Atom(set.Expression());
      return OkStatus();
    }
    case 'p':
    case 'P': {
      Result<CharacterSet> set = Property(letter);
      if (!set.ok()) return set.status();
      Atom(set->Expression());
      return OkStatus();
    }
    case 'b':
    case 'B': {
      const std::string word = ShorthandSet('w', false).Expression();
      const std::string_view inside = letter == 'b' ? "!" : "=";
      const std::string_view outside = letter == 'b' ? "=" : "!";
      Anchor(fmt::format("(?:(?<={0})(?{1}{0})|(?<!{0})(?{2}{0}))", word, inside, outside));
      return OkStatus();
    }
    case 'A':
    case 'z':
    case 'Z':
      Anchor(fmt::format("\\{}", letter));
      return OkStatus();
    default:
      return Unsupported(fmt::format("\\{}", letter));
  }
}

Status Translator::OpenGroup() {
  Scope scope{.caseless = caseless_, .assertion = false, .atomic = false, .alternatives = false};
  if (!Take("?")) {
    Anchor("(?:");  // captures are not used: there are no back references
  } else if (Take("=")) {
    Anchor("(?=");
    scope.assertion = true;
  } else if (Take("!")) {
    Anchor("(?!");
    scope.assertion = true;
  } else if (Take("<=")) {
    Anchor("(?<=");
    scope.assertion = true;
  } else if (Take("<!")) {
    Anchor("(?<!");
    scope.assertion = true;
  } else if (Take(">")) {
    Anchor("(?>");
    scope.atomic = true;
  } else if (Take("<")) {
    const size_t end = pattern_.find('>', at_);
    if (end == std::string_view::npos) return Corrupt("(?< without >");
    at_ = end + 1;
    Anchor("(?:");
  } else {
    // Options: i, and m, which in Ruby lets the dot match a newline.
    bool on = true;
    std::string flags;
    for (; at_ < pattern_.size() && pattern_[at_] != ':' && pattern_[at_] != ')'; ++at_) {
      const char c = pattern_[at_];
      if (c == '-' && on) {
        on = false;
        flags += '-';
      } else if (c == 'i') {
        caseless_ = on;
        flags += 'i';
      } else if (c == 'm') {
        flags += 's';
      } else {
        return Unsupported("a group of another kind than (?: (?i: (?m: (?= (?! (?<= (?<! (?>");
      }
    }
    if (Take(")")) {
      // At the very beginning an option holds to the end, as in PCRE2; elsewhere Ruby's scope is
      // another.
      if (!out_.empty() || !scopes_.empty()) return Unsupported("an option inside the pattern");
      Anchor(fmt::format("(?{})", flags));
      return OkStatus();
    }
    if (!Take(":")) return Corrupt("a group is not closed");
    Anchor(fmt::format("(?{}:", flags));
  }
  scopes_.push_back(scope);
  return OkStatus();
}

// After an item: * + ? {n} {n,} {,m} {n,m}, then lazy '?' or possessive '+'.
Status Translator::Quantifier() {
  const char c = pattern_[at_++];
  std::string text(1, c);
  bool interval = false;
  bool exact = false;
  if (c == '{') {
    int bounds[2] = {-1, -1};
    int part = 0;
    size_t at = at_;
    for (; at < pattern_.size() && pattern_[at] != '}'; ++at) {
      const char d = pattern_[at];
      if (d == ',' && part == 0) {
        part = 1;
      } else if (d >= '0' && d <= '9') {
        bounds[part] = std::max(bounds[part], 0) * 10 + (d - '0');
        if (bounds[part] > kMaxRepeat) return Unsupported("a repetition above 60000");
      } else {
        break;
      }
    }
    const bool closed = at < pattern_.size() && pattern_[at] == '}';
    if (!closed || (bounds[0] < 0 && bounds[1] < 0)) {  // no interval: a brace
      return Literal('{');
    }
    at_ = at + 1;
    interval = true;
    exact = part == 0;
    text = exact           ? fmt::format("{{{}}}", bounds[0])
           : bounds[1] < 0 ? fmt::format("{{{},}}", bounds[0])
                           : fmt::format("{{{},{}}}", std::max(bounds[0], 0), bounds[1]);
  }
  if (!quantifiable_) return Unsupported("a repetition of what cannot be repeated");
  if (Ahead("?")) {
    if (exact) return Unsupported("{n}?");  // Ruby reads it as (?:...{n})?
    // PCRE2's generated code misses matches of (?>x+?)y.
    if (std::any_of(scopes_.begin(), scopes_.end(),
                    [](const Scope& scope) { return scope.atomic; })) {
      return Unsupported("a lazy repetition in (?>");
    }
    ++at_;
    text += '?';
  } else if (Ahead("+")) {
    if (interval) return Unsupported("a repeated interval");  // not possessive in Ruby
    ++at_;
    text += '+';
  }
  if (Ahead("*") || Ahead("+") || Ahead("?")) return Unsupported("a repetition of a repetition");
  Anchor(text);
  out_ += kStep;
  return OkStatus();
}

Status Translator::Item() {
  const char next = pattern_[at_];
  switch (next) {
    case '\\':
      ++at_;
      return Escape();
    case '[': {
      ++at_;
      Result<CharacterSet> set = Class(0);
      if (!set.ok()) return set.status();
      Atom(set->Expression());
      return OkStatus();
    }
    case '(':
      ++at_;
      return OpenGroup();
    case ')':
      ++at_;
      if (scopes_.empty()) return Corrupt("a ) without (");
      if (scopes_.back().alternatives) out_ += kStep;
      out_ += ')';
      caseless_ = scopes_.back().caseless;
      quantifiable_ = !scopes_.back().assertion;
      previous_literal_ = 0;
      scopes_.pop_back();
      return OkStatus();
    case '|':
      if (!scopes_.empty()) {
        scopes_.back().alternatives = true;
        out_ += kStep;
      }
      ++at_;
      Anchor("|");
      return OkStatus();
    case '^':
    case '$':
      ++at_;
      Anchor(std::string_view(&next, 1));
      return OkStatus();
    case '.':
      ++at_;
      Atom(".");
      return OkStatus();
    case '*':
    case '+':
    case '?':
    case '{':
      return Quantifier();
    default:
      return Literal(NextCharacter(pattern_, &at_));
  }
}

// [:name:], from the '[' on.
Status Translator::PosixBracket(CharacterSet* set) {
  const size_t end = pattern_.find(":]", at_ + 2);
  const std::string_view name = pattern_.substr(at_ + 2, end - at_ - 2);
  at_ = end + 2;
  if (name == "digit" || name == "space" || name == "word") {
    set->AddSet(ShorthandSet(name == "digit" ? 'd' : name == "space" ? 's' : 'w', true));
  } else if (name == "punct") {
    set->AddSet(*PropertySet("P"));
    set->AddSet(*PropertySet("S"));
  } else {
    return Unsupported(fmt::format("[:{}:]", name));
  }
  return OkStatus();
}

// After a backslash inside a class: a set (added to `*set`) or a character.
Status Translator::ClassEscape(CharacterSet* set, char32_t* c, bool* is_set) {
  if (at_ >= pattern_.size()) return Corrupt("a [ is not closed");
  *is_set = false;
  *c = NextCharacter(pattern_, &at_);
  if (!IsAsciiLetter(*c) && !IsAsciiDigit(*c)) return OkStatus();
  const char letter = static_cast<char>(*c);
  constexpr std::string_view kControls = "tnrfvae";
  constexpr std::string_view kControlCodes = "\t\n\r\f\v\a\x1B";
  if (const size_t i = kControls.find(letter); i != std::string_view::npos) {
    *c = static_cast<unsigned char>(kControlCodes[i]);
    return OkStatus();
  }
  if (letter == 'x' || letter == 'u') return HexEscape(letter, c);
  *is_set = true;
  if (letter == 'p' || letter == 'P') {
    Result<CharacterSet> property = Property(letter);
    if (!property.ok()) return property.status();
    set->AddSet(*property);
    return OkStatus();
  }
  const char lower = static_cast<char>(AsciiLower(*c));
  if (std::string_view("swdh").find(lower) == std::string_view::npos) {
    return Unsupported(fmt::format("\\{} in a class", letter));
  }
  CharacterSet shorthand = ShorthandSet(lower, true);
  if (letter != lower) shorthand.Negate();
  set->AddSet(shorthand);
  return OkStatus();
}

// `first` or, when a '-' follows, the range from it.
Status Translator::RangeOrCharacter(char32_t first, CharacterSet* set) {
  char32_t last = first;
  if (Ahead("-") && !Ahead("-]") && !Ahead("-&&")) {
    ++at_;
    if (Ahead("[")) return Unsupported("a range that ends in a set");
    if (at_ >= pattern_.size()) return Corrupt("a [ is not closed");
    last = NextCharacter(pattern_, &at_);
    if (last == '\\') {
      bool is_set = false;
      Status status = ClassEscape(set, &last, &is_set);
      if (!status.ok()) return status;
      if (is_set) return Unsupported("a range that ends in a set");
    }
    if (last < first) return Corrupt("a range runs backwards");
    if (Ahead("-") && !Ahead("-]")) return Unsupported("a range behind a range");
  }
  if (caseless_ && last >= 0x80) return Unsupported("a non-ASCII character under (?i)");
  if (first == last) {
    set->AddCharacter(first);
  } else {
    set->AddRange(first, last);
  }
  return OkStatus();
}

// The items up to "&&" or the closing bracket, neither of which is taken.
Status Translator::ClassPart(int depth, CharacterSet* set) {
  while (true) {
    if (at_ >= pattern_.size()) return Corrupt("a [ is not closed");
    if (Ahead("]") || Ahead("&&")) return OkStatus();
    if (Ahead("[:") && pattern_.find(":]", at_ + 2) != std::string_view::npos) {
      Status status = PosixBracket(set);
      if (!status.ok()) return status;
      continue;
    }
    char32_t c = NextCharacter(pattern_, &at_);
    bool is_set = false;
    if (c == '[') {
      Result<CharacterSet> inner = Class(depth + 1);
      if (!inner.ok()) return inner.status();
      set->AddSet(*inner);
      is_set = true;
    } else if (c == '\\') {
      Status status = ClassEscape(set, &c, &is_set);
      if (!status.ok()) return status;
    }
    if (is_set) {
      if (Ahead("-") && !Ahead("-]")) return Unsupported("a range that begins with a set");
      continue;
    }
    Status status = RangeOrCharacter(c, set);
    if (!status.ok()) return status;
  }
}

// After the '[', to behind the ']'.
Result<CharacterSet> Translator::Class(int depth) {
  if (depth > kMaxClassDepth) return Unsupported("classes nested deeper than 8");
  const bool negated = Take("^");
  if (Ahead("]")) return Unsupported("a class that begins with ]");
  CharacterSet set;
  Status status = ClassPart(depth, &set);
  if (!status.ok()) return status;
  if (set.empty()) return Unsupported("an empty class");
  while (Take("&&")) {
    CharacterSet other;
    status = ClassPart(depth, &other);
    if (!status.ok()) return status;
    if (other.empty()) return Unsupported("an empty class");
    set.IntersectWith(other);
  }
  if (!Take("]")) return Corrupt("a [ is not closed");
  if (negated) set.Negate();
  return set;
}

}  // namespace

Result<std::string> TranslateOniguruma(std::string_view pattern) {
  if (!IsValidUtf8(pattern)) {
    return Status(StatusCode::kCorrupt,
                  fmt::format("the pattern {} is not UTF-8", Quoted(pattern)));
  }
  return Translator(pattern).Run();
}

}  // namespace headway::tok
