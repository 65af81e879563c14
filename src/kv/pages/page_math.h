// PageMath: lengths of sequences in pages and segments of a cache, and what windows let go of.
#ifndef HEADWAY_KV_PAGES_PAGE_MATH_H_
#define HEADWAY_KV_PAGES_PAGE_MATH_H_

#include <algorithm>
#include <cstdint>

#include "base/bytes.h"
#include "kv/pages/format.h"

namespace headway::kv {

// Lengths in pages and segments of a cache.
class PageMath {
 public:
  explicit PageMath(const CacheFormat& format) : format_(format) {}

  int64_t slots() const { return format_.page.page_slots; }
  int64_t ClosedPages(int64_t length) const { return length / slots(); }
  int64_t ClosedTokens(int64_t length) const { return length - length % slots(); }
  int Segments(int64_t pages) const {
    return static_cast<int>(CeilDiv(pages, format_.segment_pages));
  }
  // The first segment that queries at positions >= `position` can see.
  int FirstVisible(int layer, int64_t position) const {
    const int64_t window = format_.WindowOf(layer);
    if (window == 0) return 0;
    return static_cast<int>(std::max<int64_t>(0, position - window + 1) / format_.segment_tokens());
  }
  // The first segment that a sequence of `length` keeps: enough that it can be cut back, saved or
  // given up to its last whole page.
  int FirstKept(int layer, int64_t length) const {
    return FirstVisible(layer, ClosedTokens(length));
  }

 private:
  const CacheFormat& format_;
};

}  // namespace headway::kv

#endif  // HEADWAY_KV_PAGES_PAGE_MATH_H_
