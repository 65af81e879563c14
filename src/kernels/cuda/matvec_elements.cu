// Any alignment and width: a warp an output, an element at a time.
#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/matvec.h"
#include "kernels/cuda/matvec_problem.h"
#include "kernels/cuda/warp.h"

namespace headway::cuda {
namespace {

constexpr int kElementThreads = 256;

__device__ inline float LoadElement(const void* data, int64_t index, DType dtype) {
  const auto* halves = static_cast<const uint16_t*>(data);
  if (dtype == DType::kF32) {
    return __uint_as_float(uint32_t{halves[2 * index]} | uint32_t{halves[2 * index + 1]} << 16);
  }
  if (dtype == DType::kBF16) return __uint_as_float(uint32_t{halves[index]} << 16);
  return __half2float(__ushort_as_half(halves[index]));
}

__global__ void __launch_bounds__(kElementThreads)
    ElementKernel(const __grid_constant__ MatVecProblem problem) {
  FollowPrevious();
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int output = static_cast<int>((blockIdx.x * kElementThreads + threadIdx.x) / kWarp);
  if (output >= problem.outputs) return;
  const Place place = Find(problem, output);
  float gate[kMatVecRowsMax] = {};
  for (int which = 0; which < (problem.swiglu ? 2 : 1); ++which) {
    const MatVecOp& op = problem.ops[place.op + which];
    const int64_t line = int64_t{place.out} * problem.in;
    float sum[kMatVecRowsMax] = {};
#pragma unroll 4
    for (int i = lane; i < problem.in; i += kWarp) {
      const float weight = LoadElement(op.weight, line + i, op.dtype);
#pragma unroll
      for (int row = 0; row < kMatVecRowsMax; ++row) {
        if (row < problem.rows) {
          const int64_t at = int64_t{row} * problem.in + i;
          sum[row] = fmaf(LoadElement(problem.x, at, problem.activation), weight, sum[row]);
        }
      }
    }
#pragma unroll
    for (int row = 0; row < kMatVecRowsMax; ++row) {
#pragma unroll
      for (int distance = kWarp / 2; distance > 0; distance /= 2) {
        sum[row] += __shfl_xor_sync(kAllLanes, sum[row], distance);
      }
      if (lane == 0 && row < problem.rows) {
        if (!problem.swiglu) {
          StoreResult(op, problem.activation, row, place.out, sum[row],
                      AddedTo(op, row, place.out));
        } else if (which == 1) {
          StoreSwiGlu(problem, row, place.out, gate[row], sum[row]);
        }
      }
      gate[row] = sum[row];
    }
  }
}

}  // namespace

cudaError_t LaunchElements(cudaStream_t stream, const MatVecProblem& problem) {
  const int warps = kElementThreads / kWarp;
  return LaunchKernel(ElementKernel, (problem.outputs + warps - 1) / warps, kElementThreads, 0,
                      stream, problem);
}

}  // namespace headway::cuda
