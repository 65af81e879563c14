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
#include "kernels/cuda/selection_attend_rows.h"
#include "kernels/cuda/selection_by_keys.h"
#include "kernels/cuda/warp.h"
#include "kernels/selection_key_math.h"
#include "kernels/selection_math.h"

// Compiled without contraction of products and sums, as the definition is.
namespace headway::cuda {
namespace {

constexpr int kSummaryWarps = 4;

struct SummariesWork {
  const std::byte* k;
  const std::byte* params;  // of pages in an encoding
  RowTurn turn;
  int64_t page_stride;
  int64_t head_stride;
  int64_t params_page_stride;
  int64_t params_head_stride;
  std::byte* codes;
  float* scales;
  std::byte* sketch;
  int64_t codes_head_stride;
  int64_t scales_head_stride;
  int64_t sketch_head_stride;
  int64_t first_slot;
  int32_t blocks;  // of a head
  int32_t block_slots;
  int32_t page_slots;
  int32_t head_dim;
  int32_t row_bytes;
};

// Two neighbouring numbers of a row that has no encoding.
template <Rows kRows>
__device__ inline float2 Pair(const std::byte* at) {
  if constexpr (kRows == Rows::kBF16) {
    return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(at));
  } else if constexpr (kRows == Rows::kF16) {
    return __half22float2(*reinterpret_cast<const __half2*>(at));
  } else {
    return *reinterpret_cast<const float2*>(at);
  }
}

__device__ uint32_t Larger(uint32_t bits, float2 x) {
  return max(bits, max(selection::SizeBits(x.x), selection::SizeBits(x.y)));
}

// The rows of a block's keys.
template <Rows kRows>
struct BlockRows {
  const std::byte* keys;
  const std::byte* params;
  int64_t first_row;  // of the table of angles

  // Two neighbouring channels of slot `slot`.
  __device__ float2 Load(const SummariesWork& work, int slot, int channel) const {
    const std::byte* const row = keys + int64_t{slot} * work.row_bytes;
    if constexpr (!IsEncoded(kRows)) {
      if (work.turn.rotary_dim == 0) return Pair<kRows>(row + channel * (BytesOfEight(kRows) / 8));
    }
    const auto in_page = static_cast<int>((work.first_slot + first_row + slot) % work.page_slots);
    const KeyRow<kRows> key = {row, params, work.head_dim, in_page, work.page_slots};
    const auto at = [&](int of) { return key.At(of); };
    return make_float2(work.turn.At(first_row + slot, channel, at),
                       work.turn.At(first_row + slot, channel + 1, at));
  }
};

template <Rows kRows>
__device__ BlockRows<kRows> KeysOf(const SummariesWork& work, int64_t head, int block) {
  const int64_t first_row = int64_t{block} * work.block_slots;
  const int64_t slot = work.first_slot + first_row;
  const int64_t page = slot / work.page_slots;
  return {work.k + head * work.head_stride + page * work.page_stride +
              slot % work.page_slots * work.row_bytes,
          work.params + head * work.params_head_stride + page * work.params_page_stride, first_row};
}

// A channel's sketch, slot by slot.
struct ChannelSketch {
  float mean;
  float middle;
  uint32_t signs = 0;
  uint32_t sizes = 0;

  __device__ static ChannelSketch Of(float2 scales, int32_t mean, uint32_t variance, float step) {
    const float root = __fsqrt_rn(static_cast<float>(variance));
    return {selection::SketchMean(scales.x, mean),
            selection::SketchMiddle(selection::SizesOf(root), step)};
  }
  __device__ void Add(float key, int bit) {
    signs |= (selection::SketchSign(key, mean) ? 1u : 0u) << bit;
    sizes |= (selection::SketchIsFar(key, mean, middle) ? 1u : 0u) << bit;
  }
};

// The sum over a warp's pairs of channels, in every lane, as selection::SumOfLanes has it.
template <int kPairs>
__device__ float SumOfProducts(const float2 (&products)[kPairs]) {
  constexpr int kRun = selection::kDotLanes / 2;  // lanes of as many neighbouring channels
  const int in_run = static_cast<int>(threadIdx.x) % kRun;
  float low = 0.0f;
  float high = 0.0f;
#pragma unroll
  for (int pair = 0; pair < kPairs; ++pair) {
#pragma unroll
    for (int run = 0; run < kWarp; run += kRun) {
      low += __shfl_sync(kAllLanes, products[pair].x, run + in_run);
      high += __shfl_sync(kAllLanes, products[pair].y, run + in_run);
    }
  }
#pragma unroll
  for (int apart = kRun / 2; apart > 0; apart /= 2) {
    low += __shfl_xor_sync(kAllLanes, low, apart);
    high += __shfl_xor_sync(kAllLanes, high, apart);
  }
  return low + high;
}

// The two keys that stand for a block's, whose mean is in the first row.
template <Rows kRows, int kPairs>
__device__ void TakePair(const SummariesWork& work, const BlockRows<kRows>& keys,
                         float2 (&rows)[2][kPairs]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const auto load = [&](int slot, int pair) {
    const int channel = (lane + pair * kWarp) * 2;
    return channel < work.head_dim ? keys.Load(work, slot, channel) : make_float2(0.0f, 0.0f);
  };
  float logits[2] = {-INFINITY, -INFINITY};
  int slots[2] = {0, 0};
  for (int slot = 0; slot < work.block_slots; ++slot) {
    float2 products[kPairs];
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      const float2 key = load(slot, pair);
      products[pair] = make_float2(rows[0][pair].x * key.x, rows[0][pair].y * key.y);
    }
    const float logit = selection::LogitOf(SumOfProducts(products), 1.0f);
    if (logit > logits[0]) {
      logits[1] = logits[0];
      slots[1] = slots[0];
      logits[0] = logit;
      slots[0] = slot;
    } else if (logit > logits[1]) {
      logits[1] = logit;
      slots[1] = slot;
    }
  }
#pragma unroll
  for (int pair = 0; pair < kPairs; ++pair) {
    rows[0][pair] = load(slots[0], pair);
    rows[1][pair] = load(slots[1], pair);
  }
}

template <SummaryKind kKind, Rows kRows, int kPairs>
__global__ void __launch_bounds__(kSummaryWarps* kWarp)
    Summaries(const __grid_constant__ SummariesWork work) {
  FollowPrevious();
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int block =
      static_cast<int>(blockIdx.x) * kSummaryWarps + static_cast<int>(threadIdx.x) / kWarp;
  if (block >= work.blocks) return;
  const int64_t head = blockIdx.y;
  const BlockRows<kRows> keys = KeysOf<kRows>(work, head, block);
  // Calls function(pair of the lane, its numbers) for all slots in order.
  const auto each = [&](const auto& function) {
#pragma unroll 4
    for (int i = 0; i < work.block_slots; ++i) {
#pragma unroll
      for (int pair = 0; pair < kPairs; ++pair) {
        const int channel = (lane + pair * kWarp) * 2;
        if (channel < work.head_dim) function(pair, keys.Load(work, i, channel));
      }
    }
  };

  float2 rows[2][kPairs] = {};
  uint32_t largest[2] = {};
  const float part = 1.0f / static_cast<float>(work.block_slots);
  if constexpr (kKind != SummaryKind::kBoxes) {
    each([&](int pair, float2 x) {
      rows[0][pair].x += x.x;
      rows[0][pair].y += x.y;
    });
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      rows[0][pair].x *= part;
      rows[0][pair].y *= part;
    }
  }
  if constexpr (kKind == SummaryKind::kMoments) {
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
  } else if constexpr (kKind == SummaryKind::kPairs) {
    TakePair(work, keys, rows);
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      largest[0] = Larger(Larger(largest[0], rows[0][pair]), rows[1][pair]);
    }
    largest[1] = largest[0];
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

// The sketches of blocks whose codes and scales are there; a lane takes two channels at a time.
template <Rows kRows>
__global__ void __launch_bounds__(kSummaryWarps* kWarp)
    Sketches(const __grid_constant__ SummariesWork work) {
  FollowPrevious();
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int block =
      static_cast<int>(blockIdx.x) * kSummaryWarps + static_cast<int>(threadIdx.x) / kWarp;
  if (block >= work.blocks) return;
  const int64_t head = blockIdx.y;
  const BlockRows<kRows> keys = KeysOf<kRows>(work, head, block);
  const std::byte* const codes =
      work.codes + head * work.codes_head_stride + int64_t{block} * 2 * work.head_dim;
  const float2 scales = __ldcg(reinterpret_cast<const float2*>(
      work.scales + head * work.scales_head_stride + int64_t{block} * 2));
  const float step = selection::SketchStep(__fsqrt_rn(selection::LargestVariance(scales.y)));
  std::byte* const sketch = work.sketch + head * work.sketch_head_stride +
                            int64_t{block} * (work.block_slots / 8 * 2 * work.head_dim);
  for (int channel = 2 * lane; channel < work.head_dim; channel += 2 * kWarp) {
    const uint32_t means = __ldcg(reinterpret_cast<const uint16_t*>(codes + channel));
    const uint32_t variances =
        __ldcg(reinterpret_cast<const uint16_t*>(codes + work.head_dim + channel));
    for (int first = 0; first < work.block_slots; first += 8) {
      auto low =
          ChannelSketch::Of(scales, static_cast<int8_t>(means & 0xFF), variances & 0xFF, step);
      auto high = ChannelSketch::Of(scales, static_cast<int8_t>(means >> 8), variances >> 8, step);
#pragma unroll
      for (int bit = 0; bit < 8; ++bit) {
        const float2 key = keys.Load(work, first + bit, channel);
        low.Add(key.x, bit);
        high.Add(key.y, bit);
      }
      std::byte* const rows = sketch + first / 8 * 2 * work.head_dim + channel;
      *reinterpret_cast<uint16_t*>(rows) = static_cast<uint16_t>(low.signs | high.signs << 8);
      *reinterpret_cast<uint16_t*>(rows + work.head_dim) =
          static_cast<uint16_t>(low.sizes | high.sizes << 8);
    }
  }
}

// Pages in an encoding are summarised where a session comes up: one kernel does for all heads.
template <SummaryKind kKind, Rows kRows>
cudaError_t Launch(cudaStream_t stream, const SummariesWork& work, dim3 grid) {
  auto kernel = Summaries<kKind, kRows, 4>;
  if constexpr (!IsEncoded(kRows)) {
    if (work.head_dim <= 128) kernel = Summaries<kKind, kRows, 2>;
    if (work.head_dim <= 64) kernel = Summaries<kKind, kRows, 1>;
  }
  return LaunchKernel(kernel, grid, kSummaryWarps * kWarp, 0, stream, work);
}

template <Rows kRows>
cudaError_t LaunchRows(cudaStream_t stream, const SummaryFormat& summary, const SummariesWork& work,
                       dim3 grid) {
  cudaError_t error = cudaErrorInvalidValue;
  if (summary.kind == SummaryKind::kMoments) {
    error = Launch<SummaryKind::kMoments, kRows>(stream, work, grid);
  } else if (summary.kind == SummaryKind::kBoxes) {
    error = Launch<SummaryKind::kBoxes, kRows>(stream, work, grid);
  } else if (summary.kind == SummaryKind::kPairs) {
    error = Launch<SummaryKind::kPairs, kRows>(stream, work, grid);
  }
  if (error != cudaSuccess || !summary.sketched()) return error;
  return LaunchKernel(Sketches<kRows>, grid, kSummaryWarps * kWarp, 0, stream, work);
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
  PageFormat read = format;
  if (item.keys.params == nullptr) read.encoding = Encoding::kNone;
  const SummariesWork work = {
      .k = item.keys.k,
      .params = item.keys.params,
      .turn = RowTurn::Back(item.rotated),
      .page_stride = item.keys.page_stride,
      .head_stride = item.keys.head_stride,
      .params_page_stride = item.keys.params_page_stride,
      .params_head_stride = item.keys.params_head_stride,
      .codes = item.codes,
      .scales = item.scales,
      .sketch = item.sketch,
      .codes_head_stride = item.codes_head_stride,
      .scales_head_stride = item.scales_head_stride,
      .sketch_head_stride = item.sketch_head_stride,
      .first_slot = item.keys.first_slot,
      .blocks = static_cast<int32_t>(blocks),
      .block_slots = summary.block_slots,
      .page_slots = format.page_slots,
      .head_dim = format.head_dim,
      .row_bytes = static_cast<int32_t>(EncodedBytes(read.encoding, read.dtype, read.head_dim)),
  };
  const dim3 grid(static_cast<unsigned>(CeilDiv(blocks, kSummaryWarps)),
                  static_cast<unsigned>(item.heads));
  return ForRows(RowsOf(read), [&](auto tag) {
    return LaunchRows<decltype(tag)::kRows>(stream, summary, work, grid);
  });
}

}  // namespace headway::cuda
