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
#include "kernels/cuda/selection_lossless_rows.h"
#include "kernels/cuda/warp.h"

namespace headway::cuda {

constexpr bool IsEncoded(Rows rows) { return rows >= Rows::kInt8; }
constexpr int BytesOfEight(Rows rows) {
  switch (rows) {
    case Rows::kF32:
      return 32;
    case Rows::kLossless:
      return 12;
    case Rows::kInt8:
    case Rows::kFp8E4M3:
      return 8;
    case Rows::kInt4:
      return 4;
    default:
      return 16;
  }
}

template <Rows kRows>
struct Eight {
  static constexpr int kWords = BytesOfEight(kRows) / 4;
  uint32_t words[kWords];

  // The numbers from 8 * `index` on of a row of a page, or of a line of a cache that this kernel
  // has written.
  __device__ void Load(const std::byte* row, int index, int /*head_dim*/) {
    const std::byte* const at = row + index * BytesOfEight(kRows);
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

template <>
struct Eight<Rows::kLossless> {
  LosslessPiece piece;

  __device__ void Load(const std::byte* row, int index, int head_dim) {
    const std::byte* const low = row + index * 8;
    if (head_dim % 16 == 0) {
      piece.low = __ldcg(reinterpret_cast<const uint2*>(low));
    } else {
      const auto* words = reinterpret_cast<const uint32_t*>(low);
      piece.low = make_uint2(__ldcg(words), __ldcg(words + 1));
    }
    piece.tops = __ldcg(reinterpret_cast<const uint32_t*>(row + head_dim) + index);
  }
};

// Which key of each step of a round a lane has, and which eight of its channels.
struct LaneKeys {
  int key;
  int sub;
  int head_dim;
};

// bf16 numbers, as they lie.
__device__ __forceinline__ void WidenBits(const uint4& bits, float (&x)[8]) {
  const uint32_t words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    x[i] = __uint_as_float(i % 2 == 0 ? words[i / 2] << 16 : words[i / 2] & 0xFFFF0000u);
  }
}

// What a warp, all of whose lanes have the strip, knows of 8 slots of K or V of a lossless page: a
// lane has four of the half's escapes.
struct StripParams {
  uint2 floors;
  uint2 positions;  // of the lane's escapes, counted from the page's first number
  uint32_t exponents;
  int first;  // position of the strip's first number

  __device__ void Load(const LosslessHalf& half, int slot, int head_dim) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    floors = half.Floors(slot);
    first = slot * head_dim;
    // Nothing is loaded on a condition: lanes behind the list have its last entries once more.
    const int four = min(lane, half.entries / 4 - 1);
    positions = __ldcg(reinterpret_cast<const uint2*>(half.params) + four);
    exponents = __ldcg(
        reinterpret_cast<const uint32_t*>(half.params + lossless::ExponentsAt(half.entries)) +
        four);
  }
  __device__ uint32_t Position(int i) const {
    return ((i < 2 ? positions.x : positions.y) >> (16 * (i % 2))) & 0xFFFFu;
  }
  // The lanes that have escapes of the strip.
  __device__ uint32_t Escapes(int head_dim) const {
    bool some = false;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      some |= Position(i) - static_cast<uint32_t>(first) < static_cast<uint32_t>(8 * head_dim);
    }
    return __ballot_sync(kAllLanes, some);
  }
  // Those of row `row`; `escapes` are all lanes' Escapes.
  __device__ void Widen(const Eight<Rows::kLossless>& eight, int row, int index, int head_dim,
                        uint32_t escapes, float (&x)[8]) const {
    uint4 bits =
        Unpack(eight.piece, __byte_perm(floors.x, floors.y, static_cast<unsigned>(row) * 0x1111u));
    const auto from = static_cast<uint32_t>(first + row * head_dim + index * 8);
    while (__builtin_expect(escapes != 0, 0)) {
      const int lane = __ffs(static_cast<int>(escapes)) - 1;
      escapes &= escapes - 1;
      StripParams of_lane = *this;
      of_lane.positions.x = __shfl_sync(kAllLanes, positions.x, lane);
      of_lane.positions.y = __shfl_sync(kAllLanes, positions.y, lane);
      of_lane.exponents = __shfl_sync(kAllLanes, exponents, lane);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint32_t at = of_lane.Position(i) - from;
        if (at < 8) SetExponent(bits, static_cast<int>(at), of_lane.exponents >> (8 * i) & 0xFFu);
      }
    }
    WidenBits(bits, x);
  }
};

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
