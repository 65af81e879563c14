#include "engine/eval/metric_text.h"

#include <algorithm>
#include <map>

#include "base/utf8.h"

namespace headway::eval {
namespace {

bool IsSpace(char c) { return std::string_view(" \t\r\n\v\f").find(c) != std::string_view::npos; }
bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsPunctuation(char c) {
  return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') ||
         (c >= '{' && c <= '~');
}
bool IsAlphanumeric(char c) {
  return !IsSpace(c) && !IsPunctuation(c) && (static_cast<unsigned char>(c) >= 0x20);
}

// Punctuation and spaces of Chinese texts: general punctuation, that of CJK, and full-width forms.
bool IsWidePunctuation(char32_t c) {
  return (c >= 0x2000 && c <= 0x206F) || (c >= 0x3000 && c <= 0x303F) ||
         (c >= 0xFF01 && c <= 0xFF0F) || (c >= 0xFF1A && c <= 0xFF20) ||
         (c >= 0xFF3B && c <= 0xFF40) || (c >= 0xFF5B && c <= 0xFF65) || c == 0xFE4F;
}

// The runs of bytes for which `inside` holds.
template <typename Inside>
Units Runs(std::string_view text, const Inside& inside) {
  Units runs;
  bool open = false;
  for (const char c : text) {
    if (!inside(c)) {
      open = false;
      continue;
    }
    if (!open) runs.emplace_back();
    open = true;
    runs.back() += c;
  }
  return runs;
}

}  // namespace

std::string LowerCase(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return lower;
}

std::string_view Trimmed(std::string_view text) {
  while (!text.empty() && IsSpace(text.front())) text.remove_prefix(1);
  while (!text.empty() && IsSpace(text.back())) text.remove_suffix(1);
  return text;
}

Units AnswerWords(std::string_view text) {
  std::string kept = LowerCase(text);
  std::erase_if(kept, IsPunctuation);
  Units words = Runs(kept, [](char c) { return !IsSpace(c); });
  std::erase_if(words, [](const std::string& w) { return w == "a" || w == "an" || w == "the"; });
  return words;
}

Units AnswerCharacters(std::string_view text) {
  Units characters = Characters(LowerCase(text));
  std::erase_if(characters, [](const std::string& c) {
    return c.size() == 1 ? IsSpace(c[0]) || IsPunctuation(c[0]) : IsWidePunctuation(CharAt(c, 0));
  });
  return characters;
}

Units RougeWords(std::string_view text) { return Runs(LowerCase(text), IsAlphanumeric); }

Units Characters(std::string_view text) {
  const std::string valid = ReplaceInvalidUtf8(text);
  Units characters;
  for (size_t at = 0; at < valid.size();) {
    const size_t bytes = CharBytes(valid, at);
    characters.push_back(valid.substr(at, bytes));
    at += bytes;
  }
  return characters;
}

Units Numbers(std::string_view text) {
  Units numbers = Runs(text, IsDigit);
  for (std::string& number : numbers) {
    number.erase(0, std::min(number.find_first_not_of('0'), number.size() - 1));
  }
  return numbers;
}

double OverlapF1(const Units& output, const Units& answer) {
  std::map<std::string_view, int64_t> left;
  for (const std::string& unit : answer) ++left[unit];
  int64_t common = 0;
  for (const std::string& unit : output) {
    const auto found = left.find(unit);
    if (found == left.end() || found->second == 0) continue;
    --found->second;
    ++common;
  }
  if (common == 0) return 0.0;
  // 2 p r / (p + r) with p = common / outputs and r = common / answers.
  return 2.0 * static_cast<double>(common) / static_cast<double>(output.size() + answer.size());
}

int64_t CommonSubsequence(const Units& a, const Units& b) {
  // row[j]: of the units of `a` so far and the first j of `b`.
  std::vector<int64_t> row(b.size() + 1, 0);
  for (const std::string& unit : a) {
    int64_t above_left = 0;
    for (size_t j = 0; j < b.size(); ++j) {
      const int64_t above = row[j + 1];
      row[j + 1] = unit == b[j] ? above_left + 1 : std::max(above, row[j]);
      above_left = above;
    }
  }
  return row.back();
}

}  // namespace headway::eval
