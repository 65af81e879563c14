#include "text/tokenizer/text.h"

#include "base/utf8.h"

namespace headway::tok {

std::string Quoted(std::string_view text) {
  constexpr size_t kMaxBytes = 100;
  std::string shown(text.substr(0, kMaxBytes));
  if (text.size() > kMaxBytes) shown.resize(shown.size() - IncompleteUtf8Suffix(shown));
  shown = ReplaceInvalidUtf8(shown);
  for (char& c : shown) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) c = ' ';
  }
  return "\"" + shown + (text.size() > kMaxBytes ? "...\"" : "\"");
}

}  // namespace headway::tok
