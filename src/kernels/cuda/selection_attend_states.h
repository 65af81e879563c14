// The queries of a part of a list, and its state: of warps, and of a block of threads.
#ifndef HEADWAY_KERNELS_CUDA_SELECTION_ATTEND_STATES_H_
#define HEADWAY_KERNELS_CUDA_SELECTION_ATTEND_STATES_H_

#include <cstdint>

#include "kernels/cuda/attention_decode_block.h"
#include "kernels/cuda/elements.h"
#include "kernels/cuda/selection_attend.h"
#include "kernels/cuda/tensor_core.h"
#include "kernels/cuda/warp.h"

namespace headway::cuda {

// The lane's eight channels of the queries, times the scale; 0 where there is none.
template <DType kDType, int kGroup>
__device__ void LoadQueriesOf(const AttendWork& work, int64_t first, int queries, int sub,
                              float (&q)[kGroup][8]) {
#pragma unroll
  for (int query = 0; query < kGroup; ++query) {
    float values[8] = {};
    if (query < queries && sub * 8 < work.head_dim) {
      Load<kDType, 8>(work.q, first + int64_t{query} * work.head_dim + sub * 8, values);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) q[query][i] = values[i] * work.q_scale;
  }
}
template <int kGroup>
__device__ void LoadQueries(const AttendWork& work, int64_t first, int queries, int sub,
                            float (&q)[kGroup][8]) {
  switch (static_cast<DType>(work.q_dtype)) {
    case DType::kBF16:
      return LoadQueriesOf<DType::kBF16>(work, first, queries, sub, q);
    case DType::kF16:
      return LoadQueriesOf<DType::kF16>(work, first, queries, sub, q);
    case DType::kF32:
      break;
  }
  LoadQueriesOf<DType::kF32>(work, first, queries, sub, q);
}

// A warp's softmax over rounds: lane l has query l % kGroup.
template <int kGroup, int kLogits>
struct RunningSoftmax {
  static constexpr int kOfLane = (kLogits + kWarp - 1) / kWarp;
  float max = kNoKeys;
  float sum = 0.0f;  // of the lane's own weights

  // Logits become weights; `factors` is what was before is to be multiplied by.
  __device__ void Take(float* logits, float* factors) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    float mine[kOfLane];
    float top = max;
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) {
      mine[i] = lane + i * kWarp < kLogits ? logits[lane + i * kWarp] : kNoKeys;
      top = fmaxf(top, mine[i]);
    }
#pragma unroll
    for (int apart = kGroup; apart < kWarp; apart *= 2) {
      top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, apart));
    }
    const float base = Finite(top);
    const float factor = Exp2(max - base);
    sum *= factor;
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) {
      const float weight = Exp2(mine[i] - base);
      sum += weight;
      if (lane + i * kWarp < kLogits) logits[lane + i * kWarp] = weight;
    }
    if (lane < kGroup) factors[lane] = factor;
    max = top;
  }
};

// The states of a block's warps.
template <int kDim, int kWarps, int kGroup>
struct PartStates {
  alignas(16) float o[kWarps][kGroup][kDim];  // not normalised
  float max[kWarps][kGroup];
  float sum[kWarps][kGroup];

  // Takes a warp's state: o of lanes that share a key, summed over keys here.
  template <int kLogits>
  __device__ void Take(float (&of_lane)[kGroup][8], const RunningSoftmax<kGroup, kLogits>& softmax,
                       int warp, int lane) {
    float total = softmax.sum;
#pragma unroll
    for (int apart = kGroup; apart < kWarp; apart *= 2) {
      total += __shfl_xor_sync(kAllLanes, total, apart);
    }
    if (lane < kGroup) {
      max[warp][lane] = softmax.max;
      sum[warp][lane] = total;
    }
    TakeOutputs(of_lane, warp, lane);
  }
  __device__ void TakeOutputs(float (&of_lane)[kGroup][8], int warp, int lane) {
    constexpr int kLanes = kDim / 8;
#pragma unroll
    for (int query = 0; query < kGroup; ++query) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
#pragma unroll
        for (int apart = kLanes; apart < kWarp; apart *= 2) {
          of_lane[query][i] += __shfl_xor_sync(kAllLanes, of_lane[query][i], apart);
        }
      }
      if (lane < kLanes) {
        auto* to = reinterpret_cast<float4*>(&o[warp][query][lane * 8]);
        to[0] =
            make_float4(of_lane[query][0], of_lane[query][1], of_lane[query][2], of_lane[query][3]);
        to[1] =
            make_float4(of_lane[query][4], of_lane[query][5], of_lane[query][6], of_lane[query][7]);
      }
    }
  }

  // Writes the state of all, for `queries` query heads. Has barriers.
  __device__ void Write(float* o_to, float* lse_to, int queries, int head_dim) {
    __syncthreads();
    // Each thread finds the weights of warps for itself: that is sooner done than waited for.
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < queries * kDim; i += kWarps * kWarp) {
      const int query = i / kDim;
      const int channel = i % kDim;
      float top = kNoKeys;
#pragma unroll
      for (int warp = 0; warp < kWarps; ++warp) top = fmaxf(top, max[warp][query]);
      const float base = Finite(top);
      float weights[kWarps];
      float total = 0.0f;
#pragma unroll
      for (int warp = 0; warp < kWarps; ++warp) {
        weights[warp] = Exp2(max[warp][query] - base);
        total += weights[warp] * sum[warp][query];
      }
      const float factor = total == 0.0f ? 0.0f : 1.0f / total;
      float value = 0.0f;
#pragma unroll
      for (int warp = 0; warp < kWarps; ++warp) {
        value = fmaf(weights[warp] * factor, o[warp][query][channel], value);
      }
      if (channel < head_dim) o_to[int64_t{query} * head_dim + channel] = value;
      if (channel == 0) lse_to[query] = total == 0.0f ? kNoKeys : top * kLn2 + logf(total);
    }
    __syncthreads();
  }
};

}  // namespace headway::cuda

#endif  // HEADWAY_KERNELS_CUDA_SELECTION_ATTEND_STATES_H_
