#include "engine/eval/tasks/haystack.h"

#include <utility>

#include "engine/eval/tasks/prose.h"

namespace headway::eval {
namespace {

// Short, so that a document comes close to the length asked for.
constexpr size_t kMaxPieceBytes = 160;

bool IsSpace(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

// Whether a sentence ends before text[at]: white space follows what closes a sentence, with or
// without a quotation mark, or a line ends.
bool EndsBefore(std::string_view text, size_t at) {
  if (!IsSpace(text[at])) return false;
  if (text[at] == '\n') return true;
  size_t last = at;
  while (last > 0 && (text[last - 1] == '"' || text[last - 1] == '\'' || text[last - 1] == ')')) {
    --last;
  }
  return last > 0 && std::string_view(".!?").find(text[last - 1]) != std::string_view::npos;
}

}  // namespace

Haystack Haystack::FromText(std::string_view text) {
  Haystack haystack;
  size_t begin = 0;
  for (size_t at = 1; at < text.size(); ++at) {
    // White space belongs to the piece behind it: a run of it is cut at its first byte only.
    const bool first_space = IsSpace(text[at]) && !IsSpace(text[at - 1]);
    // Scripts that write no spaces are cut between characters.
    const bool first_byte = (static_cast<unsigned char>(text[at]) & 0xC0) != 0x80;
    if ((first_space && (EndsBefore(text, at) || at - begin >= kMaxPieceBytes)) ||
        (first_byte && at - begin >= 2 * kMaxPieceBytes)) {
      haystack.pieces_.emplace_back(text.substr(begin, at - begin));
      begin = at;
    }
  }
  if (begin < text.size()) haystack.pieces_.emplace_back(text.substr(begin));
  return haystack;
}

Haystack Haystack::FromPieces(std::vector<std::string> pieces) {
  Haystack haystack;
  haystack.pieces_ = std::move(pieces);
  return haystack;
}

Haystack Haystack::Generate(int64_t bytes, uint64_t seed) {
  Haystack haystack;
  ProseGenerator prose(seed);
  int64_t made = 0;
  while (made < bytes) {
    const std::vector<std::string> sentences = prose.Paragraph();
    for (size_t i = 0; i < sentences.size(); ++i) {
      const char* divider = i > 0 ? " " : haystack.pieces_.empty() ? "" : "\n\n";
      haystack.pieces_.push_back(divider + sentences[i]);
      made += static_cast<int64_t>(haystack.pieces_.back().size());
    }
  }
  return haystack;
}

}  // namespace headway::eval
