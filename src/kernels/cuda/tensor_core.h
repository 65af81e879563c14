// The instructions of a tensor-core kernel: 16-bit matrix fragments from shared memory, their
// products, and copies from global to shared memory that run beside both. Compute capability 8.0.
#ifndef HEADWAY_KERNELS_CUDA_TENSOR_CORE_H_
#define HEADWAY_KERNELS_CUDA_TENSOR_CORE_H_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <cstring>

#include "base/types.h"

namespace headway::cuda {

// Starts copying 16 bytes, both sides on 16; with `valid` off zeros are written and nothing is
// read.
__device__ inline void CopyAsync(void* shared, const void* global, bool valid) {
  const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global),
               "r"(valid ? 16 : 0)
               : "memory");
}

// The same of 4 bytes, both sides on 4.
__device__ inline void CopyWordAsync(void* shared, const void* global, bool valid) {
  const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(global),
               "r"(valid ? 4 : 0)
               : "memory");
}

// The copies that this thread started since the last call are a group, if need be an empty one.
__device__ inline void GroupCopies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// All groups of copies but the newest, or so many of these, are done; other threads see them after
// a barrier.
template <int kNewest = 1>
__device__ inline void WaitForCopiesButNewest() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kNewest) : "memory");
}

// All copies that this thread started are done; other threads see them after a barrier.
__device__ inline void WaitForCopies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// Four 8 x 8 matrices of 16-bit elements. Lane l gives the address of row l % 8 of matrix l / 8, on
// 16 bytes, and gets elements (l / 4, 2 * (l % 4)) and (l / 4, 2 * (l % 4) + 1) of each.
__device__ inline void LoadMatrices(const void* row, uint32_t (&matrices)[4]) {
  const auto from = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3])
               : "r"(from)
               : "memory");
}

// The same of their transposes.
__device__ inline void LoadTransposed(const void* row, uint32_t (&matrices)[4]) {
  const auto from = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3])
               : "r"(from)
               : "memory");
}

// sum [16, 8] += a [16, 16] · b [16, 8]. a is four 8 x 8 matrices (upper left, lower left, upper
// right, lower right), b two, transposed. A lane has elements (l / 4, 2 * (l % 4)), the one right
// of it, and the two 8 rows below of the sum.
template <DType kType>
__device__ inline void MultiplyAdd(float (&sum)[4], const uint32_t (&a)[4], uint32_t b0,
                                   uint32_t b1) {
  if constexpr (kType == DType::kBF16) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

// Two numbers rounded to elements of a fragment.
template <DType kType>
__device__ inline uint32_t PackPair(float low, float high) {
  uint32_t pair;
  if constexpr (kType == DType::kBF16) {
    const __nv_bfloat162 rounded = __floats2bfloat162_rn(low, high);
    memcpy(&pair, &rounded, sizeof(pair));
  } else {
    const __half2 rounded = __floats2half2_rn(low, high);
    memcpy(&pair, &rounded, sizeof(pair));
  }
  return pair;
}

// The two 16-bit numbers of a word.
template <DType kType>
__device__ inline float2 UnpackPair(uint32_t pair) {
  if constexpr (kType == DType::kBF16) {
    return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xFFFF0000u)};
  } else {
    __half2 halves;
    memcpy(&halves, &pair, sizeof(halves));
    return __half22float2(halves);
  }
}

// Two numbers as the sum of a rounded pair and of a pair of what the rounding lost.
struct SplitPair {
  uint32_t rounded;
  uint32_t lost;
};

// Transposes an 8 x 8 matrix of 16-bit numbers; lane 4 r + c holds columns 2c and 2c + 1 of row r.
__device__ inline uint32_t TransposePairs(uint32_t pair) {
  uint32_t result;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(result) : "r"(pair));
  return result;
}

// 2^x, off by 2 in the last place at most; 0 for -inf.
__device__ inline float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace headway::cuda

#endif  // HEADWAY_KERNELS_CUDA_TENSOR_CORE_H_
