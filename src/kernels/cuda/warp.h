// What the lanes of a warp do together.
#ifndef HEADWAY_KERNELS_CUDA_WARP_H_
#define HEADWAY_KERNELS_CUDA_WARP_H_

namespace headway::cuda {

inline constexpr int kWarp = 32;
inline constexpr unsigned kAllLanes = 0xFFFFFFFFu;

// The sum over a warp, in every lane.
__device__ inline float WarpSum(float value) {
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(kAllLanes, value, distance);
  }
  return value;
}

}  // namespace headway::cuda

#endif  // HEADWAY_KERNELS_CUDA_WARP_H_
