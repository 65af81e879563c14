// StepBuffers: the device memory that new tokens are written to. Of each kind of slab there are the
// open pages of every sequence, and the append buffer, whose two halves take turns layer by layer.
// Where closed pages are encoded, they are so into two more such halves, on their way to their
// slabs.
#ifndef HEADWAY_KV_STEP_STEP_BUFFERS_H_
#define HEADWAY_KV_STEP_STEP_BUFFERS_H_

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "device/device.h"
#include "device/lanes.h"
#include "headway/status.h"
#include "kv/pages/slab_layout.h"

namespace headway::kv {

// What the buffers are made for.
struct StepSizes {
  int64_t max_step_tokens = 0;
  int max_sequences = 0;
};

// Bytes that Create takes.
struct StepBufferBytes {
  int64_t open_pages = 0;
  int64_t append_buffer = 0;  // with that of encoded pages
};
StepBufferBytes BytesOf(const CacheFormat& format, const StepSizes& sizes);

// The pages of one kind of slab that are not closed yet. A row is a run of pages, of one head's K
// or V say; SlabLayout has their number.
class OpenPages {
 public:
  OpenPages(const SlabLayout& layout, int layers, int64_t append_pages)
      : layout_(layout), layers_(layers), append_pages_(append_pages) {}
  Status Allocate(int max_sequences, Device* device, Budget* budget);

  // Row `row` of a layer's open pages of a sequence place.
  std::byte* Open(int place, int layer, int64_t row) const {
    return open_->data() +
           ((int64_t{place} * layers_ + layer) * layout_.open_rows + row) * layout_.open_stride;
  }
  int64_t open_row_stride() const { return layout_.open_stride; }
  // All of a sequence place's open pages.
  int64_t open_place_bytes() const { return layers_ * layout_.open_rows * layout_.open_stride; }

  std::byte* Append(int layer, int64_t row, int64_t page) const {
    return append_->data() + ((layer % 2) * layout_.open_rows + row) * append_row_stride() +
           page * layout_.open_stride;
  }
  int64_t append_row_stride() const { return append_pages_ * layout_.open_stride; }
  int64_t append_half_bytes() const { return layout_.open_rows * append_row_stride(); }

  const SlabLayout& layout() const { return layout_; }

 private:
  const SlabLayout& layout_;
  const int layers_;
  const int64_t append_pages_;
  std::unique_ptr<Buffer> open_;
  std::unique_ptr<Buffer> append_;
};

class StepBuffers {
 public:
  // `format` and `layouts` outlive the buffers.
  static Result<std::unique_ptr<StepBuffers>> Create(const CacheFormat& format,
                                                     const PerSlabKind<SlabLayout>& layouts,
                                                     const StepSizes& sizes, Device* device,
                                                     Budget* budget);

  const OpenPages& of(SlabKind kind) const { return *Of(pages_, kind); }
  int64_t append_pages() const { return append_pages_; }

  // The rows of K and V of encoded pages; their parameters are those of a head group, page by page.
  std::byte* Encoded(int layer, int row, int64_t page) const {
    return encoded_->data() + (layer % 2) * encoded_half_bytes() + row * encoded_row_stride() +
           page * format_.closed_stride();
  }
  std::byte* EncodedParams(int layer, int group, int64_t page) const {
    return encoded_->data() + (layer % 2) * encoded_half_bytes() +
           int64_t{2} * format_.kv_heads * encoded_row_stride() +
           (group * append_pages_ + page) * format_.param_stride();
  }
  int64_t encoded_row_stride() const { return append_pages_ * format_.closed_stride(); }
  // EncodePagesItem::unfit of all pages that close; null but for lossless ones.
  int32_t* unfit() const {
    return unfit_ == nullptr ? nullptr : reinterpret_cast<int32_t*>(unfit_->data());
  }

  // When the copies out of, and into, the memory are done, of all kinds and encoded pages.
  Fence& open_fence(int place, int layer) {
    return open_fences_[static_cast<size_t>(layer * max_sequences_ + place)];
  }
  Fence& append_fence(int layer) { return append_fences_[static_cast<size_t>(layer % 2)]; }

 private:
  StepBuffers(const CacheFormat& format, const StepSizes& sizes, int64_t append_pages)
      : format_(format), max_sequences_(sizes.max_sequences), append_pages_(append_pages) {}
  int64_t encoded_half_bytes() const {
    return append_pages_ * (2 * format_.kv_heads * format_.closed_stride() +
                            format_.max_head_groups() * format_.param_stride());
  }

  const CacheFormat& format_;
  const int max_sequences_;
  const int64_t append_pages_;
  PerSlabKind<std::unique_ptr<OpenPages>> pages_;  // null where the cache has none of the kind
  std::unique_ptr<Buffer> encoded_;                // null without an encoding
  std::unique_ptr<Buffer> unfit_;                  // in host memory; null but for lossless pages
  std::vector<Fence> open_fences_;                 // [layers, max_sequences]
  std::array<Fence, 2> append_fences_;
};

}  // namespace headway::kv

#endif  // HEADWAY_KV_STEP_STEP_BUFFERS_H_
