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
#include "kernels/cuda/selection_attend_parts.h"
#include "kernels/cuda/selection_attend_rows.h"
#include "kernels/cuda/tensor_core.h"

namespace headway::cuda {

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
  MovedTo to;
  // Where listed blocks of host memory have copies: BringListed writes which line each has.
  BlockCache cache;
  int32_t* line_of;  // [heads, blocks], of listed blocks; negative: none. Null: no cache
  int64_t blocks;    // of a head
  int64_t line_bytes;
  int64_t block_bytes;  // of K, and of V
};

// 8 neighbouring slots of a listed block; null K: there are none.
struct ListedStrip {
  const std::byte* k;
  const std::byte* params;  // of the page
  int32_t slot;             // of its page
  int32_t shift;            // the positions by which the block is rotated on
  int32_t v_lines;          // 16 bytes from K to V

  __device__ const std::byte* V() const { return k + int64_t{v_lines} * 16; }
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

// A block of a head: where it lies, its segment, and its number in that.
struct ListedBlock {
  BlockAt at;
  PlacedSegment segment;
  int32_t number;
};
template <Rows kRows>
__device__ ListedBlock FindListedBlock(const ListedWork& work, int head, int listed) {
  const int segment = listed / work.segment_blocks;
  const int block = listed - segment * work.segment_blocks;
  const PlacedSegment place =
      work.segments[head / work.group_heads * work.group_segments + segment];
  const int of_page = work.page_slots / work.block_slots;
  const int page = block / of_page;
  const int slot = (block - page * of_page) * work.block_slots;
  const int in_group = head % work.group_heads;
  const std::byte* k = place.slab + page * work.page_stride + in_group * work.head_stride +
                       int64_t{slot} * (work.head_dim / 8) * BytesOfEight(kRows);
  const std::byte* params = place.slab + work.params_offset + page * work.params_page_stride +
                            in_group * work.params_head_stride;
  return {{k, params, slot}, place, block};
}

// The block that has strip `index` of a list; negative: there is none.
__device__ inline int ListedAt(const ListedWork& work, const RowList& list, int index) {
  const int at = index / (work.block_slots / 8);
  return at < list.count ? __ldcg(list.blocks + at) : -1;
}

// Strip `index` of a list, which is of this block.
template <Rows kRows>
__device__ ListedStrip FindListedStrip(const ListedWork& work, const RowList& list, int head,
                                       int index, int listed) {
  if (listed < 0) return {nullptr, nullptr, 0, 0, 0};
  const int of_block = work.block_slots / 8;
  const int at = index / of_block;
  const ListedBlock block = FindListedBlock<kRows>(work, head, listed);
  const int slot = (index - at * of_block) * 8;
  const int64_t in_block = int64_t{slot} * (work.head_dim / 8) * BytesOfEight(kRows);
  ListedStrip strip = {block.at.k + in_block, block.at.params, block.at.slot + slot, 0,
                       static_cast<int32_t>(work.v_offset / 16)};
  if (work.inv_freq != nullptr) {
    strip.shift =
        MoveShift(work.to, list.count - at, block.segment.position, block.number, work.block_slots);
  }
  const int line =
      work.line_of == nullptr ? -1 : __ldcg(work.line_of + head * work.blocks + listed);
  if (line >= 0) {
    const std::byte* copy = work.cache.lines + line * work.line_bytes;
    strip.k = copy + in_block;
    strip.params = copy + 2 * work.block_bytes;
    strip.v_lines = static_cast<int32_t>(work.block_bytes / 16);
  }
  return strip;
}

template <Rows kRows>
__device__ ListedStrip FindListedStrip(const ListedWork& work, const RowList& list, int head,
                                       int index) {
  return FindListedStrip<kRows>(work, list, head, index, ListedAt(work, list, index));
}

// Rotates two neighbouring channels of a key, and those that turn with them, by their two angles.
template <DType kType>
__device__ inline void RotatePairs(const float2* angles, uint32_t& low, uint32_t& high) {
  const float2 x = UnpackPair<kType>(low);
  const float2 y = UnpackPair<kType>(high);
  const float2 first = angles[0];
  const float2 second = angles[1];
  low = PackPair<kType>(x.x * first.x - y.x * first.y, x.y * second.x - y.y * second.y);
  high = PackPair<kType>(y.x * first.x + x.x * first.y, y.y * second.x + x.y * second.y);
}

// Brings what the lists have of host memory to lines, each block once, and says in line_of where it
// is. Behind it lines are only read until another call.
cudaError_t BringListed(cudaStream_t stream, Rows rows, const ListedWork& work);

// On tensor cores, in so much shared memory: queries and pages of one dtype of 16 bits, kType, or
// encoded pages.
template <DType kType, Rows kRows>
cudaError_t LaunchListedTiles(cudaStream_t stream, const ListedWork& work);
template <Rows kRows>
int64_t ListedTileBytes(int head_dim);

// On tensor cores of compute capability 9.0: queries and plain pages of kType, if it takes them.
// `order` has room for a number of each list.
inline constexpr int64_t kWideRowsMost = int64_t{1} << 17;
bool TakesWideTiles(const ListedWork& work);
template <DType kType>
inline constexpr Rows kPlainRowsOf = kType == DType::kBF16 ? Rows::kBF16 : Rows::kF16;
template <DType kType>
cudaError_t LaunchWideTiles(cudaStream_t stream, const ListedWork& work, int32_t* order);

// In f32: queries and pages of any dtypes.
cudaError_t LaunchListedRows(cudaStream_t stream, Rows rows, const ListedWork& work);

// The attention of an item with `split` 0.
cudaError_t AttendRows(cudaStream_t stream, const SelectionShape& shape,
                       const AttendBlocksItem& item);

}  // namespace headway::cuda

#endif  // HEADWAY_KERNELS_CUDA_SELECTION_PREFILL_H_
