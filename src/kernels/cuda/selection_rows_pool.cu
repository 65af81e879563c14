// Pooled queries of bands of rows, as codes: a warp makes those of a pool of a query head.
#include <cstddef>
#include <cstdint>
#include <limits>

#include "kernels/cuda/elements.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/selection_rows.h"
#include "kernels/cuda/warp.h"
#include "kernels/cuda/workspace.h"

// Compiled without contraction of products and sums, as the definition is.
namespace headway::cuda {
namespace {

constexpr int kOfLane = kHeadDimMax / kWarp;

template <DType kType>
__device__ float QueryAt(const PoolWork& work, int64_t index) {
  return AsFloat(static_cast<const typename ElementOf<kType>::Type*>(work.q)[index]);
}

// A lane's channels of a pool: means of the rows and of their squares.
struct PooledChannels {
  float mean[kOfLane];
  float squares[kOfLane];

  template <DType kType>
  __device__ void Make(const PoolWork& work, int begin, int end, int64_t query_head) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) mean[i] = squares[i] = 0.0f;
#pragma unroll 4
    for (int row = begin; row < end; ++row) {
      const int64_t first = row * work.q_stride + query_head * work.rows.head_dim;
#pragma unroll
      for (int i = 0; i < kOfLane; ++i) {
        const int channel = lane + i * kWarp;
        if (channel >= work.rows.head_dim) break;
        const float x =
            work.turn.At(row, channel, [&](int at) { return QueryAt<kType>(work, first + at); });
        mean[i] += x;
        squares[i] += x * x;
      }
    }
    const float share = 1.0f / static_cast<float>(end - begin);
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) {
      mean[i] *= share;
      squares[i] *= share;
    }
  }
};

__device__ selection::RowScale ScaleOfWarp(const float (&x)[kOfLane]) {
  uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < kOfLane; ++i) largest = max(largest, selection::SizeBits(x[i]));
  return selection::ScaleOf(__uint_as_float(__reduce_max_sync(kAllLanes, largest)),
                            selection::kQueryLevels);
}

__device__ int32_t CodeOf(float x, const selection::RowScale& scale) {
  return scale.scale == 0.0f ? 0 : selection::Nearest(x * scale.inverse);
}

template <SummaryKind kKind, DType kType>
__global__ void __launch_bounds__(kPools* kWarp) Pool(const __grid_constant__ PoolWork work) {
  FollowPrevious();
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int pool = static_cast<int>(threadIdx.x) / kWarp;
  const int member = static_cast<int>(blockIdx.x);
  const int head = static_cast<int>(blockIdx.y);
  const int band = static_cast<int>(blockIdx.z);
  const RowsScratch& scratch = work.rows.scratch;
  const int64_t query_head = (int64_t{band} * work.rows.heads + head) * work.rows.group + member;
  for (int row_block = member; row_block < work.rows.band_lists; row_block += work.rows.group) {
    const int64_t list =
        (int64_t{band} * work.rows.band_lists + row_block) * work.rows.heads + head;
    for (int i = static_cast<int>(threadIdx.x); i < selection::kWorthCodes; i += kPools * kWarp) {
      scratch.histograms[list * selection::kWorthCodes + i] = 0;
    }
  }
  if (lane == 0) {
    scratch.sums[query_head * kPools + pool] = 0;
    scratch.tops[query_head * kPools + pool] = OrderedBits(0xFF800000u);  // -inf
  }
  // The last band may have fewer pools: their scores are made like others, and not used.
  const int begin = (band * kPools + pool) * work.rows.pool_rows;
  const int end = min(work.rows.rows, begin + work.rows.pool_rows);
  PooledChannels channels = {};
  if (begin < end) {
    channels.Make<kType>(work, begin, end, int64_t{head} * work.rows.group + member);
  }
  const selection::RowScale scale = ScaleOfWarp(channels.mean);
  const selection::RowScale square_scale = ScaleOfWarp(channels.squares);
  uint8_t* const codes =
      scratch.codes + (query_head * kCodeParts * kPools + pool) * work.rows.head_dim;
#pragma unroll
  for (int i = 0; i < kOfLane; ++i) {
    const int channel = lane + i * kWarp;
    if (channel >= work.rows.head_dim) break;
    const auto set = [&](int row, int32_t code) {
      const int64_t apart = int64_t{kPools} * work.rows.head_dim;
      codes[CodePart(row, 0) * apart + channel] = static_cast<uint8_t>(code >> 8);
      codes[CodePart(row, 1) * apart + channel] = static_cast<uint8_t>(code & 0xFF);
    };
    const int32_t code = CodeOf(channels.mean[i], scale);
    if constexpr (kKind == SummaryKind::kMoments) {
      set(0, code);
      set(1, CodeOf(channels.squares[i], square_scale));
    } else {
      // max(q·least, q·greatest) is q·least of a negative q, and q·greatest of any other.
      set(0, min(code, 0));
      set(1, max(code, 0));
    }
  }
  if (lane == 0) {
    scratch.factors[query_head * kPools + pool] =
        selection::MomentFactors(scale.scale, square_scale.scale, work.scale);
  }
}

}  // namespace

cudaError_t PoolQueries(cudaStream_t stream, SummaryKind kind, const PoolWork& work) {
  const dim3 grid(static_cast<unsigned>(work.rows.group), static_cast<unsigned>(work.rows.heads),
                  static_cast<unsigned>(work.rows.bands));
  return WithDType(static_cast<DType>(work.q_dtype), [&](auto dtype) {
    const auto kernel = kind == SummaryKind::kMoments ? Pool<SummaryKind::kMoments, dtype.kValue>
                                                      : Pool<SummaryKind::kBoxes, dtype.kValue>;
    return LaunchKernel(kernel, grid, kPools * kWarp, 0, stream, work);
  });
}

}  // namespace headway::cuda
