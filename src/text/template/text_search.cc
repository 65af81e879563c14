#include "text/template/text_search.h"

#include <algorithm>
#include <cstring>

#include "base/utf8.h"
#include "text/unicode/unicode.h"

namespace headway::jinja {
namespace {

constexpr size_t kNone = std::string_view::npos;

bool IsLineEnd(char32_t c) {
  return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 ||
         c == 0x2029;
}

bool InSet(std::string_view set, std::string_view character) {
  for (size_t i = 0; i < set.size(); i += CharBytes(set, i)) {
    if (set.substr(i, CharBytes(set, i)) == character) return true;
  }
  return false;
}

size_t FindSpace(std::string_view text) {
  size_t end = 0;
  while (end < text.size() && !unicode::IsSpace(CharAt(text, end))) end += CharBytes(text, end);
  return end < text.size() ? end : kNone;
}

// Where the last word begins; kNone when there is no white space before it.
size_t FindLastWord(std::string_view text) {
  size_t length = 0;
  while (!text.empty() && !unicode::IsSpace(LastCharacter(text, &length))) {
    text.remove_suffix(length);
  }
  return text.empty() ? kNone : text.size();
}

}  // namespace

size_t FindText(std::string_view text, std::string_view needle, size_t from) {
  if (from > text.size()) return kNone;
  if (needle.empty()) return from;
  // memmem is linear; string_view::find is not for needles like "aaa...b".
  const void* found = memmem(text.data() + from, text.size() - from, needle.data(), needle.size());
  if (found == nullptr) return kNone;
  return static_cast<size_t>(static_cast<const char*>(found) - text.data());
}

size_t FindLastText(Runtime& rt, std::string_view text, std::string_view needle) {
  constexpr int64_t kComparedPerStep = 1024;
  if (needle.size() > text.size()) return kNone;
  const size_t found = text.rfind(needle);
  const auto looked_at = static_cast<int64_t>(text.size() - (found == kNone ? 0 : found));
  const bool paid = rt.Charge(looked_at * static_cast<int64_t>(needle.size()) / kComparedPerStep);
  return paid ? found : kNone;
}

Value ReplaceText(Runtime& rt, const Value& self, std::string_view old,
                  std::string_view replacement, int64_t count) {
  const std::string_view text = self.text();
  rt.Charge(static_cast<int64_t>(text.size()) / kScanBytesPerStep);
  std::string result;
  size_t position = 0;
  while (count-- != 0 && rt.CheckSize(static_cast<int64_t>(result.size()))) {
    const size_t found = FindText(text, old, position);
    if (found == kNone) break;
    result += text.substr(position, found - position);
    result += replacement;
    position = found + old.size();
    if (!old.empty()) continue;
    // An empty text is found before every character and at the end.
    if (position == text.size()) break;
    const size_t bytes = CharBytes(text, position);
    result += text.substr(position, bytes);
    position += bytes;
  }
  result += text.substr(position);
  return rt.Str(std::move(result), self.markup());
}

std::vector<std::string_view> SplitLines(std::string_view text, bool keep_ends) {
  std::vector<std::string_view> lines;
  size_t begin = 0;
  for (size_t i = 0; i < text.size();) {
    const size_t end = i;
    const char32_t c = NextCharacter(text, &i);
    if (!IsLineEnd(c)) continue;
    if (c == '\r' && i < text.size() && text[i] == '\n') ++i;
    lines.push_back(text.substr(begin, (keep_ends ? i : end) - begin));
    begin = i;
  }
  if (begin < text.size()) lines.push_back(text.substr(begin));
  return lines;
}

std::vector<std::string_view> SplitText(Runtime& rt, std::string_view text,
                                        std::string_view separator, int64_t max_split,
                                        SplitFrom from) {
  const bool right = from == SplitFrom::kRight;
  const bool space = separator.empty();
  const auto strip = [&] {
    if (space) text = right ? unicode::StripRight(text) : unicode::StripLeft(text);
  };
  std::vector<std::string_view> parts;
  for (strip(); rt.Charge(1) && !(space && text.empty()); strip()) {
    // Where the separator begins, or for white space where a part ends and begins.
    size_t found = kNone;
    if (max_split-- != 0) {
      if (right) {
        found = space ? FindLastWord(text) : FindLastText(rt, text, separator);
      } else {
        found = space ? FindSpace(text) : FindText(text, separator);
      }
    }
    if (found == kNone) {
      parts.push_back(text);
      break;
    }
    const std::string_view before = text.substr(0, found);
    const std::string_view after = text.substr(found + separator.size());
    parts.push_back(right ? after : before);
    text = right ? before : after;
  }
  if (right) std::reverse(parts.begin(), parts.end());
  return parts;
}

Value StripChars(Runtime& rt, const Value& self, const Value& chars, Sides sides) {
  std::string_view text = self.text();
  const bool left = sides != Sides::kRight;
  const bool right = sides != Sides::kLeft;
  if (chars.none()) {
    if (left) text = unicode::StripLeft(text);
    if (right) text = unicode::StripRight(text);
    return rt.Str(std::string(text), self.markup());
  }
  if (!chars.string()) return rt.Fail("strip() needs none or a string");
  const std::string& set = chars.text();
  // Every character is compared with the whole set.
  const int64_t cost = 1 + static_cast<int64_t>(set.size()) / kScanBytesPerStep;
  while (left && !text.empty() && rt.Charge(cost)) {
    const size_t bytes = CharBytes(text, 0);
    if (!InSet(set, text.substr(0, bytes))) break;
    text.remove_prefix(bytes);
  }
  while (right && !text.empty() && rt.Charge(cost)) {
    const size_t before = PreviousOffset(text, text.size());
    if (!InSet(set, text.substr(before))) break;
    text = text.substr(0, before);
  }
  return rt.Str(std::string(text), self.markup());
}

}  // namespace headway::jinja
