#include "text/tokenizer/onig_reader.h"

#include <fmt/format.h>

#include <cstdint>
#include <optional>
#include <utility>

#include "base/utf8.h"
#include "text/tokenizer/text.h"

namespace headway::tok {
namespace {

constexpr int kMaxClassDepth = 8;

}  // namespace

Status OnigReader::Corrupt(std::string_view what) const {
  return Status(StatusCode::kCorrupt,
                fmt::format("the pattern {} is wrong: {}", Quoted(pattern_), what));
}

Status OnigReader::Unsupported(std::string_view what) const {
  return Status(
      StatusCode::kUnsupported,
      fmt::format("the pattern {} uses {}, which is not supported", Quoted(pattern_), what));
}

Status OnigReader::HexEscape(char letter, char32_t* c) {
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

Result<CharacterSet> OnigReader::Property(char letter) {
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

// [:name:], from the '[' on.
Status OnigReader::PosixBracket(CharacterSet* set) {
  const size_t end = pattern_.find(":]", at_ + 2);
  const std::string_view name = pattern_.substr(at_ + 2, end - at_ - 2);
  at_ = end + 2;
  if (name == "digit" || name == "space" || name == "word") {
    set->AddSet(ShorthandSet(name == "digit" ? 'd' : name == "space" ? 's' : 'w', Place::kInClass));
  } else if (name == "punct") {
    set->AddSet(*PropertySet("P"));
    set->AddSet(*PropertySet("S"));
  } else {
    return Unsupported(fmt::format("[:{}:]", name));
  }
  return OkStatus();
}

// After a backslash inside a class: a set (added to `*set`) or a character.
Status OnigReader::ClassEscape(CharacterSet* set, char32_t* c, bool* is_set) {
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
  CharacterSet shorthand = ShorthandSet(lower, Place::kInClass);
  if (letter != lower) shorthand.Negate();
  set->AddSet(shorthand);
  return OkStatus();
}

// `first` or, when a '-' follows, the range from it.
Status OnigReader::RangeOrCharacter(char32_t first, CharacterSet* set) {
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
Status OnigReader::ClassPart(int depth, CharacterSet* set) {
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
      Result<CharacterSet> inner = ClassAt(depth + 1);
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

Result<CharacterSet> OnigReader::ClassAt(int depth) {
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

}  // namespace headway::tok
