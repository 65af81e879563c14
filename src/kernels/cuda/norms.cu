#include <algorithm>
#include <cstdint>

#include "kernels/cuda/elements.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/memory.h"

namespace headway::cuda {
namespace {

template <DType kType>
__device__ inline void StoreQuad(void* y, int64_t index, const float4& value) {
  if constexpr (kType == DType::kF32) {
    *reinterpret_cast<float4*>(static_cast<float*>(y) + index) = value;
  } else {
    using Element = typename ElementOf<kType>::Type;
    const Element raw[4] = {FromFloat<kType>(value.x), FromFloat<kType>(value.y),
                            FromFloat<kType>(value.z), FromFloat<kType>(value.w)};
    uint2 vector;
    memcpy(&vector, raw, sizeof(raw));
    *reinterpret_cast<uint2*>(static_cast<Element*>(y) + index) = vector;
  }
}

__device__ inline float BlockSum(float value) {
  __shared__ float sums[kWarp];
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  value = WarpSum(value);
  if (lane == 0) sums[threadIdx.x / kWarp] = value;
  __syncthreads();
  return WarpSum(lane < warps ? sums[lane] : 0.0f);
}

constexpr int kWideThreads = 1024;
constexpr int kNormItemsMax = 8;

// A row a block, or a row a warp, whose threads hold it in kItems groups of 4.
template <DType kType, int kItems, bool kWarpRow>
__global__ void __launch_bounds__(kWarpRow ? kThreads : kWideThreads)
    RmsNormKernel(const float* x, const float* weight, float eps, int64_t rows, int64_t width,
                  void* y) {
  FollowPrevious();
  const int threads = kWarpRow ? kWarp : static_cast<int>(blockDim.x);
  const int thread = static_cast<int>(threadIdx.x) % threads;
  const int64_t row =
      kWarpRow ? (int64_t{blockIdx.x} * kThreads + threadIdx.x) / kWarp : int64_t{blockIdx.x};
  if (row >= rows) return;
  const int quads = static_cast<int>(width / 4);
  const auto* from = reinterpret_cast<const float4*>(x + row * width);
  const auto* scales = reinterpret_cast<const float4*>(weight);
  // Asked for before the sum is known, unless that takes too many registers.
  constexpr bool kEarly = kWarpRow || kItems < kNormItemsMax;
  float4 values[kItems];
  float4 early[kEarly ? kItems : 1];
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const int at = thread + i * threads;
    values[i] = at < quads ? from[at] : float4{0.0f, 0.0f, 0.0f, 0.0f};
    if constexpr (kEarly) early[i] = at < quads ? scales[at] : float4{0.0f, 0.0f, 0.0f, 0.0f};
  }
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const float4& value = values[i];
    sum += (value.x * value.x + value.y * value.y) + (value.z * value.z + value.w * value.w);
  }
  sum = kWarpRow ? WarpSum(sum) : BlockSum(sum);
  const float scale = 1.0f / sqrtf(sum / static_cast<float>(width) + eps);
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const int at = thread + i * threads;
    if (at >= quads) continue;
    float4 by;
    if constexpr (kEarly) {
      by = early[i];
    } else {
      by = scales[at];
    }
    const float4& value = values[i];
    StoreQuad<kType>(y, row * width + at * 4,
                     {value.x * scale * by.x, value.y * scale * by.y, value.z * scale * by.z,
                      value.w * scale * by.w});
  }
}

// Rows of any width and alignment, a row a block.
template <DType kType>
__global__ void __launch_bounds__(kThreads)
    RmsNormAnyKernel(const float* x, const float* weight, float eps, int64_t width, void* y) {
  FollowPrevious();
  const int64_t start = int64_t{blockIdx.x} * width;
  float sum = 0.0f;
  for (int64_t i = threadIdx.x; i < width; i += kThreads) {
    sum = fmaf(x[start + i], x[start + i], sum);
  }
  const float scale = 1.0f / sqrtf(BlockSum(sum) / static_cast<float>(width) + eps);
  for (int64_t i = threadIdx.x; i < width; i += kThreads) {
    Store<kType, 1>(y, start + i, {x[start + i] * scale * weight[i]});
  }
}

// Any norm, a row a block. A thread goes through its elements up to three times: for the mean, for
// what is left without it, and for the result; a row stays in the level-1 cache. The mean comes off
// before anything is squared: the difference of two large sums would lose it. With kQuads 4
// elements at a time.
template <DType kType, bool kQuads>
__global__ void __launch_bounds__(kWideThreads)
    NormKernel(const float* x, NormView norm, int64_t width, void* y) {
  FollowPrevious();
  const int64_t start = int64_t{blockIdx.x} * width;
  const float* const from = x + start;
  const float n = static_cast<float>(width);
  const int threads = static_cast<int>(blockDim.x);
  const auto quad = [](const float* data, int64_t at) {
    return reinterpret_cast<const float4*>(data)[at];
  };
  float mean = 0.0f;
  float scale = 1.0f;
  if (norm.kind == NormKind::kLayer) {
    float sum = 0.0f;
    if constexpr (kQuads) {
      for (int64_t i = threadIdx.x; i < width / 4; i += threads) {
        const float4 v = quad(from, i);
        sum += (v.x + v.y) + (v.z + v.w);
      }
    } else {
      for (int64_t i = threadIdx.x; i < width; i += threads) sum += from[i];
    }
    mean = BlockSum(sum) / n;
  }
  if (norm.kind != NormKind::kNone) {
    float sum = 0.0f;
    const auto square = [mean](float value) { return (value - mean) * (value - mean); };
    if constexpr (kQuads) {
      for (int64_t i = threadIdx.x; i < width / 4; i += threads) {
        const float4 v = quad(from, i);
        sum += (square(v.x) + square(v.y)) + (square(v.z) + square(v.w));
      }
    } else {
      for (int64_t i = threadIdx.x; i < width; i += threads) sum += square(from[i]);
    }
    __syncthreads();  // the first sum's parts are read
    scale = 1.0f / sqrtf(BlockSum(sum) / n + norm.eps);
  }
  if constexpr (kQuads) {
    for (int64_t i = threadIdx.x; i < width / 4; i += threads) {
      const float4 v = quad(from, i);
      const float4 by =
          norm.weight == nullptr ? float4{1.0f, 1.0f, 1.0f, 1.0f} : quad(norm.weight, i);
      const float4 add = norm.bias == nullptr ? float4{0.0f, 0.0f, 0.0f, 0.0f} : quad(norm.bias, i);
      StoreQuad<kType>(y, start + i * 4,
                       {(v.x - mean) * scale * by.x + add.x, (v.y - mean) * scale * by.y + add.y,
                        (v.z - mean) * scale * by.z + add.z, (v.w - mean) * scale * by.w + add.w});
    }
  } else {
    for (int64_t i = threadIdx.x; i < width; i += threads) {
      float value = (from[i] - mean) * scale;
      if (norm.weight != nullptr) value *= norm.weight[i];
      if (norm.bias != nullptr) value += norm.bias[i];
      Store<kType, 1>(y, start + i, {value});
    }
  }
}

constexpr int kHeadNormDimMax = kWarp * 8;

// `lanes` lanes a head, 8 elements each.
template <DType kType>
__global__ void __launch_bounds__(kThreads)
    HeadNormKernel(const float* weight, float eps, int64_t tokens, int heads, int head_dim,
                   int lanes, void* x, int64_t x_stride) {
  FollowPrevious();
  const int64_t index = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / lanes;
  const int column = static_cast<int>(threadIdx.x) % lanes * 8;
  // No lane leaves: the others' shuffles need it.
  const bool active = index < tokens * heads && column < head_dim;
  const int64_t token = index / heads;
  const int64_t at = token * x_stride + (index - token * heads) * head_dim + column;
  float values[8] = {};
  float by[8];
  if (active) {
    Load<kType>(x, at, values);
    Load<DType::kF32>(weight, column, by);
  }
  float sum = 0.0f;
#pragma unroll
  for (const float value : values) sum = fmaf(value, value, sum);
  for (int distance = lanes / 2; distance > 0; distance /= 2) {
    sum += __shfl_xor_sync(kAllLanes, sum, distance);
  }
  const float scale = 1.0f / sqrtf(sum / static_cast<float>(head_dim) + eps);
  if (!active) return;
#pragma unroll
  for (int i = 0; i < 8; ++i) values[i] *= scale * by[i];
  Store<kType>(x, at, values);
}

// A warp a head.
template <DType kType>
__global__ void __launch_bounds__(kThreads)
    HeadNormAnyKernel(const float* weight, float eps, int64_t tokens, int heads, int head_dim,
                      void* x, int64_t x_stride) {
  FollowPrevious();
  const int64_t index = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / kWarp;
  if (index >= tokens * heads) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t token = index / heads;
  const int64_t start = token * x_stride + (index - token * heads) * head_dim;
  float value[1];
  float sum = 0.0f;
  for (int i = lane; i < head_dim; i += kWarp) {
    Load<kType>(x, start + i, value);
    sum = fmaf(value[0], value[0], sum);
  }
  const float scale = 1.0f / sqrtf(WarpSum(sum) / static_cast<float>(head_dim) + eps);
  for (int i = lane; i < head_dim; i += kWarp) {
    Load<kType>(x, start + i, value);
    value[0] *= scale * weight[i];
    Store<kType>(x, start + i, value);
  }
}

// Below this many rows, a row is spread over as many threads as it has work for.
constexpr int64_t kFewRows = 256;

template <DType kType>
cudaError_t LaunchRmsNorm(cudaStream_t stream, const ResidualRows& from, const NormView& norm,
                          void* y) {
  const auto [x, rows, width] = from;
  const float* const weight = norm.weight;
  const float eps = norm.eps;
  const int64_t quads = width / 4;
  if (width % 4 != 0 || !Aligned(x) || !Aligned(weight) || !Aligned(y) ||
      quads > int64_t{kWideThreads} * kNormItemsMax) {
    return LaunchKernel(RmsNormAnyKernel<kType>, static_cast<unsigned>(rows), kThreads, 0, stream,
                        x, weight, eps, width, y);
  }
  if (quads <= kWarp * kNormItemsMax && rows >= kFewRows) {
    return LaunchKernel(RmsNormKernel<kType, kNormItemsMax, true>, Blocks(rows, kThreads / kWarp),
                        kThreads, 0, stream, x, weight, eps, rows, width, y);
  }
  int64_t threads = std::min<int64_t>((quads + kWarp - 1) / kWarp * kWarp,
                                      rows < kFewRows ? kWideThreads : kThreads);
  while (threads * kNormItemsMax < quads) threads *= 2;
  const int64_t items = (quads + threads - 1) / threads;
  const auto kernel = items <= 1   ? RmsNormKernel<kType, 1, false>
                      : items <= 2 ? RmsNormKernel<kType, 2, false>
                      : items <= 4 ? RmsNormKernel<kType, 4, false>
                                   : RmsNormKernel<kType, kNormItemsMax, false>;
  return LaunchKernel(kernel, static_cast<unsigned>(rows), static_cast<unsigned>(threads), 0,
                      stream, x, weight, eps, rows, width, y);
}

// Rows are long where this is called often: a thread of a block has a quad or some.
template <DType kType>
cudaError_t LaunchAnyNorm(cudaStream_t stream, const ResidualRows& from, const NormView& norm,
                          void* y) {
  const auto [x, rows, width] = from;
  const bool quads =
      width % 4 == 0 && Aligned(x) && Aligned(y) && Aligned(norm.weight) && Aligned(norm.bias);
  const int64_t work = quads ? width / 4 : width;
  const int64_t most = rows < kFewRows ? kWideThreads : kThreads;
  const auto threads =
      static_cast<unsigned>(std::min<int64_t>((work + kWarp - 1) / kWarp * kWarp, most));
  const auto kernel = quads ? NormKernel<kType, true> : NormKernel<kType, false>;
  return LaunchKernel(kernel, static_cast<unsigned>(rows), threads, 0, stream, x, norm, width, y);
}

}  // namespace

cudaError_t Norm(cudaStream_t stream, const ResidualRows& from, const NormView& norm, DType result,
                 void* y) {
  if (from.rows == 0 || from.width == 0) return cudaSuccess;
  return WithDType(result, [&](auto dtype) {
    constexpr DType kType = decltype(dtype)::kValue;
    const bool rms = norm.kind == NormKind::kRms && norm.weight != nullptr;
    return rms ? LaunchRmsNorm<kType>(stream, from, norm, y)
               : LaunchAnyNorm<kType>(stream, from, norm, y);
  });
}

cudaError_t HeadNorm(cudaStream_t stream, DType activation, const float* weight, float eps,
                     const HeadRows& rows) {
  const int64_t heads = rows.tokens * rows.heads;
  const int dim = rows.head_dim;
  if (heads == 0 || dim == 0) return cudaSuccess;
  return WithDType(activation, [&](auto dtype) {
    constexpr DType kType = decltype(dtype)::kValue;
    if (dim % 8 == 0 && dim <= kHeadNormDimMax && Aligned(weight) &&
        RowsAligned(rows.x, rows.stride, activation)) {
      int lanes = 1;
      while (lanes * 8 < dim) lanes *= 2;
      return LaunchKernel(HeadNormKernel<kType>, Blocks(heads * lanes, kThreads), kThreads, 0,
                          stream, weight, eps, rows.tokens, rows.heads, dim, lanes, rows.x,
                          rows.stride);
    }
    return LaunchKernel(HeadNormAnyKernel<kType>, Blocks(heads * kWarp, kThreads), kThreads, 0,
                        stream, weight, eps, rows.tokens, rows.heads, dim, rows.x, rows.stride);
  });
}

}  // namespace headway::cuda
