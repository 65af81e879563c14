// Where memory lies, and how it is read.
#ifndef HEADWAY_KERNELS_CUDA_MEMORY_H_
#define HEADWAY_KERNELS_CUDA_MEMORY_H_

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "base/types.h"

namespace headway::cuda {

inline bool Aligned(const void* pointer, size_t bytes = 16) {
  return reinterpret_cast<uintptr_t>(pointer) % bytes == 0;
}

// Whether rows of `dtype`, `stride` elements apart from `pointer`, all lie on 16 bytes.
inline bool RowsAligned(const void* pointer, int64_t stride, DType dtype) {
  return Aligned(pointer) && stride * static_cast<int64_t>(DTypeBytes(dtype)) % 16 == 0;
}

// 16 bytes that are read once, as weights, keys and values are: they must not push anything out of
// L1.
__device__ inline uint4 LoadStreaming(const void* from) {
  uint4 value;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(from));
  return value;
}

// The same of bytes that the kernel itself may have written.
__device__ inline uint4 LoadOnce(const void* from) {
  uint4 value;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(from));
  return value;
}

// One of the four words of such a load.
__device__ inline uint32_t Word(const uint4& value, int index) {
  return index == 0 ? value.x : index == 1 ? value.y : index == 2 ? value.z : value.w;
}

}  // namespace headway::cuda

#endif  // HEADWAY_KERNELS_CUDA_MEMORY_H_
