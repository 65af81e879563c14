// Eight neighbouring numbers of a row of a lossless page (kernels/lossless_codec.h): their codes,
// and the bf16 numbers that these stand for.
#ifndef HEADWAY_KERNELS_CUDA_LOSSLESS_UNPACK_H_
#define HEADWAY_KERNELS_CUDA_LOSSLESS_UNPACK_H_

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "kernels/lossless_math.h"

namespace headway::cuda {

struct LosslessPiece {
  uint2 low;      // bytes
  uint32_t tops;  // of all eight
};

// Numbers [dim, dim + 8) of the row that begins at `row`, on 4 bytes; `wide`: on 8.
__device__ __forceinline__ LosslessPiece LoadPiece(const std::byte* row, int dim, int head_dim,
                                                   bool wide) {
  LosslessPiece piece;
  if (wide) {
    asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];"
                 : "=r"(piece.low.x), "=r"(piece.low.y)
                 : "l"(row + dim));
  } else {
    const auto* words = reinterpret_cast<const uint32_t*>(row + dim);
    piece.low = make_uint2(__ldg(words), __ldg(words + 1));
  }
  piece.tops = __ldg(reinterpret_cast<const uint32_t*>(row + head_dim + dim / 2));
  return piece;
}

// A row's floor for four numbers at a time.
__device__ __forceinline__ uint32_t InFourBytes(uint32_t floor) { return floor * 0x01010101u; }

// `floors` as InFourBytes has them.
__device__ __forceinline__ uint4 Unpack(const LosslessPiece& piece, uint32_t floors) {
  const uint32_t first = (piece.tops & lossless::kTopMask) + floors;
  const uint32_t others = (lossless::OtherTops(piece.tops) & lossless::kTopMask) + floors;
  return make_uint4(
      __byte_perm(piece.low.x, first, 0x5140), __byte_perm(piece.low.x, first, 0x7362),
      __byte_perm(piece.low.y, others, 0x5140), __byte_perm(piece.low.y, others, 0x7362));
}

// Number `index` of eight gets another exponent.
__device__ __forceinline__ void SetExponent(uint4& numbers, int index, uint32_t exponent) {
  const int shift = index % 2 * 16;
  const uint32_t mask = 0x7F80u << shift;
  const uint32_t bits = exponent << (shift + 7);
  const auto set = [&](uint32_t& word, int pair) {
    if (index / 2 == pair) word = (word & ~mask) | bits;
  };
  set(numbers.x, 0);
  set(numbers.y, 1);
  set(numbers.z, 2);
  set(numbers.w, 3);
}

}  // namespace headway::cuda

#endif  // HEADWAY_KERNELS_CUDA_LOSSLESS_UNPACK_H_
