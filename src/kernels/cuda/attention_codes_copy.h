// How codes, parameters and queries come to the kernel behind attention_codes.h: copies of encoded
// pages into shared memory, and numbers of what was copied.
#ifndef HEADWAY_KERNELS_CUDA_ATTENTION_CODES_COPY_H_
#define HEADWAY_KERNELS_CUDA_ATTENTION_CODES_COPY_H_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/attention_codes_shape.h"
#include "kernels/cuda/attention_decode_block.h"
#include "kernels/cuda/tensor_core.h"
#include "kernels/cuda/warp.h"

namespace headway::cuda {

// Copies rows [first, last) of a chunk into `to`, and zeros for its other rows: nobody sees these.
template <typename Shape>
__device__ void CopyRows(const std::byte* from, int row_bytes, int first, int last, int lane,
                         uint4* to) {
  constexpr int kUnits = Shape::kChunk * Shape::kPieces;
  if (row_bytes == Shape::kRowBytes && first == 0 && last == Shape::kChunk) {
    from += lane * 16;
#pragma unroll
    for (int i = 0; i < kUnits; i += kWarp) {
      CopyAsync(to + Shape::Unit((i + lane) / Shape::kPieces, (i + lane) % Shape::kPieces),
                from + i * 16, true);
    }
    return;
  }
#pragma unroll 1
  for (int unit = lane; unit < kUnits; unit += kWarp) {
    const int row = unit / Shape::kPieces;
    const int at = unit % Shape::kPieces * 16;
    const bool some = row >= first && row < last;
    const std::byte* source = from + static_cast<int64_t>(row) * row_bytes + at;
    uint4* target = to + Shape::Unit(row, unit % Shape::kPieces);
    if (row_bytes % 16 == 0) {
      CopyAsync(target, source, some && at < row_bytes);
      continue;
    }
#pragma unroll
    for (int i = 0; i < 16; i += 4) {
      CopyWordAsync(reinterpret_cast<std::byte*>(target) + i, source + i,
                    some && at + i < row_bytes);
    }
  }
}

// Copies parameters: of rows kWidth apart in `to` and row_params apart in `from` the first `count`,
// and zeros for those behind. Aligned ones are on 16 bytes there, others on 2.
template <int kRows, int kWidth>
__device__ void CopyParams(const std::byte* from, int rows, int row_params, int count, bool aligned,
                           int lane, uint16_t* to) {
  if (aligned) {
#pragma unroll
    for (int i = 0; i < kRows * kWidth / 8; i += kWarp) {
      const int row = (i + lane) / (kWidth / 8);
      const int at = (i + lane) % (kWidth / 8) * 8;
      if (kRows * kWidth / 8 % kWarp != 0 && row >= kRows) break;
      CopyAsync(to + row * kWidth + at, from + (row * row_params + at) * 2,
                row < rows && at < count);
    }
    return;
  }
#pragma unroll 1
  for (int i = lane; i < kRows * kWidth; i += kWarp) {
    const int row = i / kWidth;
    const int at = i % kWidth;
    const auto* source = reinterpret_cast<const uint16_t*>(from) + row * row_params + at;
    to[i] = row < rows && at < count ? *source : uint16_t{0};
  }
}

// Number `index` of words of two bf16.
__device__ inline float ParamAt(const uint32_t* words, int index) {
  const uint32_t word = words[index / 2];
  return __uint_as_float(index % 2 == 0 ? word << 16 : word & 0xFFFF0000u);
}
// kCount of them, on as many bytes as they have, but 16 at most.
template <int kCount>
__device__ void LoadParams(const uint16_t* at, uint32_t (&words)[kCount / 2]) {
  struct alignas(kCount < 8 ? kCount * 2 : 16) Some {
    uint32_t words[kCount / 2];
  };
  const Some some = *reinterpret_cast<const Some*>(at);
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i) words[i] = some.words[i];
}

// The power of two below the largest of a warp's numbers, which are not negative, as bits; what is
// not finite does not count, and 2^-100 is the least, so that its inverse is finite.
__device__ inline uint32_t UnitOf(float number) {
  const uint32_t bits = __float_as_uint(number);
  const uint32_t largest = __reduce_max_sync(kAllLanes, bits < 0x7F800000u ? bits : 0u);
  return max(largest & 0x7F800000u, 27u << 23);
}

// 1 / the power of two with these bits.
__device__ inline float InverseOf(uint32_t unit_bits) {
  return __uint_as_float((254u << 23) - unit_bits);
}

__device__ inline float LoadQuery(const void* q, int64_t index, int dtype) {
  switch (static_cast<DType>(dtype)) {
    case DType::kBF16:
      return __bfloat162float(static_cast<const __nv_bfloat16*>(q)[index]);
    case DType::kF16:
      return __half2float(static_cast<const __half*>(q)[index]);
    case DType::kF32:
      break;
  }
  return static_cast<const float*>(q)[index];
}

}  // namespace headway::cuda

#endif  // HEADWAY_KERNELS_CUDA_ATTENTION_CODES_COPY_H_
