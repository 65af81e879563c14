// Elements of any dtype, read and written by the kernels that go once through their memory: 16
// bytes at a time where addresses and sizes allow it (kN is 8 elements a thread then), an element
// at a time elsewhere (kN is 1). And what their launches share.
#ifndef HEADWAY_KERNELS_CUDA_ELEMENTS_H_
#define HEADWAY_KERNELS_CUDA_ELEMENTS_H_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/types.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/warp.h"

namespace headway::cuda {

inline constexpr int kThreads = 256;

template <DType kType>
struct ElementOf {
  using Type = float;
};
template <>
struct ElementOf<DType::kF16> {
  using Type = __half;
};
template <>
struct ElementOf<DType::kBF16> {
  using Type = __nv_bfloat16;
};

__device__ inline float AsFloat(float value) { return value; }
__device__ inline float AsFloat(__half value) { return __half2float(value); }
__device__ inline float AsFloat(__nv_bfloat16 value) { return __bfloat162float(value); }

template <DType kType>
__device__ inline typename ElementOf<kType>::Type FromFloat(float value) {
  if constexpr (kType == DType::kF32) {
    return value;
  } else if constexpr (kType == DType::kF16) {
    return __float2half_rn(value);
  } else {
    return __float2bfloat16_rn(value);
  }
}

template <DType kType>
__device__ inline float Rounded(float value) {
  return AsFloat(FromFloat<kType>(value));
}

// Elements index to index + kN; whole 16 bytes of kN * size that lie on 16 bytes.
template <DType kType, int kN>
__device__ inline void Load(const void* data, int64_t index, float (&values)[kN]) {
  using Element = typename ElementOf<kType>::Type;
  const Element* from = static_cast<const Element*>(data) + index;
  if constexpr (kN == 1) {
    values[0] = AsFloat(*from);
  } else {
    constexpr int kVectors = kN * static_cast<int>(sizeof(Element)) / 16;
    uint4 vectors[kVectors];
#pragma unroll
    for (int i = 0; i < kVectors; ++i) vectors[i] = reinterpret_cast<const uint4*>(from)[i];
    Element raw[kN];
    memcpy(raw, vectors, sizeof(raw));
#pragma unroll
    for (int i = 0; i < kN; ++i) values[i] = AsFloat(raw[i]);
  }
}

template <DType kType, int kN>
__device__ inline void Store(void* data, int64_t index, const float (&values)[kN]) {
  using Element = typename ElementOf<kType>::Type;
  Element* to = static_cast<Element*>(data) + index;
  if constexpr (kN == 1) {
    *to = FromFloat<kType>(values[0]);
  } else {
    constexpr int kVectors = kN * static_cast<int>(sizeof(Element)) / 16;
    Element raw[kN];
#pragma unroll
    for (int i = 0; i < kN; ++i) raw[i] = FromFloat<kType>(values[i]);
    uint4 vectors[kVectors];
    memcpy(vectors, raw, sizeof(raw));
#pragma unroll
    for (int i = 0; i < kVectors; ++i) reinterpret_cast<uint4*>(to)[i] = vectors[i];
  }
}

inline unsigned Blocks(int64_t work, int64_t of_block) {
  return static_cast<unsigned>((work + of_block - 1) / of_block);
}

template <DType kType>
struct Constant {
  static constexpr DType kValue = kType;
};

// function(Constant<dtype>{}).
template <typename Function>
cudaError_t WithDType(DType dtype, Function function) {
  switch (dtype) {
    case DType::kF32:
      return function(Constant<DType::kF32>{});
    case DType::kF16:
      return function(Constant<DType::kF16>{});
    case DType::kBF16:
      return function(Constant<DType::kBF16>{});
  }
  return cudaErrorInvalidValue;
}

}  // namespace headway::cuda

#endif  // HEADWAY_KERNELS_CUDA_ELEMENTS_H_
