#include "kv/pages/slab_layout.h"

namespace headway::kv {
namespace {

SlabLayout OfKeysValues(const CacheFormat& format) {
  SlabLayout layout;
  layout.kept = true;
  layout.name = "KV";
  layout.slab_bytes = format.slab_bytes();
  layout.planes[0] = {format.KOffset(0, 0), format.head_stride(), format.closed_stride(), true};
  layout.planes[1] = {format.VOffset(0, 0), format.head_stride(), format.closed_stride(), true};
  layout.planes[2] = {format.ParamOffset(0), 0, format.param_stride(), false};
  layout.closed_head_bytes =
      2 * static_cast<int64_t>(format.page.closed_bytes()) + format.param_bytes();
  layout.open_rows = 2 * int64_t{format.kv_heads};
  layout.open_stride = format.page_stride();
  layout.slot_bytes = static_cast<int64_t>(DTypeBytes(format.page.dtype)) * format.page.head_dim;
  layout.encoded = format.encoded();
  return layout;
}

SlabLayout OfX(const CacheFormat& format) {
  SlabLayout layout;
  layout.kept = format.keeps_x();
  layout.name = "X";
  layout.what = ", of what keys and values are recomputed from,";
  layout.slab_bytes = format.x_slab_bytes();
  layout.planes[0] = {0, 0, format.x_page_bytes(), false};
  layout.closed_shared_bytes = format.x_page_bytes();
  layout.open_rows = 1;
  layout.open_stride = format.x_page_bytes();
  layout.slot_bytes = format.XBytes(1);
  layout.home = Tier::kHost;
  layout.gathers = true;
  return layout;
}

}  // namespace

PerSlabKind<SlabLayout> LayoutsOf(const CacheFormat& format) {
  PerSlabKind<SlabLayout> layouts;
  Of(layouts, SlabKind::kKeysValues) = OfKeysValues(format);
  Of(layouts, SlabKind::kX) = OfX(format);
  return layouts;
}

}  // namespace headway::kv
