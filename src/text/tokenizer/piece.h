// What a text is while it becomes words: pieces of it, some of them already tokens.
#ifndef HEADWAY_TEXT_TOKENIZER_PIECE_H_
#define HEADWAY_TEXT_TOKENIZER_PIECE_H_

#include <algorithm>
#include <cstddef>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/types.h"
#include "headway/status.h"
#include "text/tokenizer/regex.h"

namespace headway::tok {

struct Piece {
  std::string_view text;  // UTF-8
  // How many bytes at the beginning come from the very first character of the whole text: what
  // Metaspace's scheme "first" asks. Every change of a text keeps count of them.
  size_t from_start = 0;
  TokenId added = -1;  // an added token's id; such a piece is not touched any more

  Piece Slice(size_t begin, size_t end) const {
    return {.text = text.substr(begin, end - begin),
            .from_start = begin < from_start ? std::min(from_start, end) - begin : 0};
  }
};

// One encoding's work: it owns every text that steps make, which the pieces point into.
class PieceWork {
 public:
  explicit PieceWork(size_t text_bytes) : text_bytes_(text_bytes) {}

  std::string_view Keep(std::string text) {
    kept_bytes_ += text.size();
    return texts_.emplace_back(std::move(text));
  }
  // kInvalidArgument when the steps of the tokenizer have blown up the text beyond all use (or
  // would, with `more_bytes`): a few replacements can double a text until memory ends.
  Status CheckSize(size_t more_bytes = 0) const;
  // Made on first use: many tokenizers have no patterns.
  RegexScratch* regex() {
    if (regex_ == nullptr) regex_ = std::make_unique<RegexScratch>(text_bytes_);
    return regex_.get();
  }
  std::vector<Stretch>* stretches() { return &stretches_; }

 private:
  size_t text_bytes_;
  size_t kept_bytes_ = 0;
  std::deque<std::string> texts_;  // elements never move
  std::unique_ptr<RegexScratch> regex_;
  std::vector<Stretch> stretches_;
};

// Puts `prefix` before the piece, which must not be empty.
inline void PrependTo(std::string_view prefix, Piece* piece, PieceWork* work) {
  std::string text(prefix);
  text += piece->text;
  piece->text = work->Keep(std::move(text));
  if (piece->from_start > 0) piece->from_start += prefix.size();
}

// Puts `content` in the place of every match.
Status ReplaceMatches(const std::vector<Stretch>& stretches, std::string_view content, Piece* piece,
                      PieceWork* work);

}  // namespace headway::tok

#endif  // HEADWAY_TEXT_TOKENIZER_PIECE_H_
