// One launch of a product of weight matrices with few rows (matvec.h), and the kernels that take
// it. One row, and rows whose dtype is not the weights': a warp takes a line (a row of the weight
// matrix), or a part of one, at a time. Several rows of the weights' own 16-bit dtype: tensor
// cores, since there the multiplications would take longer than the weights do to arrive. Weights
// that cannot be read 16 bytes at a time: one element at a time.
//
// The two fast ones keep one batch of weights on its way while they work on another, also from one
// line to the next, and ask for the first batch before they touch x.
#ifndef HEADWAY_KERNELS_CUDA_MATVEC_PROBLEM_H_
#define HEADWAY_KERNELS_CUDA_MATVEC_PROBLEM_H_

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "base/types.h"
#include "kernels/cuda/gelu.h"
#include "kernels/linear.h"

namespace headway::cuda {

inline constexpr int kMatVecOpsMax = 4;

struct MatVecOp {
  const std::byte* weight;
  const float* bias;
  void* y;
  int64_t y_stride;
  int out;
  DType dtype;
  LinearResult result;
};

struct MatVecProblem {
  MatVecOp ops[kMatVecOpsMax];
  int op_count;
  bool swiglu;  // ops are gate and up, and y is ops[0]'s
  DType activation;
  const void* x;
  bool normed;  // x is one row of f32, and its norm the operand
  NormView norm;
  int rows;
  int in;
  int outputs;    // of all ops; of one with swiglu
  int per_block;  // outputs of a block
  int split;      // parts of a line, each a warp's
  int part_steps;
};

// Where output `index` of all ops is.
struct Place {
  int op;
  int out;
};

__device__ inline Place Find(const MatVecProblem& problem, int index) {
  Place place{0, index};
  if (!problem.swiglu) {
    while (place.op + 1 < problem.op_count && place.out >= problem.ops[place.op].out) {
      place.out -= problem.ops[place.op].out;
      ++place.op;
    }
  }
  return place;
}

__device__ inline void StoreActivation(void* y, int64_t index, DType dtype, float value) {
  if (dtype == DType::kF32) {
    static_cast<float*>(y)[index] = value;
  } else if (dtype == DType::kBF16) {
    static_cast<__nv_bfloat16*>(y)[index] = __float2bfloat16_rn(value);
  } else {
    static_cast<__half*>(y)[index] = __float2half_rn(value);
  }
}

// What a sum is added to, if it is.
__device__ inline float AddedTo(const MatVecOp& op, int row, int out) {
  if (op.result != LinearResult::kAddFloat) return 0.0f;
  return static_cast<const float*>(op.y)[row * op.y_stride + out];
}

__device__ inline void StoreResult(const MatVecOp& op, DType activation, int row, int out,
                                   float sum, float added_to) {
  if (op.bias != nullptr) sum += op.bias[out];
  const int64_t at = row * op.y_stride + out;
  if (op.result == LinearResult::kFloat || op.result == LinearResult::kAddFloat) {
    static_cast<float*>(op.y)[at] = op.result == LinearResult::kAddFloat ? added_to + sum : sum;
    return;
  }
  if (op.result == LinearResult::kRelu && sum < 0.0f) sum = 0.0f;
  if (op.result == LinearResult::kGelu || op.result == LinearResult::kGeluTanh) {
    sum = Gelu(op.result, sum);
  }
  StoreActivation(op.y, at, activation, sum);
}

__device__ inline void StoreSwiGlu(const MatVecProblem& problem, int row, int out, float gate,
                                   float up) {
  const MatVecOp& op = problem.ops[0];
  if (op.bias != nullptr) gate += op.bias[out];
  if (problem.ops[1].bias != nullptr) up += problem.ops[1].bias[out];
  StoreActivation(op.y, row * op.y_stride + out, problem.activation,
                  gate / (1.0f + expf(-gate)) * up);
}

struct DeviceLimits {
  int sms = 0;
  int block_shared = 0;  // bytes
  int sm_shared = 0;
};

// Weights of dtype kWeight, on 16 bytes.
template <DType kWeight>
cudaError_t LaunchLines(cudaStream_t stream, const DeviceLimits& limits,
                        const MatVecProblem& problem);
extern template cudaError_t LaunchLines<DType::kF32>(cudaStream_t, const DeviceLimits&,
                                                     const MatVecProblem&);
extern template cudaError_t LaunchLines<DType::kF16>(cudaStream_t, const DeviceLimits&,
                                                     const MatVecProblem&);
extern template cudaError_t LaunchLines<DType::kBF16>(cudaStream_t, const DeviceLimits&,
                                                      const MatVecProblem&);

// Weights and rows of `dtype`, which has 16 bits, on 16 bytes; the rows are not normed here.
cudaError_t LaunchTiles(cudaStream_t stream, const DeviceLimits& limits, DType dtype,
                        const MatVecProblem& problem);

// Weights of any dtype at any even address.
cudaError_t LaunchElements(cudaStream_t stream, const MatVecProblem& problem);

}  // namespace headway::cuda

#endif  // HEADWAY_KERNELS_CUDA_MATVEC_PROBLEM_H_
