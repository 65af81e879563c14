#include "kernels/lone_split.h"

#include <algorithm>

#include "base/bytes.h"

namespace headway {
namespace {

// Longer parts begin and end no less often to speak of.
constexpr int64_t kLongest = 4096;

int64_t PartsOfHead(const LoneKeys& lone, int64_t split) {
  const int64_t whole = lone.keys / lone.segment;
  return whole * CeilDiv(lone.segment, split) + CeilDiv(lone.keys % lone.segment, split);
}

}  // namespace

int64_t LoneSplit(const LoneKeys& lone, int64_t least, int64_t at_once) {
  least = RoundUp(least, lone.page_slots);
  const int64_t of_head = at_once / lone.kv_heads;
  if (of_head < 2) return least;
  // One of a head's parts is that of its open page.
  const int64_t most = CeilDiv(lone.keys, of_head * kLongest) * of_head - 1;
  const int64_t first = std::max(least, RoundUp(CeilDiv(lone.keys, most), lone.page_slots));
  for (int64_t split = first; split <= 2 * first; split += lone.page_slots) {
    if (PartsOfHead(lone, split) <= most) return split;
  }
  return least;  // the segments alone are more
}

}  // namespace headway
