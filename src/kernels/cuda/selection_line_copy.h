// Copying a block of a slab to a line of a BlockCache.
#ifndef HEADWAY_KERNELS_CUDA_SELECTION_LINE_COPY_H_
#define HEADWAY_KERNELS_CUDA_SELECTION_LINE_COPY_H_

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/memory.h"
#include "kernels/cuda/selection_attend_parts.h"
#include "kernels/cuda/selection_attend_rows.h"
#include "kernels/cuda/warp.h"
#include "kernels/page_codec.h"

namespace headway::cuda {

// By a warp; a multiple of 16 bytes. Reads of host memory are many at a time.
__device__ inline void CopyBytes(std::byte* to, const std::byte* from, int64_t bytes) {
  constexpr int kAhead = 8;
  constexpr int kStep = kWarp * 16;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int64_t at = lane * 16; at < bytes; at += kAhead * kStep) {
    uint4 some[kAhead];
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      if (at + j * kStep < bytes) some[j] = LoadStreaming(from + at + j * kStep);
    }
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      if (at + j * kStep < bytes) *reinterpret_cast<uint4*>(to + at + j * kStep) = some[j];
    }
  }
}

// By a warp, K of a block with the parameters that the block has a use for (`values` 0), or V (1).
// `work` says how pages and lines are laid out.
template <Rows kRows, typename Work>
__device__ void CopyToLine(const Work& work, const BlockAt& from, int values, std::byte* line) {
  CopyBytes(line + values * work.block_bytes, from.k + values * work.v_offset, work.block_bytes);
  if constexpr (kRows == Rows::kLossless) {
    const int64_t half = lossless::HalfParamBytes(work.page_slots, work.head_dim);
    CopyBytes(line + 2 * work.block_bytes + values * half, from.params + values * half, half);
  } else if constexpr (IsEncoded(kRows)) {
    if (values != 0) return;
    std::byte* const params = line + 2 * work.block_bytes;
    const int key_params = 4 * work.head_dim;
    CopyBytes(params, from.params, key_params);
    const int rows = 2 * ((work.head_dim + static_cast<int>(kValueGroup) - 1) /
                          static_cast<int>(kValueGroup));  // scales, then zeros, a group each
    const int chunks = work.block_slots / 8;               // of a row, 16 bytes each
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    for (int j = lane; j < rows * chunks; j += kWarp) {
      const int at = key_params + (j / chunks * work.page_slots + from.slot) * 2 + j % chunks * 16;
      *reinterpret_cast<uint4*>(params + at) = LoadStreaming(from.params + at);
    }
  }
}

}  // namespace headway::cuda

#endif  // HEADWAY_KERNELS_CUDA_SELECTION_LINE_COPY_H_
