// Rows of one head's keys or values, brought to shared memory from the pages of a run.
#ifndef HEADWAY_KERNELS_CUDA_SLOT_ROWS_H_
#define HEADWAY_KERNELS_CUDA_SLOT_ROWS_H_

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/tensor_core.h"
#include "kernels/pages.h"

namespace headway::cuda {

struct SlotRows {
  const std::byte* at;  // the run's k or v, in the page of the first slot
  int64_t page_stride;
  int32_t first_slot, count;
  int32_t head_dim, page_slots;
};

// Those of `plane`, the run's k or v.
inline SlotRows RowsOf(const PageFormat& format, const PageRun& run, const std::byte* plane) {
  return {.at = plane + run.first_slot / format.page_slots * run.page_stride,
          .page_stride = run.page_stride,
          .first_slot = static_cast<int32_t>(run.first_slot % format.page_slots),
          .count = static_cast<int32_t>(run.count),
          .head_dim = format.head_dim,
          .page_slots = format.page_slots};
}

// Where row `row` lies, of elements of kElement bytes.
template <int kElement>
__device__ inline const std::byte* RowAt(const SlotRows& rows, int row) {
  const int slot = rows.first_slot + row;
  const int page = slot / rows.page_slots;
  return rows.at + page * rows.page_stride +
         int64_t{slot - page * rows.page_slots} * rows.head_dim * kElement;
}

// Starts the way of rows [first, first + kRows) into shared memory, kColumns of kElement bytes and
// `stride` bytes between them, by kThreads threads; zeros stand for what is behind the last row and
// the last element.
template <int kRows, int kColumns, int kElement, int kThreads>
__device__ inline void StartRows(const SlotRows& rows, int first, std::byte* to, int stride) {
  constexpr int kChunks = kColumns * kElement / 16;
  for (int i = static_cast<int>(threadIdx.x); i < kRows * kChunks; i += kThreads) {
    const int row = i / kChunks;
    const int column = i % kChunks * 16;
    const bool valid = first + row < rows.count && column < rows.head_dim * kElement;
    CopyAsync(to + row * stride + column,
              RowAt<kElement>(rows, valid ? first + row : 0) + (valid ? column : 0), valid);
  }
}

}  // namespace headway::cuda

#endif  // HEADWAY_KERNELS_CUDA_SLOT_ROWS_H_
