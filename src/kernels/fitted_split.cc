#include "kernels/fitted_split.h"

#include <algorithm>
#include <numeric>

#include "base/bytes.h"

namespace headway {
namespace {

// Longer parts begin and end no less often to speak of: of turns that need no longer ones the
// fewest are tried first, and whole segments may make parts twice as long.
constexpr int64_t kLongest = 4096;
constexpr int64_t kBegin = 128;    // keys in the time in which a part begins and ends
constexpr int64_t kMoreTurns = 4;  // that are tried beyond the fewest
// Of more, parts are many and short ones among them.
constexpr size_t kMostSequences = 64;

// Parts of a head. A lone sequence's open page is one more, which comes last; those of several come
// among the others, and end soon.
int64_t PartsOf(std::span<const int64_t> lengths, const KeyCut& cut, int64_t split) {
  int64_t parts = lengths.size() == 1 ? 1 : 0;
  for (int64_t length : lengths) {
    parts +=
        length / cut.segment * CeilDiv(cut.segment, split) + CeilDiv(length % cut.segment, split);
  }
  return parts;
}

// The least split, from `split` on, with `most` parts at most; 0: none is short enough.
int64_t LeastWith(std::span<const int64_t> lengths, const KeyCut& cut, int64_t split,
                  int64_t most) {
  int64_t low = CeilDiv(split, cut.page_slots);
  int64_t high = CeilDiv(2 * kLongest, cut.page_slots);
  if (low > high || PartsOf(lengths, cut, high * cut.page_slots) > most) return 0;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (PartsOf(lengths, cut, middle * cut.page_slots) <= most) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low * cut.page_slots;
}

}  // namespace

// Parts that are no more than so many turns of those at once end within as many times the longest
// of them, in whichever order they come.
int64_t FittedSplit(std::span<const int64_t> lengths, const KeyCut& cut) {
  const int64_t least = RoundUp(cut.least, cut.page_slots);
  const int64_t at_once = cut.at_once / cut.kv_heads;
  if (at_once < 2 || lengths.empty() || lengths.size() > kMostSequences) return least;
  const int64_t keys = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  int64_t best = least;
  int64_t best_time = CeilDiv(PartsOf(lengths, cut, least), at_once) * (least + kBegin);
  const int64_t fewest = CeilDiv(keys, at_once * kLongest);
  for (int64_t turns = fewest; turns < fewest + kMoreTurns; ++turns) {
    const int64_t split = LeastWith(lengths, cut, least, turns * at_once);
    const int64_t time = turns * (split + kBegin);
    if (split == 0 || time >= best_time) continue;
    best = split;
    best_time = time;
  }
  return best;
}

}  // namespace headway
