// Codes of a closed page, one at a time, as numbers.
#ifndef HEADWAY_KERNELS_CUDA_CODE_NUMBERS_H_
#define HEADWAY_KERNELS_CUDA_CODE_NUMBERS_H_

#include <cuda_fp16.h>

#include <cstddef>
#include <cstdint>

#include "base/fp8.h"
#include "base/types.h"

namespace headway::cuda {

// Eight neighbouring codes of a row, on 4 bytes; of int4 the first word has them all.
template <Encoding kEncoding>
__device__ inline void LoadEight(const std::byte* row, int dim, uint32_t (&words)[2]) {
  if constexpr (kEncoding == Encoding::kInt4) {
    words[0] = *reinterpret_cast<const uint32_t*>(row + dim / 2);
  } else {
    words[0] = *reinterpret_cast<const uint32_t*>(row + dim);
    words[1] = *reinterpret_cast<const uint32_t*>(row + dim + 4);
  }
}

// Code i of eight.
template <Encoding kEncoding>
__device__ inline float CodeAt(const uint32_t (&words)[2], int i) {
  if constexpr (kEncoding == Encoding::kInt4) {
    return static_cast<float>(words[0] >> (4 * i) & 0xFu);
  } else {
    const uint32_t code = words[i / 4] >> (8 * (i % 4)) & 0xFFu;
    if constexpr (kEncoding == Encoding::kInt8) return static_cast<float>(code);
    const auto bits = static_cast<unsigned short>((code & 0x80u) << 8 | (code & 0x7Fu) << 7);
    return __half2float(__ushort_as_half(bits)) * kE4M3OverF16;
  }
}

__device__ inline float WidenBF16(uint16_t bits) { return __uint_as_float(uint32_t{bits} << 16); }

}  // namespace headway::cuda

#endif  // HEADWAY_KERNELS_CUDA_CODE_NUMBERS_H_
