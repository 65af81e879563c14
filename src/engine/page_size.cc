#include "engine/page_size.h"

#include <variant>

#include "kv/pages/format.h"

namespace headway {

int LosslessPageSlots(int head_dim) {
  constexpr int kMost = 16 * kDefaultPageSlots;  // enough for heads of 8 elements
  kv::CacheFormat format;
  format.page = {DType::kBF16, kDefaultPageSlots, head_dim, Encoding::kLossless};
  while (format.page.page_slots < kMost && 6 * format.closed_stride() > 5 * format.page_stride()) {
    format.page.page_slots *= 2;
  }
  return format.page.page_slots;
}

void FitPages(const ModelShape& shape, Settings* settings) {
  const Encoding* const codes = std::get_if<Encoding>(&settings->encoding);
  if (codes == nullptr || *codes != Encoding::kLossless) return;
  if (settings->cut.page_fixed || settings->self_extend.on()) return;
  settings->cut.page_slots = LosslessPageSlots(shape.head_dim);
  kv::SelectionPolicy& selection = settings->selection;
  if (selection.searches_pages()) selection.search_slots = settings->cut.page_slots;
}

}  // namespace headway
