// Eight neighbouring elements of a row of a page, as they are read and as numbers.
#ifndef HEADWAY_KERNELS_CUDA_SELECTION_ATTEND_ROWS_H_
#define HEADWAY_KERNELS_CUDA_SELECTION_ATTEND_ROWS_H_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/fp8.h"
#include "kernels/cuda/memory.h"
#include "kernels/cuda/selection_attend.h"

namespace headway::cuda {

constexpr bool IsEncoded(Rows rows) { return rows >= Rows::kInt8; }
constexpr int BytesOfEight(Rows rows) {
  return rows == Rows::kF32 ? 32 : rows == Rows::kInt4 ? 4 : IsEncoded(rows) ? 8 : 16;
}

template <Rows kRows>
struct Eight {
  static constexpr int kWords = BytesOfEight(kRows) / 4;
  uint32_t words[kWords];

  __device__ void Load(const std::byte* at) {
    if constexpr (kWords >= 4) {
#pragma unroll
      for (int i = 0; i < kWords; i += 4) {
        const uint4 some = LoadStreaming(at + i * 4);
        words[i] = some.x;
        words[i + 1] = some.y;
        words[i + 2] = some.z;
        words[i + 3] = some.w;
      }
    } else if constexpr (kWords == 2) {
      const uint2 some = __ldcg(reinterpret_cast<const uint2*>(at));
      words[0] = some.x;
      words[1] = some.y;
    } else {
      words[0] = __ldcg(reinterpret_cast<const uint32_t*>(at));
    }
  }
  __device__ void Clear() {
#pragma unroll
    for (uint32_t& word : words) word = 0;
  }

  // Codes of pages as they are.
  __device__ void Widen(float (&x)[8]) const {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if constexpr (kRows == Rows::kBF16) {
        x[i] = __uint_as_float(i % 2 == 0 ? words[i / 2] << 16 : words[i / 2] & 0xFFFF0000u);
      } else if constexpr (kRows == Rows::kF16) {
        x[i] = __half2float(
            __ushort_as_half(static_cast<unsigned short>(words[i / 2] >> (16 * (i % 2)))));
      } else if constexpr (kRows == Rows::kF32) {
        x[i] = __uint_as_float(words[i]);
      } else if constexpr (kRows == Rows::kInt8) {
        // The bits of 2^23 and a small integer are those of their sum.
        x[i] = __uint_as_float(__byte_perm(words[i / 4], 0x4B000000u, 0x7650u + i % 4)) - 0x1p23f;
      } else if constexpr (kRows == Rows::kInt4) {
        x[i] = __uint_as_float((words[0] >> (4 * i) & 0xFu) | 0x4B000000u) - 0x1p23f;
      } else {
        const uint32_t code = words[i / 4] >> (8 * (i % 4));
        const auto bits = static_cast<unsigned short>((code & 0x80u) << 8 | (code & 0x7Fu) << 7);
        x[i] = __half2float(__ushort_as_half(bits)) * kE4M3OverF16;
      }
    }
  }
};

__device__ inline float WidenBF16(uint32_t bits) { return __uint_as_float(bits << 16); }

// Parameters of eight channels of K of a page: number = zero + scale * code.
struct KeyParams {
  uint32_t scales[4];
  uint32_t zeros[4];

  // `at` is the first channel's scale, on 4 bytes.
  __device__ void Load(const std::byte* at, int head_dim) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      scales[i] = __ldcg(reinterpret_cast<const uint32_t*>(at) + i);
      zeros[i] = __ldcg(reinterpret_cast<const uint32_t*>(at + 2 * head_dim) + i);
    }
  }
  __device__ void Clear() {
#pragma unroll
    for (int i = 0; i < 4; ++i) scales[i] = zeros[i] = 0;
  }
  __device__ void Decode(float (&x)[8]) const {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int shift = 16 * (i % 2);
      x[i] = fmaf(WidenBF16(scales[i / 2] >> shift & 0xFFFFu), x[i],
                  WidenBF16(zeros[i / 2] >> shift & 0xFFFFu));
    }
  }
};

// Those of a row of V, for the channels of one lane.
struct ValueParams {
  uint16_t scale;
  uint16_t zero;

  __device__ void Load(const std::byte* at, int64_t zeros) {
    scale = __ldcg(reinterpret_cast<const unsigned short*>(at));
    zero = __ldcg(reinterpret_cast<const unsigned short*>(at) + zeros);
  }
  __device__ void Clear() { scale = zero = 0; }
  __device__ void Decode(float (&x)[8]) const {
    const float by = WidenBF16(scale);
    const float from = WidenBF16(zero);
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = fmaf(by, x[i], from);
  }
};

}  // namespace headway::cuda

#endif  // HEADWAY_KERNELS_CUDA_SELECTION_ATTEND_ROWS_H_
