// StreamingHeads: the device memory that the closed pages of streaming heads live in, of a constant
// size. Each sequence, layer and head has room for the sink's pages and for two areas of recent
// pages. A step that closes pages fills the area that is not in use, so that the pages of before
// are there when it is given up, and so that recent pages always lie in a row: a run that wrapped
// around would make split boundaries depend on more than the length.
#ifndef HEADWAY_KV_STEP_STREAMING_HEADS_H_
#define HEADWAY_KV_STEP_STREAMING_HEADS_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "device/device.h"
#include "headway/status.h"
#include "kv/pages/format.h"
#include "kv/pages/streaming_pages.h"

namespace headway::kv {

// What Create takes.
int64_t StreamingBytes(const CacheFormat& format, int max_sequences);

class StreamingHeads {
 public:
  // `format` outlives it.
  static Result<std::unique_ptr<StreamingHeads>> Create(const CacheFormat& format,
                                                        int max_sequences, Device* device,
                                                        Budget* budget);

  // The first page of the sink, or of a recent area (0 or 1), of the first row of a layer. Rows are
  // as in mover.h: those of K of the layer's streaming heads, then those of V.
  std::byte* Sink(int place, int layer) const { return Row(place, layer); }
  std::byte* Recent(int place, int layer, int area) const {
    return Row(place, layer) + (pages_.sink() + area * pages_.recent()) * format_.page_stride();
  }
  int64_t row_stride() const { return pages_.of_a_head() * format_.page_stride(); }

  // All of a sequence place's memory.
  std::byte* Place(int place) const { return Row(place, 0); }
  int64_t place_bytes() const { return rows_before_.back() * row_stride(); }

 private:
  explicit StreamingHeads(const CacheFormat& format);
  std::byte* Row(int place, int layer) const {
    return memory_->data() +
           (place * rows_before_.back() + rows_before_[static_cast<size_t>(layer)]) * row_stride();
  }

  const CacheFormat& format_;
  const StreamingPages pages_;
  std::vector<int64_t> rows_before_;  // [layers + 1] rows of the layers before
  std::unique_ptr<Buffer> memory_;    // null where no head streams
};

}  // namespace headway::kv

#endif  // HEADWAY_KV_STEP_STREAMING_HEADS_H_
