// Rows of lossless pages (lossless_codec.h) as the kernel behind attention_lossless.h needs them:
// codes as they lie, in registers, and the numbers that they stand for, which are those of a page
// that was never encoded.
#ifndef HEADWAY_KERNELS_CUDA_ATTENTION_LOSSLESS_LOAD_H_
#define HEADWAY_KERNELS_CUDA_ATTENTION_LOSSLESS_LOAD_H_

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/attention_decode_block.h"
#include "kernels/cuda/attention_decode_kernel.h"
#include "kernels/cuda/attention_decode_steps.h"
#include "kernels/cuda/lossless_unpack.h"
#include "kernels/cuda/memory.h"
#include "kernels/cuda/warp.h"
#include "kernels/lossless_math.h"

namespace headway::cuda {

// Lane 4 r + c has the codes of the numbers that it has of a plain page.
template <int kDim, int kTiles>
struct LosslessShape : MmaShape<DType::kBF16, kDim, kTiles> {
  using Plain = MmaShape<DType::kBF16, kDim, kTiles>;
  // Those of a chunk of keys, the floors of their rows, and what LoadEscapes gives.
  struct KeyCodes {
    LosslessPiece pieces[Plain::kKeyTiles][2][Plain::kKLoads];
    uint32_t floors[Plain::kKeyTiles][2];
    uint32_t escapes;
  };
  struct ValueCodes {
    LosslessPiece pieces[Plain::kKeyTiles][4][Plain::kVLoads];
    uint32_t floors[Plain::kKeyTiles][4];
    uint32_t escapes;
  };
};

// Two unused entries of a list.
inline constexpr uint32_t kNoEscapes = lossless::kNoEscape * 0x10001u;

// Where the codes and parameters of a page's K, or V, lie.
struct LosslessHalf {
  const std::byte* codes;  // of the head's first page
  const std::byte* params;
  int escapes;  // entries of a page's list
  bool wide;    // rows lie on 8 bytes
};

__device__ __forceinline__ LosslessHalf HalfOf(const BlockKeys& keys, bool of_keys) {
  const auto slots = static_cast<int>(keys.batch.page_slots.divisor);
  const auto escapes = static_cast<int>(lossless::EscapeEntries(slots, keys.head_dim));
  const std::byte* params = keys.item.params + keys.work.head * keys.item.params_head_stride;
  return {of_keys ? keys.k : keys.v,
          of_keys ? params : params + lossless::HalfParamBytes(slots, keys.head_dim), escapes,
          keys.head_dim % 16 == 0};
}

// A key of the block: its page, and its row there.
struct KeyPlace {
  int page;
  int row;
};
__device__ __forceinline__ KeyPlace PlaceOfKey(const BlockKeys& keys, int key) {
  const int slot = keys.item.first_slot + key;
  const int page = keys.batch.page_slots.Divide(slot);
  return {page, keys.batch.page_slots.Rest(slot, page)};
}

__device__ __forceinline__ const std::byte* RowOf(const BlockKeys& keys, const LosslessHalf& half,
                                                  const KeyPlace& place) {
  return half.codes + place.page * keys.item.page_stride +
         static_cast<int64_t>(place.row) * keys.slot_bytes;
}
__device__ __forceinline__ const std::byte* ParamsOf(const BlockKeys& keys,
                                                     const LosslessHalf& half, int page) {
  return half.params + page * keys.item.params_page_stride;
}
__device__ __forceinline__ uint32_t LoadFloor(const BlockKeys& keys, const LosslessHalf& half,
                                              const KeyPlace& place) {
  const std::byte* floors = ParamsOf(keys, half, place.page) + lossless::FloorsAt(half.escapes);
  return static_cast<uint32_t>(__ldg(reinterpret_cast<const uint8_t*>(floors) + place.row));
}

// The list's entries 2 i and 2 i + 1 for lane i, of the page of a chunk's first key.
__device__ __forceinline__ uint32_t LoadEscapes(const BlockKeys& keys, const LosslessHalf& half,
                                                int chunk, int lane) {
  const KeyPlace place = PlaceOfKey(keys, chunk);
  const auto* pairs = reinterpret_cast<const uint32_t*>(ParamsOf(keys, half, place.page));
  return lane < half.escapes / 2 ? __ldg(pairs + lane) : kNoEscapes;
}

// As LoadKeys and LoadValues of plain pages.
template <typename Shape>
__device__ __forceinline__ void LoadKeyCodes(const BlockKeys& keys, const LosslessHalf& half,
                                             const Lane& lane, int chunk,
                                             typename Shape::KeyCodes& k) {
  k.escapes = LoadEscapes(keys, half, chunk, lane.lane);
#pragma unroll
  for (int t = 0; t < Shape::kKeyTiles; ++t) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const KeyPlace place =
          PlaceOfKey(keys, min(chunk + t * 16 + h * 8 + lane.r, keys.some.end - 1));
      const std::byte* row = RowOf(keys, half, place);
      k.floors[t][h] = LoadFloor(keys, half, place);
#pragma unroll
      for (int i = 0; i < Shape::kKLoads; ++i) {
        const int dim = Clamp<Shape::kDims>(i * 32 + 31, i * 32 + lane.c * 8, keys.head_dim - 8);
        k.pieces[t][h][i] = LoadPiece(row, dim, keys.head_dim, half.wide);
      }
    }
  }
}
template <typename Shape>
__device__ __forceinline__ void LoadValueCodes(const BlockKeys& keys, const LosslessHalf& half,
                                               const Lane& lane, int chunk,
                                               typename Shape::ValueCodes& v) {
  v.escapes = LoadEscapes(keys, half, chunk, lane.lane);
#pragma unroll
  for (int t = 0; t < Shape::kKeyTiles; ++t) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const KeyPlace place =
          PlaceOfKey(keys, min(chunk + t * 16 + i / 2 * 8 + lane.c * 2 + i % 2, keys.some.end - 1));
      const std::byte* row = RowOf(keys, half, place);
      v.floors[t][i] = LoadFloor(keys, half, place);
#pragma unroll
      for (int h = 0; h < Shape::kVLoads; ++h) {
        const int dim = Clamp<Shape::kDims>(h * 64 + 63, h * 64 + lane.r * 8, keys.head_dim - 8);
        v.pieces[t][i][h] = LoadPiece(row, dim, keys.head_dim, half.wide);
      }
    }
  }
}

// Calls use(row, dim, exponent), in all lanes of the warp, for each escape of the keys [chunk,
// chunk + kChunk) that there are; row 0 is the chunk's first key. `first` is what LoadEscapes gave.
template <int kChunk, typename Use>
__device__ __forceinline__ void ForEscapes(const BlockKeys& keys, const LosslessHalf& half,
                                           int chunk, uint32_t first, int lane, const Use& use) {
  const int rows = min(kChunk, keys.some.end - chunk);
  KeyPlace place = PlaceOfKey(keys, chunk);
  const auto slots = static_cast<int>(keys.batch.page_slots.divisor);
  for (int row = 0; row < rows;) {
    const int rows_here = min(slots - place.row, rows - row);
    const auto begin = static_cast<uint32_t>(place.row * keys.head_dim);
    const auto end = static_cast<uint32_t>((place.row + rows_here) * keys.head_dim);
    const std::byte* params = ParamsOf(keys, half, place.page);
    for (int entry = 0; entry < half.escapes; entry += 2 * kWarp) {
      uint32_t pair = first;
      if (row > 0 || entry > 0) {
        const auto* pairs = reinterpret_cast<const uint32_t*>(params) + entry / 2;
        pair = entry / 2 + lane < half.escapes / 2 ? __ldg(pairs + lane) : kNoEscapes;
      }
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const uint32_t position = j == 0 ? pair & 0xFFFFu : pair >> 16;
        const bool here = position >= begin && position < end;
        uint32_t found = __ballot_sync(kAllLanes, here);
        if (found == 0) continue;
        uint32_t exponent = 0;
        if (here) {
          exponent = static_cast<uint32_t>(__ldg(reinterpret_cast<const uint8_t*>(params) +
                                                 lossless::ExponentsAt(half.escapes) + entry +
                                                 lane * 2 + j));
        }
        for (; found != 0; found &= found - 1) {
          const int owner = __ffs(static_cast<int>(found)) - 1;
          const auto at = static_cast<int>(__shfl_sync(kAllLanes, position, owner) - begin);
          const int in_rows = at / keys.head_dim;
          use(row + in_rows, at - in_rows * keys.head_dim, __shfl_sync(kAllLanes, exponent, owner));
        }
      }
      // Positions ascend, and those of entries without an escape are behind all others.
      if (__any_sync(kAllLanes, pair >> 16 >= end)) break;
    }
    row += rows_here;
    place = {place.page + 1, 0};
  }
}

// The numbers of a chunk of keys.
template <typename Shape>
__device__ __forceinline__ void UnpackKeys(const BlockKeys& keys, const LosslessHalf& half,
                                           const Lane& lane, int chunk,
                                           const typename Shape::KeyCodes& codes,
                                           typename Shape::Keys& k) {
#pragma unroll
  for (int t = 0; t < Shape::kKeyTiles; ++t) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const uint32_t floor = InFourBytes(codes.floors[t][h]);
#pragma unroll
      for (int i = 0; i < Shape::kKLoads; ++i) k[t][h][i] = Unpack(codes.pieces[t][h][i], floor);
    }
  }
  const int last = keys.some.end - 1 - chunk;
  ForEscapes<Shape::kChunk>(
      keys, half, chunk, codes.escapes, lane.lane, [&](int row, int dim, uint32_t exponent) {
#pragma unroll
        for (int t = 0; t < Shape::kKeyTiles; ++t) {
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            const bool of_row = min(t * 16 + h * 8 + lane.r, last) == row;
#pragma unroll
            for (int i = 0; i < Shape::kKLoads; ++i) {
              const int first =
                  Clamp<Shape::kDims>(i * 32 + 31, i * 32 + lane.c * 8, keys.head_dim - 8);
              if (of_row && dim - dim % 8 == first) SetExponent(k[t][h][i], dim % 8, exponent);
            }
          }
        }
      });
}
template <typename Shape>
__device__ __forceinline__ void UnpackValues(const BlockKeys& keys, const LosslessHalf& half,
                                             const Lane& lane, int chunk,
                                             const typename Shape::ValueCodes& codes,
                                             typename Shape::Values& v) {
#pragma unroll
  for (int t = 0; t < Shape::kKeyTiles; ++t) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t floor = InFourBytes(codes.floors[t][i]);
#pragma unroll
      for (int h = 0; h < Shape::kVLoads; ++h) v[t][i][h] = Unpack(codes.pieces[t][i][h], floor);
    }
  }
  const int last = keys.some.end - 1 - chunk;
  ForEscapes<Shape::kChunk>(
      keys, half, chunk, codes.escapes, lane.lane, [&](int row, int dim, uint32_t exponent) {
#pragma unroll
        for (int t = 0; t < Shape::kKeyTiles; ++t) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const bool of_row = min(t * 16 + i / 2 * 8 + lane.c * 2 + i % 2, last) == row;
#pragma unroll
            for (int h = 0; h < Shape::kVLoads; ++h) {
              const int first =
                  Clamp<Shape::kDims>(h * 64 + 63, h * 64 + lane.r * 8, keys.head_dim - 8);
              if (of_row && dim - dim % 8 == first) SetExponent(v[t][i][h], dim % 8, exponent);
            }
          }
        }
      });
}

}  // namespace headway::cuda

#endif  // HEADWAY_KERNELS_CUDA_ATTENTION_LOSSLESS_LOAD_H_
