// Products of tensor cores whose factors lie in shared memory, by warp groups of 128 threads, which
// go on while they are made ("wgmma"). Compute capability 9.0 alone, compiled for sm_90a.
//
// A tile of [rows, 64] 16-bit elements has rows of 128 bytes, one behind the other from a multiple
// of 1,024 bytes; the 16 bytes at place p of row r lie at place p ^ (r % 8), so that neither
// rows nor columns meet in a bank. Wider matrices have tiles side by side.
#ifndef HEADWAY_KERNELS_CUDA_WGMMA_H_
#define HEADWAY_KERNELS_CUDA_WGMMA_H_

#include <cstdint>

#include "base/types.h"

namespace headway::cuda {

inline constexpr int kWarpGroup = 128;  // threads
inline constexpr int kSwizzledRowBytes = 128;

// Where 16 bytes lie in a tile.
__device__ inline int SwizzledAt(int row, int place) {
  return row * kSwizzledRowBytes + (place ^ row % 8) * 16;
}

// What products call the tile at a shared address; `next` is the distance to the tile on its right,
// in bytes. Of factors whose rows are what products add over, `next` serves columns from 64 on.
__device__ inline uint64_t TileOf(uint32_t address, int next) {
  constexpr uint64_t kSwizzled = uint64_t{1} << 62;
  constexpr uint64_t kEightRows = uint64_t{8 * kSwizzledRowBytes / 16} << 32;
  return kSwizzled | kEightRows | uint64_t{static_cast<uint32_t>(next) / 16} << 16 |
         (address & 0x3FFFF) / 16;
}

// What threads, or cp.async, wrote to shared memory before a barrier is there for products behind
// this.
__device__ inline void ShowToProducts() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
// Registers are as they are before the products behind it.
__device__ inline void BeginProducts() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
// The products that were begun are a group.
__device__ inline void GroupProducts() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// All groups of products but the newest kPending are done.
template <int kPending>
__device__ inline void WaitForProducts() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// A warp group's threads have so many registers from here on, fewer or more than before.
template <int kRegisters>
__device__ inline void GiveRegisters() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ inline void TakeRegisters() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// The elements of a sum [64, 128]: a lane of a warp group's warp w has of rows 16 w + lane / 4, and
// of those 8 below, two elements of each eight columns, as of the sums of MultiplyAdd.
using WideSum = float[16][4];

// clang-format off
#define HEADWAY_EIGHT_SUMS(sum, n)                                                       \
  "+f"(sum[n][0]), "+f"(sum[n][1]), "+f"(sum[n][2]), "+f"(sum[n][3]),                    \
  "+f"(sum[n + 1][0]), "+f"(sum[n + 1][1]), "+f"(sum[n + 1][2]), "+f"(sum[n + 1][3])
#define HEADWAY_WIDE_SUM(sum)                                                            \
  HEADWAY_EIGHT_SUMS(sum, 0), HEADWAY_EIGHT_SUMS(sum, 2), HEADWAY_EIGHT_SUMS(sum, 4),    \
  HEADWAY_EIGHT_SUMS(sum, 6), HEADWAY_EIGHT_SUMS(sum, 8), HEADWAY_EIGHT_SUMS(sum, 10),   \
  HEADWAY_EIGHT_SUMS(sum, 12), HEADWAY_EIGHT_SUMS(sum, 14)
#define HEADWAY_WIDE_SUM_NAMES                                                           \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "              \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "     \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "     \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
#define HEADWAY_WGMMA(type) \
  "wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type " " HEADWAY_WIDE_SUM_NAMES
// clang-format on

// sum [64, 128] = a [64, 16] · b [128, 16] transposed, plus the sum if `add`.
template <DType kType>
__device__ inline void Multiply(WideSum& sum, uint64_t a, uint64_t b, bool add) {
  if constexpr (kType == DType::kBF16) {
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, %66, 0; " HEADWAY_WGMMA("bf16") "%64, %65, p, 1, 1, 0, 0; }"
        : HEADWAY_WIDE_SUM(sum)
        : "l"(a), "l"(b), "r"(static_cast<int>(add)));
  } else {
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, %66, 0; " HEADWAY_WGMMA("f16") "%64, %65, p, 1, 1, 0, 0; }"
        : HEADWAY_WIDE_SUM(sum)
        : "l"(a), "l"(b), "r"(static_cast<int>(add)));
  }
}

// sum [64, 128] += a [64, 16] · b [16, 128]; a is in registers, as MultiplyAdd has it.
template <DType kType>
__device__ inline void MultiplyAddWide(WideSum& sum, const uint32_t (&a)[4], uint64_t b) {
  if constexpr (kType == DType::kBF16) {
    asm volatile(HEADWAY_WGMMA("bf16") "{%64, %65, %66, %67}, %68, 1, 1, 1, 1;"
                 : HEADWAY_WIDE_SUM(sum)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  } else {
    asm volatile(HEADWAY_WGMMA("f16") "{%64, %65, %66, %67}, %68, 1, 1, 1, 1;"
                 : HEADWAY_WIDE_SUM(sum)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  }
}

#undef HEADWAY_WGMMA
#undef HEADWAY_WIDE_SUM_NAMES
#undef HEADWAY_WIDE_SUM
#undef HEADWAY_EIGHT_SUMS

}  // namespace headway::cuda

#endif  // HEADWAY_KERNELS_CUDA_WGMMA_H_
