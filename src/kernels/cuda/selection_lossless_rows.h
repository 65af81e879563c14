// Rows of lossless pages (kernels/lossless_codec.h) as the kernels of selection read them: where
// they lie, or in a line of a cache, which has the parameters of the page beside the block's codes.
#ifndef HEADWAY_KERNELS_CUDA_SELECTION_LOSSLESS_ROWS_H_
#define HEADWAY_KERNELS_CUDA_SELECTION_LOSSLESS_ROWS_H_

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/lossless_unpack.h"
#include "kernels/lossless_math.h"

namespace headway::cuda {

// K or V of a page.
struct LosslessHalf {
  const std::byte* params;
  int entries;

  // `of_page` are the parameters of the page.
  __device__ static LosslessHalf Of(const std::byte* of_page, bool of_keys, int page_slots,
                                    int head_dim) {
    const auto entries = static_cast<int>(lossless::EscapeEntries(page_slots, head_dim));
    const auto bytes = static_cast<int>(lossless::HalfParamBytes(page_slots, head_dim));
    return {of_page + (of_keys ? 0 : bytes), entries};
  }

  // The floors of 8 slots, from a multiple of 8 on.
  __device__ uint2 Floors(int slot) const {
    return __ldcg(reinterpret_cast<const uint2*>(params + lossless::FloorsAt(entries) + slot));
  }
  __device__ uint32_t Floor(int slot) const {
    return __ldcg(reinterpret_cast<const uint8_t*>(params) + lossless::FloorsAt(entries) + slot);
  }
  // The first escape at `position` or behind; as many as there are entries where there is none.
  // Most halves have one or none.
  __device__ int FirstEscape(int position) const {
    int escape = 0;
    while (escape < entries && PositionOf(escape) < position) ++escape;
    return escape;
  }
  __device__ int PositionOf(int escape) const {
    return __ldcg(reinterpret_cast<const uint16_t*>(params) + escape);
  }
  __device__ uint32_t ExponentOf(int escape) const {
    return __ldcg(reinterpret_cast<const uint8_t*>(params) + lossless::ExponentsAt(entries) +
                  escape);
  }
};

// Whether one of eight numbers may be an escape: its top is 0.
__device__ __forceinline__ bool MayEscape(uint32_t tops) {
  constexpr uint32_t kTops = 0x77777777u;
  return (((tops & kTops) + kTops) & ~kTops) != ~kTops;
}

// Eight numbers, of which the first is at `position`, with the exponents of those that escape. Few
// have some: this is not for where the others are made.
__device__ __noinline__ inline uint4 WithEscapes(uint4 numbers, LosslessHalf half, int position) {
  for (int i = half.FirstEscape(position); i < half.entries; ++i) {
    const int index = half.PositionOf(i) - position;
    if (index >= 8) break;
    SetExponent(numbers, index, half.ExponentOf(i));
  }
  return numbers;
}

// `floors` as InFourBytes has them.
__device__ __forceinline__ uint4 LosslessNumbers(const LosslessPiece& piece, uint32_t floors,
                                                 const LosslessHalf& half, int position) {
  uint4 numbers = Unpack(piece, floors);
  if (__builtin_expect(MayEscape(piece.tops), 0)) numbers = WithEscapes(numbers, half, position);
  return numbers;
}

}  // namespace headway::cuda

#endif  // HEADWAY_KERNELS_CUDA_SELECTION_LOSSLESS_ROWS_H_
