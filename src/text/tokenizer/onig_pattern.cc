#include "text/tokenizer/onig_pattern.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/utf8.h"
#include "text/tokenizer/onig_class.h"
#include "text/tokenizer/onig_reader.h"
#include "text/tokenizer/text.h"

namespace headway::tok {
namespace {

// A callout, by which the matcher counts its steps: one behind all that can be matched in several
// ways. Going back to try another way always passes one.
constexpr std::string_view kStep = "(?C)";

constexpr int kMaxRepeat = 60'000;  // PCRE2 ends at 65535

// Translates from left to right; groups need no tree, the reader has classes.
class Translator : private OnigReader {
 public:
  using OnigReader::OnigReader;

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

  Status Item();
  Status OpenGroup();
  Status Quantifier();
  Status Escape();

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

  std::string out_;
  std::vector<Scope> scopes_;
  bool quantifiable_ = false;      // the last item can be repeated
  char32_t previous_literal_ = 0;  // the last item when it was a literal, 0 otherwise
};

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
      Atom(ShorthandSet(letter, Place::kOutside).Expression());
      return OkStatus();
    case 'S':
    case 'W':
    case 'D':
    case 'H': {
      CharacterSet set = ShorthandSet(static_cast<char>(AsciiLower(c)), Place::kOutside);
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
      const std::string word = ShorthandSet('w', Place::kOutside).Expression();
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
      Result<CharacterSet> set = Class();
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

}  // namespace

Result<std::string> TranslateOniguruma(std::string_view pattern) {
  if (!IsValidUtf8(pattern)) {
    return Status(StatusCode::kCorrupt,
                  fmt::format("the pattern {} is not UTF-8", Quoted(pattern)));
  }
  return Translator(pattern).Run();
}

}  // namespace headway::tok
