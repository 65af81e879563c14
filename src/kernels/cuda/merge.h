// Merging partial attention states by the logarithms of their sums.
#ifndef HEADWAY_KERNELS_CUDA_MERGE_H_
#define HEADWAY_KERNELS_CUDA_MERGE_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>

#include "base/types.h"
#include "kernels/attention.h"

namespace headway::cuda {

// Enqueues Kernels::Merge. The o of a part whose lse is -inf is not read.
cudaError_t Merge(cudaStream_t stream, DType activation, int head_dim,
                  std::span<const MergeItem> items);

// A state (o, lse) of [tokens, heads] rows, and another to be merged into it. Strides count
// elements; the heads of `o` and `lse` lie head_dim and 1 apart.
struct StateMerge {
  float* o = nullptr;
  int64_t o_stride = 0;  // between tokens
  float* lse = nullptr;
  int64_t lse_stride = 0;
  const void* part_o = nullptr;  // of part_dtype
  int64_t part_o_token_stride = 0;
  int64_t part_o_head_stride = 0;
  const float* part_lse = nullptr;  // natural log; null: there is no part
  int64_t part_lse_token_stride = 0;
  int64_t part_lse_head_stride = 0;
  int64_t tokens = 0;
  int heads = 0;
  bool first = false;  // write the part instead of merging it
  // Not null: the merged output goes here, in part_dtype, and neither o nor lse is written.
  void* result = nullptr;
  int64_t result_stride = 0;  // between tokens
};
cudaError_t MergeState(cudaStream_t stream, DType part_dtype, int head_dim,
                       const StateMerge& merge);

// Enqueues Kernels::ScaleHeld.
struct HeldHeads {
  int head_dim = 0;
  int group = 0;
};
cudaError_t ScaleHeld(cudaStream_t stream, DType activation, const HeldHeads& heads,
                      std::span<const ScaleHeldItem> items);

}  // namespace headway::cuda

#endif  // HEADWAY_KERNELS_CUDA_MERGE_H_
