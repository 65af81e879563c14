// StreamingPages: which pages of streaming heads are kept, as a function of lengths.
#ifndef HEADWAY_KV_PAGES_STREAMING_PAGES_H_
#define HEADWAY_KV_PAGES_STREAMING_PAGES_H_

#include <algorithm>
#include <cstdint>

#include "base/bytes.h"
#include "kv/pages/format.h"

namespace headway::kv {

// All in pages from the sequence's start.
class StreamingPages {
 public:
  explicit StreamingPages(const CacheFormat& format)
      : pattern_(format.pattern), slots_(format.page.page_slots) {}

  // The first pages, kept for good; where the sink ends within one, its other keys are recent ones.
  int64_t sink() const { return CeilDiv(pattern_.sink, slots_); }
  // Recent pages that are kept at most: what queries behind the last closed page see, and some more
  // so that a sequence can be cut back a little.
  int64_t recent() const {
    return CeilDiv(std::max<int64_t>(0, pattern_.recent - 1), slots_) + kSpare;
  }
  int64_t of_a_head() const { return sink() + 2 * recent(); }
  // The first page behind the sink's that queries at positions >= `position` can see.
  int64_t FirstVisible(int64_t position) const {
    return std::max(sink(), std::max<int64_t>(0, position - pattern_.recent + 1) / slots_);
  }
  // The first recent page that is kept once `closed` pages are, those from `first` on before.
  int64_t FirstKept(int64_t first, int64_t closed) const {
    return std::max({sink(), first, closed - recent()});
  }

 private:
  static constexpr int64_t kSpare = 2;

  const HeadPattern& pattern_;
  const int64_t slots_;
};

}  // namespace headway::kv

#endif  // HEADWAY_KV_PAGES_STREAMING_PAGES_H_
