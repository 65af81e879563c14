// Summaries of blocks of keys. A warp takes a block of a head, a lane some pairs of neighbouring
// channels, whose sums it adds up slot by slot, in the definition's order.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "base/bytes.h"
#include "kernels/cuda/elements.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/row_turn.h"
#include "kernels/cuda/selection.h"
#include "kernels/cuda/warp.h"
#include "kernels/selection_math.h"

// Compiled without contraction of products and sums, as the definition is.
namespace headway::cuda {
namespace {

constexpr int kSummaryWarps = 4;

struct SummaryWork {
  const std::byte* k;
  RowTurn turn;
  int64_t page_stride;
  int64_t head_stride;
  std::byte* codes;
  float* scales;
  int64_t codes_head_stride;
  int64_t scales_head_stride;
  int64_t first_slot;
  int32_t blocks;  // of a head
  int32_t block_slots;
  int32_t page_slots;
  int32_t head_dim;
};

__device__ inline float2 Pair(const float* at) { return *reinterpret_cast<const float2*>(at); }
__device__ inline float2 Pair(const __half* at) {
  return __half22float2(*reinterpret_cast<const __half2*>(at));
}
__device__ inline float2 Pair(const __nv_bfloat16* at) {
  return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(at));
}

__device__ uint32_t Larger(uint32_t bits, float2 x) {
  return max(bits, max(selection::SizeBits(x.x), selection::SizeBits(x.y)));
}

template <SummaryKind kKind, DType kDType, int kPairs>
__global__ void __launch_bounds__(kSummaryWarps* kWarp)
    Summaries(const __grid_constant__ SummaryWork work) {
  using Element = typename ElementOf<kDType>::Type;
  FollowPrevious();
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int block =
      static_cast<int>(blockIdx.x) * kSummaryWarps + static_cast<int>(threadIdx.x) / kWarp;
  if (block >= work.blocks) return;
  const int64_t head = blockIdx.y;
  const int64_t slot = work.first_slot + int64_t{block} * work.block_slots;
  const auto* keys = reinterpret_cast<const Element*>(work.k + head * work.head_stride +
                                                      slot / work.page_slots * work.page_stride) +
                     slot % work.page_slots * work.head_dim;
  // Calls function(pair of the lane, its numbers) for all slots in order.
  const auto each = [&](const auto& function) {
#pragma unroll 4
    for (int i = 0; i < work.block_slots; ++i) {
#pragma unroll
      for (int pair = 0; pair < kPairs; ++pair) {
        const int channel = (lane + pair * kWarp) * 2;
        if (channel >= work.head_dim) continue;
        const Element* const key = keys + int64_t{i} * work.head_dim;
        if (work.turn.rotary_dim == 0) {
          function(pair, Pair(key + channel));
        } else {
          const int64_t row = int64_t{block} * work.block_slots + i;
          const auto at = [&](int of) { return AsFloat(key[of]); };
          function(pair,
                   make_float2(work.turn.At(row, channel, at), work.turn.At(row, channel + 1, at)));
        }
      }
    }
  };

  float2 rows[2][kPairs] = {};
  uint32_t largest[2] = {};
  if constexpr (kKind == SummaryKind::kMoments) {
    const float part = 1.0f / static_cast<float>(work.block_slots);
    each([&](int pair, float2 x) {
      rows[0][pair].x += x.x;
      rows[0][pair].y += x.y;
    });
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      rows[0][pair].x *= part;
      rows[0][pair].y *= part;
    }
    each([&](int pair, float2 x) {
      const float2 off = {x.x - rows[0][pair].x, x.y - rows[0][pair].y};
      rows[1][pair].x += off.x * off.x;
      rows[1][pair].y += off.y * off.y;
    });
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      rows[1][pair].x *= part;
      rows[1][pair].y *= part;
      largest[0] = Larger(largest[0], rows[0][pair]);
      largest[1] = Larger(largest[1], rows[1][pair]);
    }
  } else {
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      const bool there = (lane + pair * kWarp) * 2 < work.head_dim;
      rows[0][pair].x = rows[0][pair].y = there ? kInfinity : 0.0f;
      rows[1][pair].x = rows[1][pair].y = there ? -kInfinity : 0.0f;
    }
    each([&](int pair, float2 x) {
      rows[0][pair] = {fminf(rows[0][pair].x, x.x), fminf(rows[0][pair].y, x.y)};
      rows[1][pair] = {fmaxf(rows[1][pair].x, x.x), fmaxf(rows[1][pair].y, x.y)};
      largest[0] = Larger(largest[0], x);  // NaN, too
    });
    largest[1] = largest[0];
  }
  constexpr float kSecondLevels =
      kKind == SummaryKind::kMoments ? selection::kVarianceLevels : selection::kSignedLevels;
  const selection::RowScale scales[2] = {
      selection::ScaleOf(__uint_as_float(__reduce_max_sync(kAllLanes, largest[0])),
                         selection::kSignedLevels),
      selection::ScaleOf(__uint_as_float(__reduce_max_sync(kAllLanes, largest[1])), kSecondLevels)};
  std::byte* codes =
      work.codes + head * work.codes_head_stride + int64_t{block} * 2 * work.head_dim;
#pragma unroll
  for (int row = 0; row < 2; ++row) {
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      const int channel = (lane + pair * kWarp) * 2;
      if (channel >= work.head_dim) continue;
      int32_t low = 0;
      int32_t high = 0;
      if (scales[row].scale != 0.0f) {
        low = selection::Nearest(rows[row][pair].x * scales[row].inverse);
        high = selection::Nearest(rows[row][pair].y * scales[row].inverse);
      }
      *reinterpret_cast<uint16_t*>(codes + row * work.head_dim + channel) =
          static_cast<uint16_t>((low & 0xFF) | (high & 0xFF) << 8);
    }
  }
  if (lane < 2) {
    work.scales[head * work.scales_head_stride + int64_t{block} * 2 + lane] =
        lane == 0 ? scales[0].scale : scales[1].scale;
  }
}

template <SummaryKind kKind, DType kDType>
cudaError_t Launch(cudaStream_t stream, const SummaryWork& work, dim3 grid) {
  const auto kernel = work.head_dim <= 64    ? Summaries<kKind, kDType, 1>
                      : work.head_dim <= 128 ? Summaries<kKind, kDType, 2>
                                             : Summaries<kKind, kDType, 4>;
  return LaunchKernel(kernel, grid, kSummaryWarps * kWarp, 0, stream, work);
}

}  // namespace

cudaError_t Summarize(cudaStream_t stream, const PageFormat& format, const SummaryFormat& summary,
                      const SummarizeItem& item) {
  const int64_t blocks = item.keys.count / summary.block_slots;
  if (item.keys.count % summary.block_slots != 0 ||
      item.keys.first_slot % summary.block_slots != 0 ||
      !RowTurn::Takes(item.rotated, format.head_dim) ||
      blocks > std::numeric_limits<int32_t>::max() / 2) {
    return cudaErrorInvalidValue;
  }
  if (blocks == 0 || item.heads == 0) return cudaSuccess;
  const SummaryWork work = {
      .k = item.keys.k,
      .turn = RowTurn::Back(item.rotated),
      .page_stride = item.keys.page_stride,
      .head_stride = item.keys.head_stride,
      .codes = item.codes,
      .scales = item.scales,
      .codes_head_stride = item.codes_head_stride,
      .scales_head_stride = item.scales_head_stride,
      .first_slot = item.keys.first_slot,
      .blocks = static_cast<int32_t>(blocks),
      .block_slots = summary.block_slots,
      .page_slots = format.page_slots,
      .head_dim = format.head_dim,
  };
  const dim3 grid(static_cast<unsigned>(CeilDiv(blocks, kSummaryWarps)),
                  static_cast<unsigned>(item.heads));
  return WithDType(format.dtype, [&](auto dtype) {
    return summary.kind == SummaryKind::kMoments
               ? Launch<SummaryKind::kMoments, dtype.kValue>(stream, work, grid)
               : Launch<SummaryKind::kBoxes, dtype.kValue>(stream, work, grid);
  });
}

}  // namespace headway::cuda
