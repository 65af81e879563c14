// SavedKept: what the manifest of a session says of a cache whose heads have let go of tokens.
#ifndef HEADWAY_KV_SESSION_SAVED_KEPT_H_
#define HEADWAY_KV_SESSION_SAVED_KEPT_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "headway/status.h"
#include "kv/pages/format.h"
#include "kv/session/wire.h"

namespace headway::kv {

// Every head group has one head then, and there are no windows.
struct SavedKept {
  std::string policy;  // that chose: the saver's words, which mean nothing here
  int64_t from = 0;    // tokens that the prompt had
  // By layer and head group: where the tokens of its first pages are, whole pages of them among
  // those of the prompt. The pages behind hold consecutive tokens.
  std::vector<std::vector<int32_t>> positions;
  // K and V of the tokens behind the last whole page, as the open pages have them, row by row of
  // each layer: these tokens could not be read again as they were.
  std::vector<std::byte> open;

  // Pages that the prompt filled, and those that a table has of `tokens`.
  int64_t ClosedPages(int slots) const { return from / slots; }
  int64_t PagesOf(size_t table, int64_t tokens, int slots) const {
    return std::ssize(positions[table]) / slots + tokens / slots - ClosedPages(slots);
  }
};

// Bytes of the open pages of `tokens` tokens in all.
int64_t OpenPageBytes(const CacheFormat& format, int64_t tokens);

// The rules: the words are a line of text; as many tables as the format has, each of ascending
// positions that fill whole pages of the prompt's; open pages of `tokens` tokens. kCorrupt, with a
// reason that names no file.
Status CheckKept(const SavedKept& kept, const CacheFormat& format, int64_t tokens);

// Of the tables by layer those of some heads, ascending in each layer: [layers][heads].
using LayerHeads = std::vector<std::vector<int>>;
// What `whole`, of `all` heads in each layer, says of some of them, and behind these, up to so many
// places in each layer, that nothing is kept of zeros; and `parts`, which have all heads between
// them, as one.
SavedKept PartOfKept(const SavedKept& whole, int all, const LayerHeads& heads, int places = 0);
SavedKept JoinKept(std::span<const SavedKept> parts, int all, std::span<const LayerHeads> heads);

void PutKept(const SavedKept& kept, WireWriter* out);
// False where there are fewer bytes than it claims.
bool GetKept(WireReader* in, SavedKept* kept);

}  // namespace headway::kv

#endif  // HEADWAY_KV_SESSION_SAVED_KEPT_H_
