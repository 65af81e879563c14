#include "text/tokenizer/piece.h"

namespace headway::tok {

Status PieceWork::CheckSize(size_t more_bytes) const {
  constexpr size_t kAlwaysBytes = size_t{16} << 20;
  constexpr size_t kPerByte = 64;
  if (kept_bytes_ + more_bytes <= kAlwaysBytes + kPerByte * text_bytes_) return OkStatus();
  return Status(StatusCode::kInvalidArgument,
                "the tokenizer's normalizer or pre_tokenizer makes the text too long: above 16 "
                "MiB and 64 times its length");
}

Status ReplaceMatches(const std::vector<Stretch>& stretches, std::string_view content, Piece* piece,
                      PieceWork* work) {
  const auto matches = static_cast<size_t>(std::count_if(
      stretches.begin(), stretches.end(), [](const Stretch& stretch) { return stretch.match; }));
  if (matches == 0) return OkStatus();
  Status status = work->CheckSize(piece->text.size() + matches * content.size());
  if (!status.ok()) return status;
  std::string text;
  text.reserve(piece->text.size());
  size_t from_start = 0;
  for (const Stretch& stretch : stretches) {
    if (!stretch.match) {
      text += piece->text.substr(stretch.begin, stretch.end - stretch.begin);
      from_start += piece->Slice(stretch.begin, stretch.end).from_start;
      continue;
    }
    text += content;
    // The new text comes from where the last byte of the match came from.
    const size_t source = stretch.end == 0 ? 0 : stretch.end - 1;
    if (source < piece->from_start) from_start += content.size();
  }
  piece->text = work->Keep(std::move(text));
  piece->from_start = from_start;
  return OkStatus();
}

}  // namespace headway::tok
