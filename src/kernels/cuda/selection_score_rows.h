// Scores of 16 blocks by their summaries for 8 query heads, on tensor cores: a lane's words of the
// blocks, the products, and what is made of them. Included where products and sums are not
// contracted.
#ifndef HEADWAY_KERNELS_CUDA_SELECTION_SCORE_ROWS_H_
#define HEADWAY_KERNELS_CUDA_SELECTION_SCORE_ROWS_H_

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/code_products.h"
#include "kernels/cuda/selection_keys.h"
#include "kernels/cuda/selection_queries.h"
#include "kernels/cuda/warp.h"

namespace headway::cuda {

inline constexpr int kScoreRows = 16;  // blocks of a product

// A lane's words and scales of the summaries of 16 blocks: of rows lane / 4 and 8 behind it.
template <int kWords, int kLoad>
struct SummaryRows {
  uint32_t upper[2][kWords];
  uint32_t lower[2][kWords];
  float2 scales[2];

  // Blocks of a head. Nothing is loaded on a condition: a register that may be 0 instead is copied
  // behind the load, which waits for it.
  __device__ void Load(const SummaryWork& work, int head, int upper_block, int lower_block) {
    LoadHalf(work, head, upper_block, upper, scales[0]);
    LoadHalf(work, head, lower_block, lower, scales[1]);
  }

 private:
  __device__ static void LoadHalf(const SummaryWork& work, int head, int block,
                                  uint32_t (&words)[2][kWords], float2& scale) {
    const int column = static_cast<int>(threadIdx.x) % 4;
    const int head_in_group = work.table.InGroup(head);
    const std::byte* summary = work.table.Find(head, block);
    const std::byte* record = summary + work.codes_offset + head_in_group * work.codes_head_stride +
                              int64_t{block} * 2 * work.queries.head_dim;
    scale = __ldcg(reinterpret_cast<const float2*>(
        summary + work.scales_offset +
        (head_in_group * work.scales_head_stride + int64_t{block} * 2) * 4));
#pragma unroll
    for (int of = 0; of < 2; ++of) {
      LoadRowWords<kLoad>(record + of * work.queries.head_dim, work.queries.head_dim, column,
                          words[of]);
    }
  }
};

// A lane's words of the codes of 8 query heads, and the factors of its two.
template <SummaryKind kKind, int kDim, int kLoad>
struct QueryColumns {
  static constexpr int kWords = kDim / 16;
  uint32_t high[2][kWords];
  uint32_t low[2][kWords];
  selection::QueryFactors factors[2];

  __device__ void Take(const QueryCodes<kDim>& codes) {
    const int row = static_cast<int>(threadIdx.x) % kWarp / 4;
    const int column = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      const int at = CodeWordAt<kLoad>(i, column);
#pragma unroll
      for (int of = 0; of < 2; ++of) {
        high[of][i] = *reinterpret_cast<const uint32_t*>(&codes.bytes[0][of][row][at]);
        low[of][i] = *reinterpret_cast<const uint32_t*>(&codes.bytes[1][of][row][at]);
      }
    }
    factors[0] = codes.FactorsOf(2 * column);
    factors[1] = codes.FactorsOf(2 * column + 1);
  }

  // Score i is of row lane / 4 + i / 2 * 8 and query head 2 * (lane % 4) + i % 2.
  __device__ void Score(const SummaryRows<kWords, kLoad>& rows, float (&scores)[4]) const {
    constexpr Signs kSecond = kKind == SummaryKind::kMoments ? Signs::kUnsigned : Signs::kSigned;
    int32_t first[4];
    int32_t second[4];
    MultiplyRows<Signs::kSigned>(rows.upper[0], rows.lower[0], high[0], low[0], first);
    MultiplyRows<kSecond>(rows.upper[1], rows.lower[1], high[1], low[1], second);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 scale = rows.scales[i / 2];
      if constexpr (kKind == SummaryKind::kMoments) {
        scores[i] = selection::MomentScore(factors[i % 2], scale.x, first[i], scale.y, second[i]);
      } else if constexpr (kKind == SummaryKind::kPairs) {
        scores[i] = selection::PairScore(factors[i % 2], scale.x, first[i] + second[i]);
      } else {
        scores[i] = selection::BoxScore(factors[i % 2], scale.x, first[i] + second[i]);
      }
    }
  }
};

// The largest scores of a warp's rows for query heads 2 * (lane % 4) and the one behind it, in all
// lanes.
__device__ inline void LargestOfRows(float (&best)[2]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int apart = 4; apart < kWarp; apart *= 2) {
      best[i] = fmaxf(best[i], __shfl_xor_sync(kAllLanes, best[i], apart));
    }
  }
}

}  // namespace headway::cuda

#endif  // HEADWAY_KERNELS_CUDA_SELECTION_SCORE_ROWS_H_
