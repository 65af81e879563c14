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

// The same of bytes that this kernel, or one ahead of it, may have written.
__device__ inline uint4 LoadOnce(const void* from) {
  uint4 value;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(from));
  return value;
}

// Arrivals at a counter: who finds that all others have arrived sees what these wrote before, of a
// block of threads what it wrote ahead of a barrier.
// An arrival, and how many there were before it. The counter is 0 again behind `last` others.
__device__ inline uint32_t Arrive(uint32_t* counter, uint32_t last) {
  uint32_t before;
  asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;"
               : "=r"(before)
               : "l"(counter), "r"(last)
               : "memory");
  return before;
}
// The same for those who wait for each other: an arrival, and how many there are.
__device__ inline void AddArrival(uint32_t* counter) {
  asm volatile("red.release.gpu.global.add.u32 [%0], 1;" : : "l"(counter) : "memory");
}
__device__ inline uint32_t Arrivals(const uint32_t* counter) {
  uint32_t count;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(count) : "l"(counter) : "memory");
  return count;
}

// One of the four words of such a load.
__device__ inline uint32_t Word(const uint4& value, int index) {
  return index == 0 ? value.x : index == 1 ? value.y : index == 2 ? value.z : value.w;
}

}  // namespace headway::cuda

#endif  // HEADWAY_KERNELS_CUDA_MEMORY_H_
