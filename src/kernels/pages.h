// Pages of a KV cache as kernels see them: the layout of one page, and runs of pages with strides.
#ifndef HEADWAY_KERNELS_PAGES_H_
#define HEADWAY_KERNELS_PAGES_H_

#include <cstddef>
#include <cstdint>

#include "base/types.h"

namespace headway {

// How the pages of a cache are laid out: page_slots × head_dim elements, slot-major. Closed pages
// may be encoded: then K and V are codes in the same order, and a page's parameters lie apart (see
// page_codec.h). head_dim is even then.
struct PageFormat {
  DType dtype = DType::kBF16;
  int page_slots = kDefaultPageSlots;
  int head_dim = 0;
  Encoding encoding = Encoding::kNone;  // of closed pages

  size_t bytes() const {  // of K, or of V, without padding
    return static_cast<size_t>(page_slots) * static_cast<size_t>(head_dim) * DTypeBytes(dtype);
  }
  // The same for a closed page.
  size_t closed_bytes() const {
    return static_cast<size_t>(EncodedBytes(encoding, dtype, int64_t{page_slots} * head_dim));
  }
};

// `count` consecutive slots of one or more KV heads, `first_slot` slots into the first of their
// pages. The pages of a head lie page_stride bytes apart, the heads head_stride bytes apart.
struct PageRun {
  std::byte* k = nullptr;  // the first page of the first head
  std::byte* v = nullptr;
  int64_t page_stride = 0;
  int64_t head_stride = 0;
  int64_t first_slot = 0;
  int64_t count = 0;
  int64_t readable = 0;  // slots of a head from its first page on that are memory of the cache,
                         // whatever it holds; 0: those up to the last of the count
  // Of closed pages in the format's encoding, the parameters of the first page of the first head;
  // null: the pages are in the dtype.
  std::byte* params = nullptr;
  int64_t params_page_stride = 0;
  int64_t params_head_stride = 0;
};

// The distance of the heads of a run with one more head, whose pages are `next`, behind the `heads`
// that it has; 0 where they lie at another distance.
inline int64_t HeadStrideWith(const PageRun& run, int heads, const PageRun& next) {
  const int64_t stride = heads == 1 ? next.k - run.k : run.head_stride;
  const int64_t apart = heads * stride;
  return stride > 0 && next.k - run.k == apart && next.v - run.v == apart ? stride : 0;
}

// Where a slot of a head of the run, counted from the run's first, is behind its `k`, or `v`. Of
// pages that are not encoded.
inline int64_t SlotOffset(const PageFormat& format, const PageRun& run, int64_t head,
                          int64_t slot) {
  const int64_t at = run.first_slot + slot;
  return head * run.head_stride + at / format.page_slots * run.page_stride +
         at % format.page_slots * format.head_dim * static_cast<int64_t>(DTypeBytes(format.dtype));
}

}  // namespace headway

#endif  // HEADWAY_KERNELS_PAGES_H_
