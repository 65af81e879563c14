// Scores of candidates by their summaries, for the kernel that goes on to list the best of them.
// Included where products and sums are not contracted.
#ifndef HEADWAY_KERNELS_CUDA_SELECTION_CANDIDATES_H_
#define HEADWAY_KERNELS_CUDA_SELECTION_CANDIDATES_H_

#include <cstdint>

#include "kernels/cuda/selection_keys.h"
#include "kernels/cuda/selection_queries.h"
#include "kernels/cuda/selection_score_rows.h"
#include "kernels/cuda/selection_units.h"
#include "kernels/cuda/warp.h"

namespace headway::cuda {

// The largest scores that the warps of a block of threads find.
using WarpMaxima = float[kListWarps][kProductQueries];

// All threads of a block call Score, with shared memory of theirs. Codes of summaries are read
// kLoad bytes at a time.
template <int kDim, int kLoad>
struct CandidateScorer {
  QueryCodes<kDim>& codes;
  WarpMaxima& maxima;

  // Scores of a unit's candidates, and the largest of each query head.
  __device__ void Score(const CandidateWork& work, const Unit& unit) {
    switch (work.kind) {
      case SummaryKind::kMoments:
        return ScoreAs<SummaryKind::kMoments>(work, unit);
      case SummaryKind::kPairs:
        return ScoreAs<SummaryKind::kPairs>(work, unit);
      default:
        return ScoreAs<SummaryKind::kBoxes>(work, unit);
    }
  }

 private:
  template <SummaryKind kKind>
  __device__ void ScoreAs(const CandidateWork& work, const Unit& unit) {
    const int thread = static_cast<int>(threadIdx.x);
    const ListWork& list = work.list;
    for (int first = 0; first < list.group; first += kProductQueries) {
      const int queries = min(kProductQueries, list.group - first);
      const int64_t query_head = int64_t{unit.head} * list.group + first;
      ScoreColumns<kKind>(work, unit, query_head, queries);
      __syncthreads();
      if (thread < queries) {
        float top = maxima[0][thread];
        for (int i = 1; i < kListWarps; ++i) top = fmaxf(top, maxima[i][thread]);
        list.scratch.maxima[(query_head + thread) * SelectionScratch::kTilesMax + unit.tile] = top;
      }
    }
  }

  // Of `queries` query heads from `query_head` on.
  template <SummaryKind kKind>
  __device__ void ScoreColumns(const CandidateWork& work, const Unit& unit, int64_t query_head,
                               int queries) {
    constexpr int kRound = kListWarps * kScoreRows;
    const int warp = static_cast<int>(threadIdx.x) / kWarp;
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const ListWork& list = work.list;
    const auto block_at = [&](int i) {
      return i < unit.end ? CandidateAt(list.candidates, unit.head, i) : 0;
    };
    SummaryRows<kDim / 16, kLoad> rows;
    const auto load = [&](int begin) {
      const int i = begin + lane / 4;
      rows.Load(work, unit.head, block_at(i), block_at(i + 8));
    };
    int begin = unit.begin + warp * kScoreRows;
    load(begin);  // on their way while the queries' codes are made
    if (warp < kProductQueries) {
      codes.template Make<kKind>(work.queries, (query_head + warp) * work.queries.head_dim, warp,
                                 warp < queries);
    }
    __syncthreads();
    float best[2] = {-INFINITY, -INFINITY};
    for (; begin < unit.end; begin += kRound) {
      // Taken anew in each round: there are few, and the registers are needed elsewhere.
      QueryColumns<kKind, kDim, kLoad> columns;
      columns.Take(codes);
      float scores[4];
      columns.Score(rows, scores);
      load(begin + kRound);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int query = 2 * (lane % 4) + i % 2;
        const int entry = begin + i / 2 * 8 + lane / 4;
        if (query >= queries || entry >= unit.end) continue;
        list.scratch.scores[(query_head + query) * list.stride + entry] = scores[i];
        best[i % 2] = fmaxf(best[i % 2], scores[i]);
      }
    }
    LargestOfRows(best);
    if (lane < 4) {
      maxima[warp][2 * lane] = best[0];
      maxima[warp][2 * lane + 1] = best[1];
    }
  }
};

}  // namespace headway::cuda

#endif  // HEADWAY_KERNELS_CUDA_SELECTION_CANDIDATES_H_
