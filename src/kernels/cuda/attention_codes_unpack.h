// Codes of encoded pages as the f16 numbers that tensor cores take.
#ifndef HEADWAY_KERNELS_CUDA_ATTENTION_CODES_UNPACK_H_
#define HEADWAY_KERNELS_CUDA_ATTENTION_CODES_UNPACK_H_

#include <cuda_fp16.h>

#include <cstdint>
#include <cstring>

#include "base/fp8.h"
#include "base/types.h"
#include "kernels/cuda/tensor_core.h"

namespace headway::cuda {

__device__ inline float2 WidenPair(uint32_t pair) {
  __half2 halves;
  memcpy(&halves, &pair, sizeof(halves));
  return __half22float2(halves);
}

__device__ inline SplitPair SplitHalf(float low, float high) {
  const uint32_t rounded = PackPair<DType::kF16>(low, high);
  const float2 wide = WidenPair(rounded);
  return {rounded, PackPair<DType::kF16>(low - wide.x, high - wide.y)};
}

// Unpack gives a word's codes as pairs of f16, pair i those of codes i and i + half as many as
// there are. Of pair i these are the numbers that codes stand for over Over(i).
template <Encoding kEncoding>
struct Code;

// The bits of a small integer are those of an f16: a subnormal number, 2^-24 of it, that tensor
// cores take as any other.
template <>
struct Code<Encoding::kInt8> {
  static constexpr int kBits = 8;
  __device__ static constexpr float Over(int /*pair*/) { return 0x1p24f; }
  __device__ static void Unpack(uint32_t word, uint32_t (&pairs)[2]) {
    pairs[0] = __byte_perm(word, 0, 0x4240);
    pairs[1] = __byte_perm(word, 0, 0x4341);
  }
};
template <>
struct Code<Encoding::kInt4> {
  static constexpr int kBits = 4;
  __device__ static constexpr float Over(int pair) { return pair % 2 == 0 ? 0x1p24f : 0x1p20f; }
  __device__ static void Unpack(uint32_t word, uint32_t (&pairs)[4]) {
    pairs[0] = word & 0x000F000Fu;
    pairs[1] = word & 0x00F000F0u;
    pairs[2] = word >> 8 & 0x000F000Fu;
    pairs[3] = word >> 8 & 0x00F000F0u;
  }
};
// From compute capability 8.9 on there is an instruction; before, as E4M3ToFloat: an f16 is the
// code's bits in their places.
template <>
struct Code<Encoding::kFp8E4M3> {
  static constexpr int kBits = 8;
#if __CUDA_ARCH__ >= 890
  __device__ static constexpr float Over(int /*pair*/) { return 1.0f; }
  __device__ static void Unpack(uint32_t word, uint32_t (&pairs)[2]) {
    asm("{\n.reg .b16 low, high;\n"
        "mov.b32 {low, high}, %2;\n"
        "cvt.rn.f16x2.e4m3x2 %0, low;\n"
        "cvt.rn.f16x2.e4m3x2 %1, high;\n}"
        : "=r"(pairs[0]), "=r"(pairs[1])
        : "r"(__byte_perm(word, 0, 0x3120)));
  }
#else
  __device__ static constexpr float Over(int /*pair*/) { return kE4M3OverF16; }
  __device__ static void Unpack(uint32_t word, uint32_t (&pairs)[2]) {
    pairs[0] = Place(__byte_perm(word, 0, 0x2404));
    pairs[1] = Place(__byte_perm(word, 0, 0x3414));
  }
  __device__ static uint32_t Place(uint32_t high_bytes) {
    return (high_bytes & 0x80008000u) | (high_bytes >> 1 & 0x3F803F80u);
  }
#endif
};

}  // namespace headway::cuda

#endif  // HEADWAY_KERNELS_CUDA_ATTENTION_CODES_UNPACK_H_
