// Queries of a decode as products of codes have them: a query's code of 16 bits is 256 times a
// signed byte and an unsigned one, and each makes a sum of its own. 8 query heads of a KV head are
// the columns of a product. Included where products and sums are not contracted.
#ifndef HEADWAY_KERNELS_CUDA_SELECTION_QUERIES_H_
#define HEADWAY_KERNELS_CUDA_SELECTION_QUERIES_H_

#include <cstdint>

#include "kernels/cuda/code_products.h"
#include "kernels/cuda/elements.h"
#include "kernels/cuda/selection_keys.h"
#include "kernels/cuda/warp.h"

namespace headway::cuda {

inline constexpr int kProductQueries = 8;

__device__ inline float LoadQ(const QueryWork& work, int64_t index) {
  switch (static_cast<DType>(work.q_dtype)) {
    case DType::kBF16:
      return AsFloat(static_cast<const __nv_bfloat16*>(work.q)[index]);
    case DType::kF16:
      return AsFloat(static_cast<const __half*>(work.q)[index]);
    case DType::kF32:
      break;
  }
  return static_cast<const float*>(work.q)[index];
}

// A lane's channels of a query, every kWarp-th from its own on; 0 behind head_dim, and where there
// is no query.
template <int kDim>
struct QueryChannels {
  static constexpr int kOfLane = (kDim + kWarp - 1) / kWarp;
  float of[kOfLane];

  // `first` is the query's first element. No load waits for one before it.
  __device__ void Load(const QueryWork& work, int64_t first, bool there) {
    switch (static_cast<DType>(work.q_dtype)) {
      case DType::kBF16:
        return LoadAs<DType::kBF16>(work, first, there);
      case DType::kF16:
        return LoadAs<DType::kF16>(work, first, there);
      case DType::kF32:
        return LoadAs<DType::kF32>(work, first, there);
    }
  }
  // Rotates them as the work says.
  __device__ void Turn(const QueryWork& work, int64_t first, bool there) {
    if (work.turn.rotary_dim == 0 || !there) return;
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) {
      const int channel = static_cast<int>(threadIdx.x) % kWarp + i * kWarp;
      const auto load = [&](int at) { return LoadQ(work, first + at); };
      if (channel < work.head_dim) of[i] = work.turn.At(0, channel, load);
    }
  }

 private:
  template <DType kType>
  __device__ void LoadAs(const QueryWork& work, int64_t first, bool there) {
    const auto* q = static_cast<const typename ElementOf<kType>::Type*>(work.q) + first;
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) {
      const int channel = static_cast<int>(threadIdx.x) % kWarp + i * kWarp;
      of[i] = there && channel < work.head_dim ? AsFloat(q[channel]) : 0.0f;
    }
  }
};

// Codes of the queries of a KV head, cut into bytes.
template <int kDim>
struct QueryCodes {
  // High bytes, low bytes; of what the first row is multiplied by, and the second.
  alignas(16) uint8_t bytes[2][2][kProductQueries][kDim];
  float2 factors[kProductQueries];  // as shared memory may have them, which nothing initialises

  __device__ void Set(int row, int query, int channel, int32_t code) {
    bytes[0][row][query][channel] = static_cast<uint8_t>(code >> 8);
    bytes[1][row][query][channel] = static_cast<uint8_t>(code & 0xFF);
  }

  __device__ selection::QueryFactors FactorsOf(int query) const {
    return {factors[query].x, factors[query].y};
  }

  // A warp makes the codes of one query; `first` is its first element, `there` whether there is
  // such a query.
  template <SummaryKind kKind>
  __device__ void Make(const QueryWork& work, int64_t first, int query, bool there) {
    QueryChannels<kDim> channels;
    channels.Load(work, first, there);
    channels.Turn(work, first, there);
    Make<kKind>(work, channels.of, query);
  }
  // Of a query's channels.
  template <SummaryKind kKind, int kOfLane>
  __device__ void Make(const QueryWork& work, const float (&q)[kOfLane], int query) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    uint32_t largest = 0;
    uint32_t largest_square = 0;
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) {
      largest = max(largest, selection::SizeBits(q[i]));
      largest_square = max(largest_square, selection::SizeBits(q[i] * q[i]));
    }
    largest = __reduce_max_sync(kAllLanes, largest);
    largest_square = __reduce_max_sync(kAllLanes, largest_square);
    const selection::RowScale scale =
        selection::ScaleOf(__uint_as_float(largest), selection::kQueryLevels);
    const selection::RowScale square_scale =
        selection::ScaleOf(__uint_as_float(largest_square), selection::kQueryLevels);
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) {
      const int channel = lane + i * kWarp;
      if (channel >= kDim) break;
      const int32_t code = scale.scale == 0.0f ? 0 : selection::Nearest(q[i] * scale.inverse);
      if constexpr (kKind == SummaryKind::kMoments) {
        Set(0, query, channel, code);
        Set(1, query, channel,
            square_scale.scale == 0.0f ? 0
                                       : selection::Nearest(q[i] * q[i] * square_scale.inverse));
      } else if constexpr (kKind == SummaryKind::kPairs) {
        Set(0, query, channel, code);
        Set(1, query, channel, code);
      } else {
        // max(q·least, q·greatest) is q·least of a negative q, and q·greatest of any other.
        Set(0, query, channel, min(code, 0));
        Set(1, query, channel, max(code, 0));
      }
    }
    if (lane == 0) {
      const selection::QueryFactors of =
          selection::MomentFactors(scale.scale, square_scale.scale, work.scale);
      factors[query] = make_float2(of.first, of.second);
    }
  }
};

// The sums of 16 blocks' codes by 8 queries' codes.
template <Signs kSigns, int kWords>
__device__ void MultiplyRows(const uint32_t (&upper)[kWords], const uint32_t (&lower)[kWords],
                             const uint32_t (&high)[kWords], const uint32_t (&low)[kWords],
                             int32_t (&sums)[4]) {
  int32_t high_sums[4] = {};
  int32_t low_sums[4] = {};
#pragma unroll
  for (int word = 0; word < kWords; word += 2) {
    const uint32_t a[4] = {upper[word], lower[word], upper[word + 1], lower[word + 1]};
    const uint32_t b_high[2] = {high[word], high[word + 1]};
    const uint32_t b_low[2] = {low[word], low[word + 1]};
    MultiplyBytes<kSigns, Signs::kSigned>(high_sums, a, b_high);
    MultiplyBytes<kSigns, Signs::kUnsigned>(low_sums, a, b_low);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    sums[i] = static_cast<int32_t>(static_cast<uint32_t>(high_sums[i]) * 256u +
                                   static_cast<uint32_t>(low_sums[i]));
  }
}

// Histograms, sums and counts, for the kernel behind.
__device__ inline void ClearSums(const SelectionScratch& scratch, int heads, int group) {
  const int64_t threads = int64_t{gridDim.x} * gridDim.y * gridDim.z * blockDim.x;
  const int64_t block = (int64_t{blockIdx.z} * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  const int64_t thread = block * blockDim.x + threadIdx.x;
  for (int64_t i = thread; i < int64_t{heads} * selection::kWorthCodes; i += threads) {
    scratch.histograms[i] = 0;
  }
  auto* sums = reinterpret_cast<uint64_t*>(scratch.query_sums);
  constexpr int64_t kWords = sizeof(SelectionScratch::QuerySums) / sizeof(uint64_t);
  for (int64_t i = thread; i < int64_t{heads} * group * kWords; i += threads) {
    sums[i] = 0;
  }
}

// The largest logits of query heads, for a second look.
__device__ inline void ClearTops(const SelectionScratch& scratch, int query_heads) {
  for (int i = static_cast<int>(threadIdx.x); i < query_heads; i += static_cast<int>(blockDim.x)) {
    scratch.tops[i] = 0;
  }
}

}  // namespace headway::cuda

#endif  // HEADWAY_KERNELS_CUDA_SELECTION_QUERIES_H_
