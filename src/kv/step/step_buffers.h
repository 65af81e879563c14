// StepBuffers: the device memory that new K and V are written to: the open page of every head, and
// the append buffer, whose two halves take turns layer by layer. Where closed pages are encoded,
// they are so into two more such halves, on their way to their slabs.
#ifndef HEADWAY_KV_STEP_STEP_BUFFERS_H_
#define HEADWAY_KV_STEP_STEP_BUFFERS_H_

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "device/device.h"
#include "device/lanes.h"
#include "headway/status.h"
#include "kv/pages/format.h"
#include "kv/tiers/mover.h"

namespace headway::kv {

// Pages of one head that a step's entries take in the append buffer, at most: an entry of t tokens
// that starts r slots into a page takes ceil((r + t) / slots) <= floor(t / slots) + 2.
int64_t AppendPages(const CacheFormat& format, int64_t max_step_tokens, int max_sequences);
int64_t OpenPageBytes(const CacheFormat& format, int max_sequences);
int64_t AppendBufferBytes(const CacheFormat& format, int64_t max_step_tokens, int max_sequences);
// 0 without an encoding.
int64_t EncodeBufferBytes(const CacheFormat& format, int64_t max_step_tokens, int max_sequences);
// 0 where no X is kept.
int64_t OpenXBytes(const CacheFormat& format, int max_sequences);
int64_t AppendXBytes(const CacheFormat& format, int64_t max_step_tokens, int max_sequences);

class StepBuffers {
 public:
  static Result<std::unique_ptr<StepBuffers>> Create(const CacheFormat& format,
                                                     int64_t max_step_tokens, int max_sequences,
                                                     Device* device, Budget* budget);

  // Row `row` (see mover.h) of a layer's open pages of a sequence place.
  std::byte* Open(int place, int layer, int row) const {
    return open_->data() +
           ((int64_t{place} * format_.layers + layer) * rows() + row) * format_.page_stride();
  }
  int64_t open_row_stride() const { return format_.page_stride(); }
  // All of a sequence place's open pages.
  int64_t open_place_bytes() const { return format_.layers * open_layer_bytes(); }
  int64_t open_layer_bytes() const { return rows() * format_.page_stride(); }

  std::byte* Append(int layer, int row, int64_t page) const {
    return append_->data() + ((layer % 2) * rows() + row) * append_row_stride() +
           page * format_.page_stride();
  }
  int64_t append_row_stride() const { return append_pages_ * format_.page_stride(); }
  int64_t append_pages() const { return append_pages_; }

  // The same of encoded pages; their parameters are those of a head group, page by page.
  std::byte* Encoded(int layer, int row, int64_t page) const {
    return encoded_->data() + (layer % 2) * encoded_half_bytes() + row * encoded_row_stride() +
           page * format_.closed_stride();
  }
  std::byte* EncodedParams(int layer, int group, int64_t page) const {
    return encoded_->data() + (layer % 2) * encoded_half_bytes() + rows() * encoded_row_stride() +
           (group * append_pages_ + page) * format_.param_stride();
  }
  int64_t encoded_row_stride() const { return append_pages_ * format_.closed_stride(); }
  int64_t encoded_half_bytes() const {
    return append_pages_ *
           (rows() * format_.closed_stride() + format_.max_head_groups() * format_.param_stride());
  }
  // X of a layer's open page of a sequence place, and of a page of the append buffer.
  std::byte* OpenX(int place, int layer) const {
    return open_x_->data() + (int64_t{place} * format_.layers + layer) * format_.x_page_bytes();
  }
  int64_t open_x_place_bytes() const { return format_.layers * format_.x_page_bytes(); }
  std::byte* AppendX(int layer, int64_t page) const {
    return append_x_->data() + ((layer % 2) * append_pages_ + page) * format_.x_page_bytes();
  }
  int64_t append_x_half_bytes() const { return append_pages_ * format_.x_page_bytes(); }

  int64_t rows() const { return 2 * int64_t{format_.kv_heads}; }

  // When the copies out of, and into, the memory are done, of X and encoded pages, too.
  Fence& open_fence(int place, int layer) {
    return open_fences_[static_cast<size_t>(place * format_.layers + layer)];
  }
  Fence& append_fence(int layer) { return append_fences_[static_cast<size_t>(layer % 2)]; }

 private:
  StepBuffers(const CacheFormat& format, int64_t append_pages)
      : format_(format), append_pages_(append_pages) {}

  const CacheFormat& format_;
  const int64_t append_pages_;
  std::unique_ptr<Buffer> open_;
  std::unique_ptr<Buffer> append_;
  std::unique_ptr<Buffer> encoded_;  // null without an encoding
  std::unique_ptr<Buffer> open_x_;   // null where no X is kept
  std::unique_ptr<Buffer> append_x_;
  std::vector<Fence> open_fences_;  // [max_sequences * layers]
  std::array<Fence, 2> append_fences_;
};

}  // namespace headway::kv

#endif  // HEADWAY_KV_STEP_STEP_BUFFERS_H_
