// SlabLayout: a kind of slab as a value. What a slab of the kind holds, where its pages lie, which
// tiers it may take and how it is read follow from the value, so that a new kind (summaries of
// keys, say) is an entry of LayoutsOf and the kernels that write and read it.
#ifndef HEADWAY_KV_PAGES_SLAB_LAYOUT_H_
#define HEADWAY_KV_PAGES_SLAB_LAYOUT_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/types.h"
#include "kv/pages/format.h"

namespace headway::kv {

enum class SlabKind : uint8_t {
  kKeysValues,  // K and V of the heads of a group; the parameters of encoded pages
  kX,           // the normed input of a layer's K/V projection, from which K and V are recomputed
};
inline constexpr int kSlabKinds = 2;
inline constexpr std::array<SlabKind, kSlabKinds> kAllSlabKinds = {SlabKind::kKeysValues,
                                                                   SlabKind::kX};

template <typename T>
using PerSlabKind = std::array<T, kSlabKinds>;
template <typename T>
T& Of(PerSlabKind<T>& values, SlabKind kind) {
  return values[static_cast<size_t>(kind)];
}
template <typename T>
const T& Of(const PerSlabKind<T>& values, SlabKind kind) {
  return values[static_cast<size_t>(kind)];
}

// Rows of pages: of every head of the slab's group one, or one for all of them.
struct Plane {
  int64_t offset = 0;       // of the first row in a slab
  int64_t row_stride = 0;   // in a slab
  int64_t page_stride = 0;  // in a row; 0: the plane holds nothing
  bool by_head = true;

  int Rows(int heads) const { return by_head ? heads : 1; }
};

struct SlabLayout {
  bool kept = false;      // there are slabs of the kind in this cache
  const char* name = "";  // in the names of buffers
  const char* what = "";  // in messages, behind the bytes of a slab
  int64_t slab_bytes = 0;
  std::array<Plane, 3> planes;  // with rows of open pages first
  // Bytes of a closed page without padding: of each head, and beside of all heads.
  int64_t closed_head_bytes = 0;
  int64_t closed_shared_bytes = 0;
  // Pages of new tokens, before they close: rows of a layer, bytes of a page and of a slot.
  int64_t open_rows = 0;
  int64_t open_stride = 0;
  int64_t slot_bytes = 0;
  bool encoded = false;      // pages are encoded as they close
  std::optional<Tier> home;  // all slabs lie there for good; none: the placement says where
  bool gathers = false;      // neighbouring slabs are read together, one behind the other

  int64_t ClosedBytes(int heads, int64_t pages) const {
    return pages * (heads * closed_head_bytes + closed_shared_bytes);
  }
};

PerSlabKind<SlabLayout> LayoutsOf(const CacheFormat& format);

}  // namespace headway::kv

#endif  // HEADWAY_KV_PAGES_SLAB_LAYOUT_H_
