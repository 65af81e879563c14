// Pooled queries of bands of rows, as codes: a warp makes those of a pool of a query head.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/cuda/elements.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/selection_rows.h"
#include "kernels/cuda/warp.h"
#include "kernels/cuda/workspace.h"

// Compiled without contraction of products and sums, as the definition is.
namespace headway::cuda {
namespace {

constexpr int kFour = 4;  // neighbouring channels of a lane, which are loaded and stored together

// A lane's channels: kOfLane / 4 times four, kWarp fours apart.
__device__ int FirstOfFour(int four) {
  return (four * kWarp + static_cast<int>(threadIdx.x) % kWarp) * kFour;
}

template <DType kType>
__device__ void LoadFour(const PoolWork& work, int64_t index, float (&x)[kFour]) {
  using Element = typename ElementOf<kType>::Type;
  using Vector = std::conditional_t<sizeof(Element) == 2, uint2, uint4>;
  const Vector vector =
      *reinterpret_cast<const Vector*>(static_cast<const Element*>(work.q) + index);
  Element raw[kFour];
  memcpy(raw, &vector, sizeof(raw));
#pragma unroll
  for (int i = 0; i < kFour; ++i) x[i] = AsFloat(raw[i]);
}

template <DType kType>
__device__ void TurnFour(const PoolWork& work, int row, int64_t first, int channel,
                         float (&x)[kFour]) {
  const auto* const q = static_cast<const typename ElementOf<kType>::Type*>(work.q) + first;
#pragma unroll
  for (int i = 0; i < kFour; ++i) {
    x[i] = work.turn.At(row, channel + i, [q](int at) { return AsFloat(q[at]); });
  }
}

// A lane's channels of a pool: means of the rows and of their squares.
template <int kOfLane>
struct PooledChannels {
  static constexpr int kFours = kOfLane / kFour;
  float mean[kFours][kFour];
  float squares[kFours][kFour];

  template <DType kType>
  __device__ void Make(const PoolWork& work, int begin, int end, int64_t query_head) {
    const auto first = [&](int row) {
      return row * work.q_stride + query_head * work.rows.head_dim;
    };
    if (work.straight != 0) {
      Add<8>(work, begin, end, [&](int row, int channel, float(&x)[kFour]) {
        LoadFour<kType>(work, first(row) + channel, x);
      });
    } else {
      Add<1>(work, begin, end, [&](int row, int channel, float(&x)[kFour]) {
        TurnFour<kType>(work, row, first(row), channel, x);
      });
    }
    const float share = 1.0f / static_cast<float>(end - begin);
#pragma unroll
    for (int four = 0; four < kFours; ++four) {
      const bool there = FirstOfFour(four) < work.rows.head_dim;
#pragma unroll
      for (int i = 0; i < kFour; ++i) {
        mean[four][i] = there ? mean[four][i] * share : 0.0f;
        squares[four][i] = there ? squares[four][i] * share : 0.0f;
      }
    }
  }

  // Adds rows one after the other, of which so many are under way at once.
  template <int kAtOnce, typename LoadRow>
  __device__ void Add(const PoolWork& work, int begin, int end, const LoadRow& load) {
    int row = begin;
    for (; row + kAtOnce <= end; row += kAtOnce) AddSome<kAtOnce>(work, row, load);
    for (; row < end; ++row) AddSome<1>(work, row, load);
  }
  // Without a branch, which loads would wait for: behind the last channels these are loaded again.
  template <int kRows, typename LoadRow>
  __device__ void AddSome(const PoolWork& work, int row, const LoadRow& load) {
    float x[kRows][kFours][kFour];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int four = 0; four < kFours; ++four) {
        load(row + r, min(FirstOfFour(four), work.rows.head_dim - kFour), x[r][four]);
      }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int four = 0; four < kFours; ++four) {
#pragma unroll
        for (int i = 0; i < kFour; ++i) {
          mean[four][i] += x[r][four][i];
          squares[four][i] += x[r][four][i] * x[r][four][i];
        }
      }
    }
  }
};

template <int kFours>
__device__ selection::RowScale ScaleOfWarp(const float (&x)[kFours][kFour]) {
  uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < kFours * kFour; ++i) {
    largest = max(largest, selection::SizeBits(x[i / kFour][i % kFour]));
  }
  return selection::ScaleOf(__uint_as_float(__reduce_max_sync(kAllLanes, largest)),
                            selection::kQueryLevels);
}

// Where word `word` of a pool's row of codes lies in its part: CodeWordAt, by lanes.
__device__ int PlaceOfCodes(const PoolWork& work, int pool, int word) {
  const int of_load = word % work.load_words;
  const int column = word / work.load_words % 4;
  const int of_lane = word / work.load_words / 4 * work.load_words + of_load;
  return ((of_lane / 2 * kPools + pool) * 4 + column) * 2 + of_lane % 2;
}

__device__ int32_t CodeOf(float x, const selection::RowScale& scale) {
  return scale.scale == 0.0f ? 0 : selection::Nearest(x * scale.inverse);
}

template <SummaryKind kKind, DType kType, int kOfLane>
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
  PooledChannels<kOfLane> channels = {};
  if (begin < end) {
    channels.template Make<kType>(work, begin, end, int64_t{head} * work.rows.group + member);
  }
  const selection::RowScale scale = ScaleOfWarp(channels.mean);
  const selection::RowScale square_scale = ScaleOfWarp(channels.squares);
  const int words_of_part = RowCodesDim(work.rows.head_dim) / kFour * kPools;
  uint32_t* const codes = scratch.codes + query_head * kCodeParts * words_of_part;
#pragma unroll
  for (int four = 0; four < kOfLane / kFour; ++four) {
    const int channel = FirstOfFour(four);
    if (channel >= RowCodesDim(work.rows.head_dim)) break;
    uint32_t words[kCodeParts] = {};
    const auto set = [&](int i, int row, int32_t code) {
      const auto bits = static_cast<uint32_t>(code);
      words[CodePart(row, 0)] |= (bits >> 8 & 0xFFu) << 8 * i;
      words[CodePart(row, 1)] |= (bits & 0xFFu) << 8 * i;
    };
#pragma unroll
    for (int i = 0; i < kFour; ++i) {
      const int32_t code = CodeOf(channels.mean[four][i], scale);
      if constexpr (kKind == SummaryKind::kMoments) {
        set(i, 0, code);
        set(i, 1, CodeOf(channels.squares[four][i], square_scale));
      } else {
        // max(q·least, q·greatest) is q·least of a negative q, and q·greatest of any other.
        set(i, 0, min(code, 0));
        set(i, 1, max(code, 0));
      }
    }
#pragma unroll
    for (int part = 0; part < kCodeParts; ++part) {
      codes[part * words_of_part + PlaceOfCodes(work, pool, channel / kFour)] = words[part];
    }
  }
  if (lane == 0) {
    scratch.factors[query_head * kPools + pool] =
        selection::MomentFactors(scale.scale, square_scale.scale, work.scale);
  }
}

template <DType kType, int kOfLane>
auto PoolOfKind(SummaryKind kind) {
  return kind == SummaryKind::kMoments ? Pool<SummaryKind::kMoments, kType, kOfLane>
                                       : Pool<SummaryKind::kBoxes, kType, kOfLane>;
}

}  // namespace

cudaError_t PoolQueries(cudaStream_t stream, SummaryKind kind, const PoolWork& work) {
  const dim3 grid(static_cast<unsigned>(work.rows.group), static_cast<unsigned>(work.rows.heads),
                  static_cast<unsigned>(work.rows.bands));
  return WithDType(static_cast<DType>(work.q_dtype), [&](auto dtype) {
    const auto kernel = work.rows.head_dim <= 4 * kWarp
                            ? PoolOfKind<dtype.kValue, 4>(kind)
                            : PoolOfKind<dtype.kValue, kHeadDimMax / kWarp>(kind);
    return LaunchKernel(kernel, grid, kPools * kWarp, 0, stream, work);
  });
}

}  // namespace headway::cuda
