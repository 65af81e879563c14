// What writes pages: new keys and values go into open pages of a KV cache, closed pages into their
// encoding, and keys that are attended to at other positions into pages beside the cache.
// The encodings are defined in page_codec.h.
#ifndef HEADWAY_KERNELS_CACHE_H_
#define HEADWAY_KERNELS_CACHE_H_

#include <cstdint>
#include <span>

#include "device/device.h"
#include "kernels/elementwise.h"
#include "kernels/pages.h"

namespace headway {

// Pages of `heads` KV heads that have closed: from.count slots, whole pages, in the dtype, are
// encoded into `to`.
struct EncodePagesItem {
  PageRun from;
  PageRun to;
  int heads = 1;
  // In the lossless encoding the kernel adds how many halves, K or V of a page of a head, did not
  // fit. May be null; read behind the stream's work, on a GPU in pinned host memory.
  int32_t* unfit = nullptr;
};

// K and V of `heads` KV heads [to.count, heads, head_dim], tokens kv_stride elements apart, to be
// encoded into their pages.
struct StoreKvItem {
  const void* k = nullptr;
  const void* v = nullptr;
  int64_t kv_stride = 0;
  int heads = 1;
  PageRun to;
};

// New q, k and v of the heads of a group: q and k are rotated in place, k and v encoded into pages.
struct RopeStoreItem {
  void* q = nullptr;  // [kv.to.count, query_heads, head_dim], tokens q_stride elements apart
  int64_t q_stride = 0;
  int query_heads = 0;
  RopeTable table;  // of the item's tokens
  StoreKvItem kv;   // its k is written to
};
// What rotates of an item.
inline HeadRows QueryRows(const PageFormat& format, const RopeStoreItem& item) {
  return {.x = item.q,
          .tokens = item.kv.to.count,
          .heads = item.query_heads,
          .head_dim = format.head_dim,
          .stride = item.q_stride};
}
inline HeadRows KeyRows(const PageFormat& format, const RopeStoreItem& item) {
  return {.x = const_cast<void*>(item.kv.k),
          .tokens = item.kv.to.count,
          .heads = item.kv.heads,
          .head_dim = format.head_dim,
          .stride = item.kv.kv_stride};
}

// Keys of `heads` KV heads, in pages in the dtype, are rotated on by the angles of their slots into
// other memory: pages and heads lie there as they do in `from`.
struct TurnKeysItem {
  PageRun from;             // its v is not read
  std::byte* to = nullptr;  // the first page of the first head
  int heads = 1;
  RopeTable table;  // a row for each of from.count slots
};

class CacheKernels {
 public:
  virtual ~CacheKernels() = default;
  virtual void StoreKv(Stream& stream, const PageFormat& format,
                       std::span<const StoreKvItem> items) = 0;
  // Rope and StoreKv, which an implementation may do at once.
  virtual void RopeStoreKv(Stream& stream, const PageFormat& format,
                           std::span<const RopeStoreItem> items) = 0;
  // Only where KernelSizes::SupportsAttention says so of the format: else an error of the stream,
  // kUnsupported, and nothing is written.
  virtual void EncodePages(Stream& stream, const PageFormat& format,
                           std::span<const EncodePagesItem> items) = 0;
  virtual void TurnKeys(Stream& stream, const PageFormat& format, const TurnKeysItem& item) = 0;
};

}  // namespace headway

#endif  // HEADWAY_KERNELS_CACHE_H_
