// Attention to listed blocks: what its kernels take. Each kind of page has a file of its own.
#ifndef HEADWAY_KERNELS_CUDA_SELECTION_ATTEND_H_
#define HEADWAY_KERNELS_CUDA_SELECTION_ATTEND_H_

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "base/types.h"
#include "kernels/cuda/divisor.h"
#include "kernels/cuda/selection_keys.h"

namespace headway::cuda {

// What the rows of pages are.
enum class Rows : uint8_t { kBF16, kF16, kF32, kInt8, kFp8E4M3, kInt4, kLossless };
inline Rows RowsOf(const PageFormat& format) {
  switch (format.encoding) {
    case Encoding::kInt8:
      return Rows::kInt8;
    case Encoding::kFp8E4M3:
      return Rows::kFp8E4M3;
    case Encoding::kInt4:
      return Rows::kInt4;
    case Encoding::kLossless:
      return Rows::kLossless;
    case Encoding::kNone:
      break;
  }
  return format.dtype == DType::kBF16  ? Rows::kBF16
         : format.dtype == DType::kF16 ? Rows::kF16
                                       : Rows::kF32;
}

// Calls `launch` with a value whose kRows are `rows`, known to the compiler.
template <Rows kRowsOfTag>
struct RowsTag {
  static constexpr Rows kRows = kRowsOfTag;
};
template <typename Launch>
cudaError_t ForRows(Rows rows, const Launch& launch) {
  switch (rows) {
    case Rows::kBF16:
      return launch(RowsTag<Rows::kBF16>{});
    case Rows::kF16:
      return launch(RowsTag<Rows::kF16>{});
    case Rows::kF32:
      return launch(RowsTag<Rows::kF32>{});
    case Rows::kInt8:
      return launch(RowsTag<Rows::kInt8>{});
    case Rows::kFp8E4M3:
      return launch(RowsTag<Rows::kFp8E4M3>{});
    case Rows::kInt4:
      return launch(RowsTag<Rows::kInt4>{});
    case Rows::kLossless:
      return launch(RowsTag<Rows::kLossless>{});
  }
  return cudaErrorInvalidValue;
}

struct AttendWork {
  const void* q;
  const int32_t* listed;
  const int32_t* counts;
  float* o;
  float* lse;
  int64_t capacity;
  int64_t o_part_stride;
  int64_t lse_part_stride;
  int64_t page_stride;
  int64_t head_stride;
  int64_t v_offset;
  int64_t params_offset;
  int64_t params_page_stride;
  int64_t params_head_stride;
  float q_scale;  // of logits in powers of two
  int32_t q_dtype;
  int32_t head_dim;
  int32_t heads;
  int32_t group;
  int32_t parts;
  int32_t split_blocks;  // listed blocks of a part
  int32_t block_slots;
  int32_t page_slots;
  Divisor page_blocks;     // blocks of a page
  Divisor block_strips;    // 8 slots each
  int32_t params_aligned;  // 1: rows of parameters lie on 16 bytes
  // Where blocks are moved: see BlockMove. Null: they are not.
  const float* inv_freq;
  int32_t rotary_dim;
  MovedTo to;
  const PlacedSegment* segments;  // [head groups, segments of a group]
  // DecodeRest; null: states stay apart.
  void* result;
  const std::byte* open_pages;
  uint32_t* arrived;   // [heads, blocks of threads that share a part]: 0 before and after
  int32_t open_lines;  // 16 bytes between rows of pages
  int32_t open_keys;
  int32_t attended;  // 1: states of listed blocks are there; with a rest
  // Without lines: blocks are read where they lie.
  BlockCache cache;
  int64_t line_bytes;
  int64_t block_bytes;  // of K, and of V
  // [heads, capacity]: lines of listed blocks, which an earlier launch has brought, or -1. Null:
  // who attends brings them.
  int32_t* line_of;
  BlockTable table;
};

// Listed blocks of a part that may go through a cache.
inline constexpr int kPartLinesMax = 128;

// Brings what is listed of host memory to lines, and says in line_of where it is.
cudaError_t BringBlocks(cudaStream_t stream, Rows rows, const AttendWork& work);

// On a grid that is the device's size, whatever the lists' lengths are.
template <Rows kRows>
cudaError_t LaunchAttend(cudaStream_t stream, const AttendWork& work);

}  // namespace headway::cuda

#endif  // HEADWAY_KERNELS_CUDA_SELECTION_ATTEND_H_
