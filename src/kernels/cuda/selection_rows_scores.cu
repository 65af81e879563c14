// Scores of blocks for the pooled queries of bands of rows, on tensor cores: the pools of two query
// heads are the rows of a product, and blocks its columns. A warp keeps the codes of some blocks in
// registers for all query heads that its block of threads has in shared memory.
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/bytes.h"
#include "kernels/cuda/code_products.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/memory.h"
#include "kernels/cuda/selection_rows.h"
#include "kernels/cuda/warp.h"

// Compiled without contraction of products and sums, as the definition is.
namespace headway::cuda {
namespace {

constexpr int kScoreWarps = 8;
constexpr int kThreads = kScoreWarps * kWarp;
constexpr int kOfMultiprocessor = 2;  // blocks of threads that it has at once
constexpr int kColumns = 8;           // blocks of a product
static_assert(2 * kPools == 16);      // its rows

template <int kDim>
struct RowsShape {
  static constexpr int kTiles = kDim <= 128 ? 4 : 2;  // of a product's blocks, that a warp has
  static constexpr int kBlocks = kColumns * kTiles;
  static constexpr int kWords = kDim / 16;  // of a lane, of a row of codes
  static constexpr int kSteps = kWords / 2;
  // Pairs of query heads that a block of threads has at once, of one KV head: shared memory holds
  // those of two blocks.
  static constexpr int kPairs = kDim <= 128 ? 8 : 4;
};

// Query heads of a block of threads, of one KV head: of several bands, or where there are
// candidates, which are those of a list, of one.
struct ScoredQueries {
  int first;  // counted over all bands
  int count;

  __device__ static ScoredQueries Of(const RowsWork& work, int index, int at_once) {
    if (work.among.blocks == nullptr) {
      const int first = index * at_once;
      return {first, min(at_once, work.bands * work.group - first)};
    }
    const int of_band = (work.group + at_once - 1) / at_once;
    const int member = index % of_band * at_once;
    return {index / of_band * work.group + member, min(at_once, work.group - member)};
  }
};

// Pairs of query heads of one KV head.
template <int kDim>
struct SharedQueries {
  using Shape = RowsShape<kDim>;
  static constexpr int kHeads = 2 * Shape::kPairs;
  static constexpr int kPieces = kCodeParts * Shape::kSteps * kWarp;  // of a query head
  // A lane's factors of a step: pool lane / 4 of the first of two heads and of the second one.
  uint4 codes[Shape::kPairs][kCodeParts][Shape::kSteps][kWarp];
  int64_t heads[kHeads];
  selection::QueryFactors factors[kHeads][kPools];
  uint32_t tops[kHeads][kPools];
  alignas(16) float2 scales[kScoreWarps][Shape::kBlocks];  // of a warp's blocks

  // Has barriers.
  __device__ void Load(const RowsWork& work, int head, const ScoredQueries& scored) {
    const int thread = static_cast<int>(threadIdx.x);
    if (thread < scored.count) {
      const int band = (scored.first + thread) / work.group;
      heads[thread] = (int64_t{band} * work.heads + head) * work.group + scored.first + thread -
                      band * work.group;
    }
    __syncthreads();
    const auto* const from = reinterpret_cast<const uint2*>(work.scratch.codes);
    auto* const to = reinterpret_cast<uint4*>(codes);
    const int pieces = (scored.count + 1) / 2 * kPieces;
#pragma unroll 4
    for (int i = thread; i < pieces; i += kThreads) {
      const int upper = i / kPieces * 2;
      const int lower = min(upper + 1, scored.count - 1);  // of one without a second, whatever
      const uint2 a = __ldcg(from + heads[upper] * kPieces + i % kPieces);
      const uint2 b = __ldcg(from + heads[lower] * kPieces + i % kPieces);
      to[i] = make_uint4(a.x, b.x, a.y, b.y);
    }
    for (int i = thread; i < scored.count * kPools; i += kThreads) {
      const float2 some = __ldcg(reinterpret_cast<const float2*>(
          work.scratch.factors + heads[i / kPools] * kPools + i % kPools));
      factors[i / kPools][i % kPools] = {some.x, some.y};
      tops[i / kPools][i % kPools] = 0;
    }
    __syncthreads();
  }
};

// What a block of threads scores.
struct ScoredEntries {
  int64_t list;  // which has candidates, if there are any
  int count;
  int first_segment;  // of the head's group
  int head_in_group;
};

// A lane's words of the summaries of a warp's blocks: of column lane / 4 of each product.
template <int kDim, int kLoad>
struct BlockColumns {
  using Shape = RowsShape<kDim>;
  uint32_t words[Shape::kTiles][2][Shape::kWords];  // [row of codes]

  // The lane's blocks, from entry `begin` on; -1 behind the last one.
  struct Blocks {
    int of[Shape::kTiles];
  };
  __device__ static Blocks Find(const RowsWork& work, const ScoredEntries& entries, int begin) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    Blocks blocks;
#pragma unroll
    for (int tile = 0; tile < Shape::kTiles; ++tile) {
      const int entry = begin + tile * kColumns + lane / 4;
      blocks.of[tile] = entry < entries.count ? work.BlockAt(entries.list, entry) : -1;
    }
    return blocks;
  }

  // What is behind the last one is 0. All lanes of a warp call it.
  __device__ void Load(const ScoreRowsWork& work, const ScoredEntries& entries,
                       const Blocks& blocks, float2 (&scales)[Shape::kBlocks]) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    float2 scale[Shape::kTiles];
#pragma unroll
    for (int tile = 0; tile < Shape::kTiles; ++tile) {
      scale[tile] = LoadBlock(work, entries, blocks.of[tile], words[tile]);
    }
    __syncwarp();  // those before are no longer read
#pragma unroll
    for (int tile = 0; tile < Shape::kTiles; ++tile) {
      if (lane % 4 == 0) scales[tile * kColumns + lane / 4] = scale[tile];
    }
    __syncwarp();
  }

 private:
  __device__ static float2 LoadBlock(const ScoreRowsWork& work, const ScoredEntries& entries,
                                     int block, uint32_t (&words)[2][Shape::kWords]) {
    const int column = static_cast<int>(threadIdx.x) % 4;
    const std::byte* record = nullptr;
    float2 scale = make_float2(0.0f, 0.0f);
    if (block >= 0) {
      const int segment = work.table.SegmentOf(block);
      const std::byte* summary = work.table.Place(entries.first_segment + segment);
      record = summary + entries.head_in_group * work.codes_head_stride +
               int64_t{block} * 2 * work.rows.head_dim;
      scale = __ldg(reinterpret_cast<const float2*>(
          summary + work.scales_offset +
          (entries.head_in_group * work.scales_head_stride + int64_t{block} * 2) * 4));
    }
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      LoadCodeWords<kLoad>(record == nullptr ? nullptr : record + row * work.rows.head_dim,
                           work.rows.head_dim, column, words[row]);
    }
    return scale;
  }
};

// The sums of a pair's codes by those of kTiles products' blocks from `tile` on, in row kRow.
template <Signs kSigns, int kRow, int kTiles, int kDim, int kLoad>
__device__ void MultiplyBlocks(const BlockColumns<kDim, kLoad>& blocks, int tile,
                               const uint4 (&codes)[kCodeParts][RowsShape<kDim>::kSteps][kWarp],
                               int32_t (&sums)[kTiles][4]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  int32_t high_sums[kTiles][4] = {};
  int32_t low_sums[kTiles][4] = {};
#pragma unroll
  for (int step = 0; step < RowsShape<kDim>::kSteps; ++step) {
    const uint4 high = codes[CodePart(kRow, 0)][step][lane];
    const uint4 low = codes[CodePart(kRow, 1)][step][lane];
    const uint32_t a_high[4] = {high.x, high.y, high.z, high.w};
    const uint32_t a_low[4] = {low.x, low.y, low.z, low.w};
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      const auto& words = blocks.words[tile + i][kRow];
      const uint32_t b[2] = {words[2 * step], words[2 * step + 1]};
      MultiplyBytes<Signs::kSigned, kSigns>(high_sums[i], a_high, b);
      MultiplyBytes<Signs::kUnsigned, kSigns>(low_sums[i], a_low, b);
    }
  }
#pragma unroll
  for (int tile_sum = 0; tile_sum < kTiles; ++tile_sum) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      sums[tile_sum][i] =
          static_cast<int32_t>(static_cast<uint32_t>(high_sums[tile_sum][i]) * 256u +
                               static_cast<uint32_t>(low_sums[tile_sum][i]));
    }
  }
}

// One of a block of threads' pairs of query heads; `heads` are those from its first one on.
struct Pair {
  int index;
  int heads;
};

// Scores of a warp's blocks, from entry `begin` of `count` on, for the pooled queries of a pair.
template <SummaryKind kKind, int kDim, int kLoad>
__device__ void ScorePair(const BlockColumns<kDim, kLoad>& blocks, const RowsWork& work, int begin,
                          int count, Pair pair, SharedQueries<kDim>& queries) {
  using Shape = RowsShape<kDim>;
  constexpr Signs kSecond = kKind == SummaryKind::kMoments ? Signs::kUnsigned : Signs::kSigned;
  constexpr int kAtOnce = 2;  // products' blocks: registers hold no more sums
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int pool = lane / 4;
  const int column = 2 * (lane % 4);
  const auto& scales = queries.scales[threadIdx.x / kWarp];
  const int first_head = 2 * pair.index;
  const selection::QueryFactors factors[2] = {queries.factors[first_head][pool],
                                              queries.factors[first_head + 1][pool]};
  float* to[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    to[i] = work.scratch.scores +
            (queries.heads[first_head + i] * work.entries + begin + column) * kPools + pool;
  }
  float best[2] = {-INFINITY, -INFINITY};
#pragma unroll
  for (int tile = 0; tile < Shape::kTiles; tile += kAtOnce) {
    int32_t first[kAtOnce][4];
    int32_t second[kAtOnce][4];
    MultiplyBlocks<Signs::kSigned, 0>(blocks, tile, queries.codes[pair.index], first);
    MultiplyBlocks<kSecond, 1>(blocks, tile, queries.codes[pair.index], second);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int in_warp = (tile + i) * kColumns;
      const float4 two = *reinterpret_cast<const float4*>(&scales[in_warp + column]);
#pragma unroll
      for (int at = 0; at < 4; ++at) {  // head at / 2, block at % 2
        const int head = at / 2;
        const float2 scale = at % 2 == 0 ? make_float2(two.x, two.y) : make_float2(two.z, two.w);
        float score;
        if constexpr (kKind == SummaryKind::kMoments) {
          score =
              selection::MomentScore(factors[head], scale.x, first[i][at], scale.y, second[i][at]);
        } else {
          score = selection::BoxScore(factors[head], scale.x, first[i][at] + second[i][at]);
        }
        if (begin + in_warp + column + at % 2 < count && head < pair.heads) {
          best[head] = fmaxf(best[head], score);
          to[head][(in_warp + at % 2) * kPools] = score;
        }
      }
    }
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int apart = 1; apart < 4; apart *= 2) {
      best[i] = fmaxf(best[i], __shfl_xor_sync(kAllLanes, best[i], apart));
    }
    if (lane % 4 == 0 && i < pair.heads) {
      atomicMax(&queries.tops[first_head + i][pool], OrderedBits(__float_as_uint(best[i])));
    }
  }
}

// Grid: tiles of a head's entries, heads, query heads of all bands.
template <SummaryKind kKind, int kDim, int kLoad>
__global__ void __launch_bounds__(kThreads, kOfMultiprocessor)
    Scores(const __grid_constant__ ScoreRowsWork work) {
  using Shape = RowsShape<kDim>;
  using Columns = BlockColumns<kDim, kLoad>;
  FollowPrevious();
  extern __shared__ uint4 memory[];
  auto& queries = *reinterpret_cast<SharedQueries<kDim>*>(memory);
  const RowsWork& rows = work.rows;
  const int head = static_cast<int>(blockIdx.y);
  const ScoredQueries scored =
      ScoredQueries::Of(rows, static_cast<int>(blockIdx.z), queries.kHeads);
  const int64_t list = int64_t{scored.first / rows.group} * rows.heads + head;
  const int group = work.table.group_heads.Divide(head);
  const ScoredEntries entries = {list, rows.Entries(list), group * work.table.group_segments,
                                 work.table.InGroup(head)};
  const int tile = static_cast<int>(blockIdx.x) * work.tile_blocks;
  if (tile >= entries.count) return;
  const int end = min(entries.count, tile + work.tile_blocks);
  constexpr int kApart = kScoreWarps * Shape::kBlocks;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  int begin = tile + warp * Shape::kBlocks;
  Columns blocks;
  blocks.Load(work, entries, Columns::Find(rows, entries, begin), queries.scales[warp]);
  queries.Load(rows, head, scored);
  for (; begin < end; begin += kApart) {
    const auto next = Columns::Find(rows, entries, begin + kApart);
#pragma unroll 1
    for (int pair = 0; 2 * pair < scored.count; ++pair) {
      ScorePair<kKind>(blocks, rows, begin, entries.count, {pair, scored.count - 2 * pair},
                       queries);
    }
    if (begin + kApart < end) blocks.Load(work, entries, next, queries.scales[warp]);
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < scored.count * kPools; i += kThreads) {
    atomicMax(rows.scratch.tops + queries.heads[i / kPools] * kPools + i % kPools,
              queries.tops[i / kPools][i % kPools]);
  }
}

template <SummaryKind kKind, int kDim, int kLoad>
cudaError_t LaunchScores(cudaStream_t stream, ScoreRowsWork work) {
  constexpr auto kKernel = Scores<kKind, kDim, kLoad>;
  constexpr int kBytes = sizeof(SharedQueries<kDim>);
  constexpr int kHeads = SharedQueries<kDim>::kHeads;
  static_assert(kDim == RowCodesDim(kDim));
  const cudaError_t error =
      cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (error != cudaSuccess) return error;
  const RowsWork& rows = work.rows;
  const int queries = rows.among.blocks == nullptr ? CeilDiv(rows.bands * rows.group, kHeads)
                                                   : rows.bands * CeilDiv(rows.group, kHeads);
  // As many tiles as fill the device once, of whole rounds of a block's warps.
  const int tiles = std::max(1, kOfMultiprocessor * Multiprocessors() / (rows.heads * queries));
  work.tile_blocks = RoundUp(CeilDiv(rows.entries, tiles), kScoreWarps * RowsShape<kDim>::kBlocks);
  const dim3 grid(static_cast<unsigned>(CeilDiv(rows.entries, work.tile_blocks)),
                  static_cast<unsigned>(rows.heads), static_cast<unsigned>(queries));
  return LaunchKernel(kKernel, grid, kThreads, kBytes, stream, work);
}

template <SummaryKind kKind, int kLoad>
cudaError_t LaunchScoresOf(cudaStream_t stream, const ScoreRowsWork& work) {
  if (work.rows.head_dim <= 64) return LaunchScores<kKind, 64, kLoad>(stream, work);
  if (work.rows.head_dim <= 128) return LaunchScores<kKind, 128, kLoad>(stream, work);
  return LaunchScores<kKind, 256, kLoad>(stream, work);
}

}  // namespace

cudaError_t ScoreRows(cudaStream_t stream, SummaryKind kind, CodeLoads loads,
                      const ScoreRowsWork& work) {
  if (kind == SummaryKind::kMoments) {
    return loads == CodeLoads::kBytes16 ? LaunchScoresOf<SummaryKind::kMoments, 16>(stream, work)
                                        : LaunchScoresOf<SummaryKind::kMoments, 8>(stream, work);
  }
  return loads == CodeLoads::kBytes16 ? LaunchScoresOf<SummaryKind::kBoxes, 16>(stream, work)
                                      : LaunchScoresOf<SummaryKind::kBoxes, 8>(stream, work);
}

}  // namespace headway::cuda
