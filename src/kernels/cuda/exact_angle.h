// Cosine and sine of a product of a position and a frequency that is not rounded.
#ifndef HEADWAY_KERNELS_CUDA_EXACT_ANGLE_H_
#define HEADWAY_KERNELS_CUDA_EXACT_ANGLE_H_

#include <cuda_runtime.h>

#include <cstdint>

namespace headway::cuda {

// {cosine, sine}. Whole turns are left out in doubles, so that the angle is right at any position.
__device__ inline float2 ExactAngle(int32_t position, float inv_freq) {
  constexpr double kTurn = 0.15915494309189534;  // 1 / (2 pi)
  const double turns = static_cast<double>(position) * static_cast<double>(inv_freq) * kTurn;
  const auto half_turns = static_cast<float>(2.0 * (turns - rint(turns)));
  float2 angle;
  sincospif(half_turns, &angle.y, &angle.x);
  return angle;
}

}  // namespace headway::cuda

#endif  // HEADWAY_KERNELS_CUDA_EXACT_ANGLE_H_
