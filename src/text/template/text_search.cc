#include "text/template/text_search.h"

#include <cstring>

#include "base/utf8.h"

namespace headway::jinja {
namespace {

bool IsLineEnd(char32_t c) {
  return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 ||
         c == 0x2029;
}

}  // namespace

size_t FindText(std::string_view text, std::string_view needle, size_t from) {
  if (from > text.size()) return std::string_view::npos;
  if (needle.empty()) return from;
  // memmem is linear; string_view::find is not for needles like "aaa...b".
  const void* found = memmem(text.data() + from, text.size() - from, needle.data(), needle.size());
  if (found == nullptr) return std::string_view::npos;
  return static_cast<size_t>(static_cast<const char*>(found) - text.data());
}

bool ReplaceText(std::string_view text, std::string_view old, std::string_view replacement,
                 int64_t count, int64_t max_bytes, std::string* result) {
  result->clear();
  const auto fits = [&] { return static_cast<int64_t>(result->size()) <= max_bytes; };
  size_t position = 0;
  if (old.empty()) {
    // Before every character and at the end.
    while (count != 0 && fits()) {
      *result += replacement;
      --count;
      if (position == text.size()) return fits();
      const size_t bytes = CharBytes(text, position);
      *result += text.substr(position, bytes);
      position += bytes;
    }
  }
  while (count != 0 && !old.empty() && fits()) {
    const size_t found = FindText(text, old, position);
    if (found == std::string_view::npos) break;
    *result += text.substr(position, found - position);
    *result += replacement;
    position = found + old.size();
    --count;
  }
  *result += text.substr(position);
  return fits();
}

std::vector<std::string_view> SplitLines(std::string_view text, bool keep_ends) {
  std::vector<std::string_view> lines;
  size_t begin = 0;
  for (size_t i = 0; i < text.size();) {
    const char32_t c = CharAt(text, i);
    const size_t end = i;
    i += CharBytes(text, i);
    if (!IsLineEnd(c)) continue;
    if (c == '\r' && i < text.size() && text[i] == '\n') ++i;
    lines.push_back(text.substr(begin, (keep_ends ? i : end) - begin));
    begin = i;
  }
  if (begin < text.size()) lines.push_back(text.substr(begin));
  return lines;
}

}  // namespace headway::jinja
