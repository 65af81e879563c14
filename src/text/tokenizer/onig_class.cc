#include "text/tokenizer/onig_class.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <initializer_list>

#include "base/check.h"
#include "text/unicode/recent.h"

namespace headway::tok {
namespace {

std::string CodePoint(char32_t c) { return fmt::format("\\x{{{:x}}}", static_cast<uint32_t>(c)); }

// The ranges of `table` whose name begins with one of `prefixes`, neighbours joined.
template <size_t N>
std::string RangeItems(const unicode::NamedRange (&table)[N],
                       std::initializer_list<std::string_view> prefixes) {
  std::vector<unicode::CodeRange> ranges;
  for (const unicode::NamedRange& range : table) {
    const bool wanted = std::any_of(prefixes.begin(), prefixes.end(), [&](std::string_view prefix) {
      return std::string_view(range.name).starts_with(prefix);
    });
    if (!wanted) continue;
    if (!ranges.empty() && ranges.back().last + 1 == range.first) {
      ranges.back().last = range.last;
    } else {
      ranges.push_back({range.first, range.last});
    }
  }
  std::string items;
  for (const unicode::CodeRange& range : ranges) {
    items += CodePoint(range.first);
    if (range.last != range.first) items += "-" + CodePoint(range.last);
  }
  return items;
}

std::string CategoryItems(std::initializer_list<std::string_view> categories) {
  std::string items;
  for (std::string_view category : categories) items += fmt::format("\\p{{{}}}", category);
  return items + RangeItems(unicode::kRecentCategories, categories);
}

constexpr std::string_view kCategories[] = {"L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Mn", "Mc",
                                            "Me", "N",  "Nd", "Nl", "No", "P",  "Pc", "Pd", "Ps",
                                            "Pe", "Pi", "Pf", "Po", "S",  "Sm", "Sc", "Sk", "So",
                                            "Z",  "Zs", "Zl", "Zp", "Cc", "Cf", "Co"};

constexpr std::string_view kScripts[] = {"Han",    "Hiragana", "Katakana",  "Hangul",
                                         "Latin",  "Cyrillic", "Greek",     "Arabic",
                                         "Hebrew", "Thai",     "Devanagari"};

bool SameName(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](char x, char y) {
    return std::tolower(static_cast<unsigned char>(x)) ==
           std::tolower(static_cast<unsigned char>(y));
  });
}

}  // namespace

void CharacterSet::AddCharacter(char32_t c) { items_ += CodePoint(c); }

void CharacterSet::AddRange(char32_t first, char32_t last) {
  items_ += CodePoint(first) + "-" + CodePoint(last);
}

void CharacterSet::AddSet(const CharacterSet& other) {
  HEADWAY_CHECK(!other.empty());
  if (other.negated_ || !other.alternatives_.empty()) {
    alternatives_.push_back(other.Expression());
  } else {
    items_ += other.items_;
  }
}

void CharacterSet::IntersectWith(const CharacterSet& other) {
  std::string both = "(?:(?=" + Expression() + ")" + other.Expression() + ")";
  items_.clear();
  negated_ = false;
  alternatives_ = {std::move(both)};
}

std::string CharacterSet::Positive() const {
  if (alternatives_.empty()) return "[" + items_ + "]";
  // Atomic: a character that several alternatives match must not be tried once for each, or a run
  // of them would take exponential time.
  std::string expression = "(?>";
  if (!items_.empty()) expression += "[" + items_ + "]|";
  for (size_t i = 0; i < alternatives_.size(); ++i) {
    expression += (i == 0 ? "" : "|") + alternatives_[i];
  }
  return expression + ")";
}

std::string CharacterSet::Expression() const {
  HEADWAY_CHECK(!empty());
  if (!negated_) return Positive();
  if (alternatives_.empty()) return "[^" + items_ + "]";
  return "(?:(?!" + Positive() + ")(?s:.))";
}

CharacterSet ShorthandSet(char letter, Place place) {
  CharacterSet set;
  switch (letter) {
    case 's':
      set.AddItems("\\x09-\\x0d\\x{85}\\p{Z}");
      break;
    case 'd':
      set.AddItems(CategoryItems({"Nd"}));
      break;
    case 'h':
      set.AddItems("0-9a-fA-F");
      break;
    default:
      HEADWAY_CHECK(letter == 'w');
      set.AddItems(CategoryItems({"L", "M", "Nd", "Nl", "Pc"}));
      // Circled and squared Latin letters are alphabetic symbols.
      set.AddRange(0x24B6, 0x24E9);
      set.AddRange(0x1F130, 0x1F149);
      set.AddRange(0x1F150, 0x1F169);
      set.AddRange(0x1F170, 0x1F189);
      if (place == Place::kOutside) set.AddItems("\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}");
  }
  return set;
}

std::optional<CharacterSet> PropertySet(std::string_view name) {
  CharacterSet set;
  for (std::string_view category : kCategories) {
    if (!SameName(name, category)) continue;
    set.AddItems(CategoryItems({category}));
    return set;
  }
  for (std::string_view script : kScripts) {
    if (!SameName(name, script)) continue;
    // sc: is the script alone; without it PCRE2 takes the script extensions too.
    set.AddItems(fmt::format("\\p{{sc:{}}}", script) +
                 RangeItems(unicode::kRecentScripts, {script}));
    return set;
  }
  return std::nullopt;
}

}  // namespace headway::tok
