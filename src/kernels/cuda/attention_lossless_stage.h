// Chunks of lossless pages (kernels/lossless_codec.h) for the kernel behind attention_lossless.h: a
// warp's copies of codes and parameters into shared memory, and the numbers of what was copied.
#ifndef HEADWAY_KERNELS_CUDA_ATTENTION_LOSSLESS_STAGE_H_
#define HEADWAY_KERNELS_CUDA_ATTENTION_LOSSLESS_STAGE_H_

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/attention_decode_block.h"
#include "kernels/cuda/attention_decode_kernel.h"
#include "kernels/cuda/attention_decode_steps.h"
#include "kernels/cuda/attention_lossless.h"
#include "kernels/cuda/lossless_unpack.h"
#include "kernels/cuda/tensor_core.h"
#include "kernels/cuda/warp.h"
#include "kernels/lossless_math.h"

namespace headway::cuda {

template <int kDim, int kTiles>
struct LosslessShape : MmaShape<DType::kBF16, kDim, kTiles> {
  using Plain = MmaShape<DType::kBF16, kDim, kTiles>;
  // A row of codes: low bytes, tops, and what spreads rows over the banks.
  static constexpr int kTopsAt = kDim;
  static constexpr int kRowUnits = kDim * 3 / 32;  // of 16 bytes, without the last
  static constexpr int kRowStride = kDim * 3 / 2 + 16;
  static constexpr int kRowsAtOnce = 24 / kRowUnits;  // that 24 lanes copy
  static constexpr int kParamUnits = kWarp;           // of the parameters of a half

  // A warp's.
  struct Half {
    std::byte rows[Plain::kChunk * kRowStride];
    std::byte params[kParamUnits * 16];
    uint8_t floors[Plain::kChunk];  // of a chunk that lies in several pages
  };
  struct Stage {
    Half k;
    Half v;
    uint32_t escapes[kLosslessEscapesMax];  // of K or V: row << 16 | dim << 8 | exponent
  };
};

// The codes and parameters of a head's K, or V.
struct LosslessHalf {
  const std::byte* codes;  // of the first page
  const std::byte* params;
  int param_bytes;
  int entries;  // of a list of escapes
};
__device__ __forceinline__ LosslessHalf HalfOf(const BlockKeys& keys, bool of_keys) {
  const auto slots = static_cast<int>(keys.batch.page_slots.divisor);
  const auto bytes = static_cast<int>(lossless::HalfParamBytes(slots, keys.head_dim));
  const std::byte* params = keys.item.params + keys.work.head * keys.item.params_head_stride;
  return {of_keys ? keys.k : keys.v, of_keys ? params : params + bytes, bytes,
          static_cast<int>(lossless::EscapeEntries(slots, keys.head_dim))};
}

// Where a chunk begins. It is whole where its rows are rows of one page, of the compiled size, and
// all can be copied 16 bytes at a time.
struct ChunkPlace {
  int chunk;  // the first key
  int page;
  int row;
  bool whole;
};
__device__ __forceinline__ ChunkPlace PlaceOfKey(const BlockKeys& keys, int key) {
  const int slot = keys.item.first_slot + key;
  const int page = keys.batch.page_slots.Divide(slot);
  return {key, page, keys.batch.page_slots.Rest(slot, page), false};
}
template <typename Shape>
__device__ __forceinline__ ChunkPlace PlaceOfChunk(const BlockKeys& keys, const LosslessHalf& half,
                                                   int chunk) {
  ChunkPlace place = PlaceOfKey(keys, chunk);
  place.whole = keys.batch.aligned != 0 && keys.head_dim == Shape::kDims &&
                half.param_bytes <= Shape::kParamUnits * 16 &&
                place.row + Shape::kChunk <= static_cast<int>(keys.batch.page_slots.divisor);
  return place;
}

__device__ __forceinline__ const std::byte* ParamsOf(const BlockKeys& keys,
                                                     const LosslessHalf& half, int page) {
  return half.params + page * keys.item.params_page_stride;
}

// Rows that lie in several pages, or are shorter than the compiled size, word by word; rows behind
// the last key are copies of it.
template <typename Shape>
__device__ __noinline__ void CopyScattered(const BlockKeys& keys, const LosslessHalf& half,
                                           int chunk, int lane, typename Shape::Half& to) {
  const int low_words = keys.head_dim / 4;
  const int words = low_words + keys.head_dim / 8;
#pragma unroll 1
  for (int row = 0; row < Shape::kChunk; ++row) {
    const ChunkPlace place = PlaceOfKey(keys, min(chunk + row, keys.some.end - 1));
    const std::byte* from = half.codes + place.page * keys.item.page_stride +
                            static_cast<int64_t>(place.row) * keys.slot_bytes;
    std::byte* to_row = to.rows + row * Shape::kRowStride;
    for (int word = lane; word < words; word += kWarp) {
      const int at = word < low_words ? word * 4 : Shape::kTopsAt + (word - low_words) * 4;
      CopyWordAsync(to_row + at, from + word * 4, true);
    }
    if (lane == 0) {
      to.floors[row] = static_cast<uint8_t>(
          ParamsOf(keys, half, place.page)[lossless::FloorsAt(half.entries) + place.row]);
    }
  }
}

// Starts the copies of a chunk.
template <typename Shape>
__device__ __forceinline__ void CopyChunk(const BlockKeys& keys, const LosslessHalf& half,
                                          const ChunkPlace& place, int lane,
                                          typename Shape::Half& to) {
  if (!place.whole) {
    CopyScattered<Shape>(keys, half, place.chunk, lane, to);
    return;
  }
  const std::byte* params = ParamsOf(keys, half, place.page) + lane * 16;
  if (lane * 16 < half.param_bytes) CopyAsync(to.params + lane * 16, params, true);
  if (lane >= 24) return;
  constexpr int kRowBytes = Shape::kRowUnits * 16;
  const std::byte* from =
      half.codes + place.page * keys.item.page_stride + place.row * kRowBytes + lane * 16;
  std::byte* rows =
      to.rows + lane / Shape::kRowUnits * Shape::kRowStride + lane % Shape::kRowUnits * 16;
#pragma unroll
  for (int row = 0; row < Shape::kChunk; row += Shape::kRowsAtOnce) {
    CopyAsync(rows + row * Shape::kRowStride, from + row * kRowBytes, true);
  }
}

// Rows of a page: from `first` on, `count` of them, which are rows of a chunk from `at` on.
struct PageRows {
  const std::byte* params;  // of the page
  int first;
  int count;
  int at;
};
// Adds the escapes of the rows to the `known` ones of their chunk. All lanes return the new count.
template <typename Shape>
__device__ __forceinline__ int FindEscapes(const LosslessHalf& half, int head_dim,
                                           const PageRows& rows, int lane, int known,
                                           typename Shape::Stage& stage) {
  const auto* positions = reinterpret_cast<const uint16_t*>(rows.params);
  const auto* exponents =
      reinterpret_cast<const uint8_t*>(rows.params) + lossless::ExponentsAt(half.entries);
  if (positions[0] == lossless::kNoEscape) return known;
  const int begin = rows.first * head_dim;
  const int end = begin + rows.count * head_dim;
#pragma unroll 1
  for (int entry = lane; entry - lane < half.entries; entry += kWarp) {
    const int position = entry < half.entries ? positions[entry] : lossless::kNoEscape;
    const bool here = position >= begin && position < end;
    const uint32_t found = __ballot_sync(kAllLanes, here);
    if (here) {
      const int row = (position - begin) / head_dim;
      const int dim = position - begin - row * head_dim;
      stage.escapes[known + __popc(found & ((1u << lane) - 1))] =
          static_cast<uint32_t>((rows.at + row) << 16 | dim << 8 | exponents[entry]);
    }
    known += __popc(found);
    // Positions ascend, and those of entries without an escape are behind all others.
    if (__any_sync(kAllLanes, position >= end)) break;
  }
  return known;
}

// What a lane needs to know of the chunk that was copied.
struct ChunkParams {
  int floors_at;  // bytes from a Half to the floors of the chunk's rows
  int escapes;    // how many there are in the stage
};
// All copies of the chunk have arrived. Ends with a barrier of the warp.
template <typename Shape>
__device__ __forceinline__ ChunkParams ParamsOfChunk(const BlockKeys& keys,
                                                     const LosslessHalf& half, ChunkPlace place,
                                                     int lane, const typename Shape::Half& copied,
                                                     typename Shape::Stage& stage) {
  if (place.whole) {
    const int count = FindEscapes<Shape>(
        half, keys.head_dim, {copied.params, place.row, Shape::kChunk, 0}, lane, 0, stage);
    if (count != 0) __syncwarp();
    return {static_cast<int>(offsetof(typename Shape::Half, params) +
                             lossless::FloorsAt(half.entries)) +
                place.row,
            count};
  }
  const int rows = min(Shape::kChunk, keys.some.end - place.chunk);
  int count = 0;
#pragma unroll 1
  for (int row = 0; row < rows;) {
    const int here = min(static_cast<int>(keys.batch.page_slots.divisor) - place.row, rows - row);
    count = FindEscapes<Shape>(half, keys.head_dim,
                               {ParamsOf(keys, half, place.page), place.row, here, row}, lane,
                               count, stage);
    row += here;
    place.page += 1;
    place.row = 0;
  }
  __syncwarp();
  return {static_cast<int>(offsetof(typename Shape::Half, floors)), count};
}

// What a row's numbers are made of.
struct StagedRow {
  const std::byte* codes;
  uint32_t floors;  // as InFourBytes has them
  int row;          // of the chunk
};
template <typename Shape>
__device__ __forceinline__ StagedRow RowOf(const typename Shape::Half& copied,
                                           const ChunkParams& params, int row) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(&copied);
  return {copied.rows + row * Shape::kRowStride, InFourBytes(bytes[params.floors_at + row]), row};
}

// Numbers [dim, dim + 8) of a row.
template <typename Shape>
__device__ __forceinline__ uint4 NumbersOf(const StagedRow& row, int dim) {
  return Unpack({*reinterpret_cast<const uint2*>(row.codes + dim),
                 *reinterpret_cast<const uint32_t*>(row.codes + Shape::kTopsAt + dim / 2)},
                row.floors);
}

// The escapes of a chunk's rows. Most chunks that have any have one, which registers hold.
struct Escapes {
  const uint32_t* all;  // Stage::escapes
  uint32_t first;
  int count;

  // Gives the numbers [dim, dim + 8) of a row their exponents.
  __device__ __forceinline__ void Apply(int row, int dim, uint4& numbers) const {
    const auto piece = static_cast<uint32_t>(row << 5 | dim >> 3);
    if (first >> 11 == piece) SetExponent(numbers, first);
#pragma unroll 1
    for (int i = 1; i < count; ++i) {
      if (all[i] >> 11 == piece) SetExponent(numbers, all[i]);
    }
  }

 private:
  __device__ static void SetExponent(uint4& numbers, uint32_t escape) {
    cuda::SetExponent(numbers, static_cast<int>(escape >> 8) % 8, escape & 0xFFu);
  }
};

}  // namespace headway::cuda

#endif  // HEADWAY_KERNELS_CUDA_ATTENTION_LOSSLESS_STAGE_H_
