// GELU as the kernels of products and the kernel behind cuBLASLt's have it.
#ifndef HEADWAY_KERNELS_CUDA_GELU_H_
#define HEADWAY_KERNELS_CUDA_GELU_H_

#include "kernels/linear.h"

namespace headway::cuda {

// `kind` is kGelu or kGeluTanh. The second, x * (1 + tanh(u)) / 2, is x / (1 + exp(-2u)); an
// exponential that overflows makes it 0. A NaN stays.
__device__ inline float Gelu(LinearResult kind, float x) {
  if (kind == LinearResult::kGelu) return 0.5f * x * (1.0f + erff(0.707106781f * x));
  constexpr float kRoot = 0.797884561f;  // of 2 / pi
  return x / (1.0f + expf(-2.0f * kRoot * x * (1.0f + 0.044715f * x * x)));
}

}  // namespace headway::cuda

#endif  // HEADWAY_KERNELS_CUDA_GELU_H_
