// Attention of blocks of rows to what each lists, in prefill: what its kernels take, and where they
// find keys.
#ifndef HEADWAY_KERNELS_CUDA_SELECTION_PREFILL_H_
#define HEADWAY_KERNELS_CUDA_SELECTION_PREFILL_H_

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "base/types.h"
#include "kernels/cuda/attention_tile.h"
#include "kernels/cuda/selection.h"
#include "kernels/cuda/selection_attend.h"
#include "kernels/cuda/selection_attend_rows.h"

namespace headway::cuda {

// Where a segment of a head group lies, and the position of its first key.
struct PlacedSegment {
  const std::byte* slab;
  int64_t position;
};

struct ListedWork : TileRows {
  const int32_t* listed;
  const int32_t* counts;
  int64_t capacity;
  const PlacedSegment* segments;  // [head groups, group_segments]
  int64_t page_stride;
  int64_t head_stride;
  int64_t v_offset;
  int64_t params_offset;
  int64_t params_page_stride;
  int64_t params_head_stride;
  int32_t group_segments;
  int32_t group_heads;
  int32_t segment_blocks;
  int32_t heads;
  int32_t block_slots;
  int32_t page_slots;
  int32_t params_aligned;  // 1: rows of parameters lie on 16 bytes
  int32_t q_dtype;
  const float* inv_freq;  // null: blocks stay where they are
  int32_t rotary_dim;
  int64_t end;
};

// 8 neighbouring slots of a listed block; null K: there are none.
struct ListedStrip {
  const std::byte* k;
  const std::byte* params;  // of the page
  int32_t slot;             // of its page
  int32_t shift;            // the positions by which the block is rotated on
};

// What a block of rows lists for a head.
struct RowList {
  const int32_t* blocks;
  int count;

  __device__ static RowList Of(const ListedWork& work, int row_block, int head) {
    const int64_t list = int64_t{row_block} * work.heads + head;
    return {work.listed + list * work.capacity, __ldcg(work.counts + list)};
  }
  __device__ int Strips(const ListedWork& work) const { return count * (work.block_slots / 8); }
};

// Strip `index` of a list.
template <Rows kRows>
__device__ ListedStrip FindListedStrip(const ListedWork& work, const RowList& list, int head,
                                       int index) {
  const int of_block = work.block_slots / 8;
  const int at = index / of_block;
  if (at >= list.count) return {nullptr, nullptr, 0, 0};
  const int listed = __ldcg(list.blocks + at);
  const int segment = listed / work.segment_blocks;
  const int block = listed - segment * work.segment_blocks;
  const PlacedSegment place =
      work.segments[head / work.group_heads * work.group_segments + segment];
  const int of_page = work.page_slots / work.block_slots;
  const int page = block / of_page;
  const int slot = (block - page * of_page) * work.block_slots + (index - at * of_block) * 8;
  const int in_group = head % work.group_heads;
  const std::byte* k = place.slab + page * work.page_stride + in_group * work.head_stride +
                       int64_t{slot} * (work.head_dim / 8) * BytesOfEight(kRows);
  const std::byte* params = place.slab + work.params_offset + page * work.params_page_stride +
                            in_group * work.params_head_stride;
  const int64_t to = work.end - int64_t{list.count - at} * work.block_slots;
  const int64_t from = place.position + int64_t{block} * work.block_slots;
  return {k, params, slot, work.inv_freq == nullptr ? 0 : static_cast<int32_t>(to - from)};
}

// Brings the segments of `keys` into a table in device memory.
cudaError_t PlaceSegments(cudaStream_t stream, const BlockedKeys& keys, PlacedSegment* to);

// On tensor cores, in so much shared memory: queries and pages of one dtype of 16 bits, kType, or
// encoded pages.
template <DType kType, Rows kRows>
cudaError_t LaunchListedTiles(cudaStream_t stream, const ListedWork& work);
template <Rows kRows>
int64_t ListedTileBytes(int head_dim);

// In f32: queries and pages of any dtypes.
cudaError_t LaunchListedRows(cudaStream_t stream, Rows rows, const ListedWork& work);

// The attention of an item with `split` 0.
cudaError_t AttendRows(cudaStream_t stream, const SelectionShape& shape,
                       const AttendBlocksItem& item);

}  // namespace headway::cuda

#endif  // HEADWAY_KERNELS_CUDA_SELECTION_PREFILL_H_
