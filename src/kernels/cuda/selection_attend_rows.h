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

  // Of a page, or of a line of a cache that this kernel has written.
  __device__ void Load(const std::byte* at) {
    if constexpr (kWords >= 4) {
#pragma unroll
      for (int i = 0; i < kWords; i += 4) {
        const uint4 some = LoadOnce(at + i * 4);
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

// Eight neighbouring parameters. Each read of the host's memory crosses the bus anew, whatever the
// reads beside it brought: 16 bytes are one read where they lie on 16 bytes.
struct EightParams {
  uint32_t words[4];

  __device__ void Load(const std::byte* at, bool aligned) {
    if (aligned) {
      const uint4 some = __ldcg(reinterpret_cast<const uint4*>(at));
      words[0] = some.x;
      words[1] = some.y;
      words[2] = some.z;
      words[3] = some.w;
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) words[i] = __ldcg(reinterpret_cast<const uint32_t*>(at) + i);
    }
  }
};

// Parameters of eight channels of K of a page: number = zero + scale * code.
struct KeyParams {
  EightParams scales;
  EightParams zeros;

  // `at` is the first channel's scale, on 4 bytes, or on 16 where that is said.
  __device__ void Load(const std::byte* at, int head_dim, bool aligned) {
    scales.Load(at, aligned);
    zeros.Load(at + 2 * head_dim, aligned);
  }
  __device__ void Decode(float (&x)[8]) const {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int shift = 16 * (i % 2);
      x[i] = fmaf(WidenBF16(scales.words[i / 2] >> shift & 0xFFFFu), x[i],
                  WidenBF16(zeros.words[i / 2] >> shift & 0xFFFFu));
    }
  }
};

// Those of the eight rows of V of a strip, for the channels of one lane.
struct ValueParams {
  EightParams scales;
  EightParams zeros;

  __device__ void Load(const std::byte* at, int zero_bytes, bool aligned) {
    scales.Load(at, aligned);
    zeros.Load(at + zero_bytes, aligned);
  }
  // Of row step * kAtOnce + key. The step is known to the compiler, `key` < kAtOnce is not.
  template <int kAtOnce>
  __device__ void Decode(int step, int key, float (&x)[8]) const {
    const float by = WidenBF16(Pick<kAtOnce>(scales, step, key));
    const float from = WidenBF16(Pick<kAtOnce>(zeros, step, key));
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = fmaf(by, x[i], from);
  }

 private:
  template <int kAtOnce>
  __device__ static uint32_t Pick(const EightParams& params, int step, int key) {
    static_assert(kAtOnce == 1 || kAtOnce == 2 || kAtOnce == 4);
    if constexpr (kAtOnce == 1) return params.words[step / 2] >> (16 * (step % 2)) & 0xFFFFu;
    uint32_t word = params.words[step * kAtOnce / 2];
    if constexpr (kAtOnce == 4) word = key < 2 ? word : params.words[step * 2 + 1];
    return key % 2 == 0 ? word & 0xFFFFu : word >> 16;
  }
};

}  // namespace headway::cuda

#endif  // HEADWAY_KERNELS_CUDA_SELECTION_ATTEND_ROWS_H_
