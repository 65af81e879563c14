// Scores of blocks by their summaries: products of codes of 8 bits by queries' codes of 16 bits on
// tensor cores, which take 8 bits: a query's code is 256 times a signed byte and an unsigned one,
// and each makes a sum of its own. 16 blocks are the rows of a product and 8 query heads its
// columns. Sums of integers have one result in any order, so that a lane may take 16 bytes of a
// block where it is, as whatever channels the product has there, as long as the query's bytes are
// dealt out alike.
#include <cstddef>
#include <cstdint>

#include "base/bytes.h"
#include "kernels/cuda/code_products.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/selection_keys.h"
#include "kernels/cuda/selection_queries.h"
#include "kernels/cuda/selection_score_rows.h"
#include "kernels/cuda/warp.h"

// Compiled without contraction of products and sums, as the definition is.
namespace headway::cuda {
namespace {

constexpr int kScoreWarps = 8;

// Brings the summaries of a warp's next blocks, from block `begin` on, towards the L2 cache. That
// sees later writes: it may be done before the kernels before this one are done. A table of places
// that one of them writes may not be read then.
template <int kLoad>
__device__ void FetchAhead([[maybe_unused]] const ScoreWork& work, [[maybe_unused]] int head,
                           [[maybe_unused]] int begin) {
#if __CUDA_ARCH__ >= 900
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  if (kLoad != 16 || begin >= work.table.blocks || lane > 1 || work.table.table != nullptr) return;
  const int left = work.table.blocks - begin;
  int block = begin;
  const std::byte* summary = work.table.Find(head, block);
  // The rest of them in the next segment is left out.
  const int count = min(min(kScoreRows, left), work.table.segment_blocks.Size() - block);
  const int head_in_group = work.table.InGroup(head);
  if (lane == 0) {
    const std::byte* codes = summary + work.codes_offset + head_in_group * work.codes_head_stride +
                             int64_t{block} * 2 * work.queries.head_dim;
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;"
                 :
                 : "l"(__cvta_generic_to_global(codes)), "r"(count * 2 * work.queries.head_dim)
                 : "memory");
  } else {
    const std::byte* scales = summary + work.scales_offset +
                              (head_in_group * work.scales_head_stride + int64_t{block} * 2) * 4;
    asm volatile("prefetch.global.L2 [%0];" : : "l"(__cvta_generic_to_global(scales)) : "memory");
  }
#endif
}

// A block of threads takes a tile of a KV head's blocks, for up to 8 query heads.
template <SummaryKind kKind, int kDim, int kLoad>
__global__ void __launch_bounds__(kScoreWarps* kWarp, kDim <= 128 ? 2 : 1)
    Scores(const __grid_constant__ ScoreWork work) {
  constexpr int kWords = kDim / 16;
  __shared__ QueryCodes<kDim> codes;
  __shared__ float maxima[kScoreWarps][kProductQueries];
  LetNextStart();
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / kWarp;
  const int lane = thread % kWarp;
  const int head = static_cast<int>(blockIdx.y);
  const int first_query = static_cast<int>(blockIdx.z) * kProductQueries;
  const int queries = min(kProductQueries, work.group - first_query);
  const int stride = static_cast<int>(gridDim.x) * kScoreWarps * kScoreRows;
  const int first_block = (static_cast<int>(blockIdx.x) * kScoreWarps + warp) * kScoreRows;
  constexpr int kAhead = 2;  // rounds
#pragma unroll 1
  for (int i = 0; i < kAhead; ++i) FetchAhead<kLoad>(work, head, first_block + i * stride);
  const int64_t query = (int64_t{head} * work.group + first_query + warp) * work.queries.head_dim;
  BringParameters<sizeof(SummaryWork) - BlockTable::kPlacesBytes>(work);
  BringParameters<sizeof(work.scratch)>(work.scratch);
  WaitForPrevious();
  QueryChannels<kDim> channels;
  channels.Load(work.queries, query, warp < queries);
  const int blocks = work.table.blocks;
  SummaryRows<kWords, kLoad> rows;
  const auto load = [&](int begin) {
    const int block = begin + lane / 4;
    rows.Load(work, head, min(block, blocks - 1), min(block + 8, blocks - 1));
  };
  load(first_block);  // on their way while the queries' codes are made
  ClearSums(work.scratch, work.heads, work.group);
  static_assert(kScoreWarps == kProductQueries);
  channels.Turn(work.queries, query, warp < queries);
  codes.template Make<kKind>(work.queries, channels.of, warp);
  __syncthreads();

  QueryColumns<kKind, kDim, kLoad> columns;
  columns.Take(codes);
  float best[2] = {-INFINITY, -INFINITY};
  for (int begin = first_block; begin < blocks; begin += stride) {
    float scores[4];
    columns.Score(rows, scores);
    if (begin + stride < blocks) load(begin + stride);
    FetchAhead<kLoad>(work, head, begin + kAhead * stride);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int query = 2 * (lane % 4) + i % 2;
      const int block = begin + i / 2 * 8 + lane / 4;
      if (query >= queries || block >= blocks) continue;
      const int64_t query_head = int64_t{head} * work.group + first_query + query;
      work.scratch.scores[query_head * blocks + block] = scores[i];
      best[i % 2] = fmaxf(best[i % 2], scores[i]);
    }
  }

  LargestOfRows(best);
  if (lane < 4) {
    maxima[warp][2 * lane] = best[0];
    maxima[warp][2 * lane + 1] = best[1];
  }
  __syncthreads();
  if (thread < queries) {
    float top = maxima[0][thread];
    for (int i = 1; i < kScoreWarps; ++i) top = fmaxf(top, maxima[i][thread]);
    const int64_t query_head = int64_t{head} * work.group + first_query + thread;
    work.scratch.maxima[query_head * SelectionScratch::kTilesMax + blockIdx.x] = top;
  }
}

template <SummaryKind kKind, int kLoad>
cudaError_t LaunchScores(cudaStream_t stream, const ScoreWork& work, dim3 grid) {
  const auto kernel = work.queries.head_dim <= 64    ? Scores<kKind, 64, kLoad>
                      : work.queries.head_dim <= 128 ? Scores<kKind, 128, kLoad>
                                                     : Scores<kKind, 256, kLoad>;
  return LaunchKernel(kernel, grid, kScoreWarps * kWarp, 0, stream, work);
}

}  // namespace

cudaError_t ScoreBlocks(cudaStream_t stream, SummaryKind kind, CodeLoads loads,
                        const ScoreWork& work, int tiles) {
  const dim3 grid(static_cast<unsigned>(tiles), static_cast<unsigned>(work.heads),
                  static_cast<unsigned>(CeilDiv(work.group, kProductQueries)));
  const bool wide = loads == CodeLoads::kBytes16;
  switch (kind) {
    case SummaryKind::kMoments:
      return wide ? LaunchScores<SummaryKind::kMoments, 16>(stream, work, grid)
                  : LaunchScores<SummaryKind::kMoments, 8>(stream, work, grid);
    case SummaryKind::kBoxes:
      return wide ? LaunchScores<SummaryKind::kBoxes, 16>(stream, work, grid)
                  : LaunchScores<SummaryKind::kBoxes, 8>(stream, work, grid);
    case SummaryKind::kPairs:
      return wide ? LaunchScores<SummaryKind::kPairs, 16>(stream, work, grid)
                  : LaunchScores<SummaryKind::kPairs, 8>(stream, work, grid);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace headway::cuda
