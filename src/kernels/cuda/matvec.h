// Products of weight matrices with few rows, which run at the speed of reading the weights.
#ifndef HEADWAY_KERNELS_CUDA_MATVEC_H_
#define HEADWAY_KERNELS_CUDA_MATVEC_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>

#include "base/types.h"
#include "kernels/linear.h"

namespace headway::cuda {

inline constexpr int64_t kMatVecRowsMax = 8;

// y = x · weight^T + bias for up to kMatVecRowsMax rows x [rows, in] of `activation`, which is also
// the dtype of LinearResult::kActivation. Ops whose weights have the same dtype share a launch.
// Weights may lie at any even address; those not on 16 bytes, and rows of other than a multiple of
// 8 elements, are read at a fraction of the speed.
cudaError_t MatVec(cudaStream_t stream, DType activation, const void* x, int64_t rows,
                   std::span<const LinearOp> ops);

// The first half of an MLP: gate.y [rows, out] = silu(x · gate^T + bias) * (x · up^T + bias), rows
// contiguous, in `activation`. up.y is not used.
cudaError_t MatVecSwiGlu(cudaStream_t stream, DType activation, const void* x, int64_t rows,
                         const LinearOp& gate, const LinearOp& up);

// One row whose norm is the operand: x [in] is the residual stream.
struct MatVecNorm {
  const float* x = nullptr;
  NormView norm;
};
// Whether the two below can do it: all weights of one 16-bit dtype, on 16 bytes, and a norm that is
// one.
bool CanNormMatVec(const MatVecNorm& x, std::span<const LinearOp> ops);
// MatVec and MatVecSwiGlu of the normed row, which is not rounded to `activation` in between.
cudaError_t NormMatVec(cudaStream_t stream, DType activation, const MatVecNorm& x,
                       std::span<const LinearOp> ops);
cudaError_t NormMatVecSwiGlu(cudaStream_t stream, DType activation, const MatVecNorm& x,
                             const LinearOp& gate, const LinearOp& up);

}  // namespace headway::cuda

#endif  // HEADWAY_KERNELS_CUDA_MATVEC_H_
