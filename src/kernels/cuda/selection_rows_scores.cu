// Scores of blocks for the pooled queries of bands of rows: the products of selection_scores.cu,
// with the pooled queries of a query head as the columns of a product. A warp keeps the codes of
// some blocks in registers for all query heads that its block of threads has in shared memory.
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
static_assert(kPools == 8);       // columns of a product

template <int kDim>
struct RowsShape {
  static constexpr int kTiles = kDim <= 128 ? 2 : 1;  // of 16 blocks that a warp has at once
  static constexpr int kBlocks = 16 * kTiles;
  static constexpr int kWords = kDim / 16;  // of a lane, of a row of codes
  // That a block of threads has at once, of one KV head: shared memory holds those of two blocks.
  static constexpr int kQueryHeads = kDim <= 128 ? 16 : 8;
  // Between rows of codes in shared memory: 16 bytes of 2 x 4 lanes lie in different banks.
  static constexpr int kStride = kDim == 64 ? kDim : kDim + 64;
};

// The codes of some query heads of one KV head.
template <int kDim>
struct SharedQueries {
  static constexpr int kQueryHeads = RowsShape<kDim>::kQueryHeads;
  alignas(16) uint8_t codes[kQueryHeads][kCodeParts][kPools][RowsShape<kDim>::kStride];
  selection::QueryFactors factors[kQueryHeads][kPools];
  uint32_t tops[kQueryHeads][kPools];

  // `first` and `count` are query heads of KV head `head`, counted over all bands.
  __device__ void Load(const RowsWork& work, int head, int first, int count) {
    constexpr int kPieces = kDim / 8;
    constexpr int kRows = kCodeParts * kPools;
    const int thread = static_cast<int>(threadIdx.x);
    for (int i = thread; i < count * kRows * kPieces; i += kThreads) {
      const int at = i % kPieces * 8;
      const int row = i / kPieces % kRows;
      const int query = i / (kPieces * kRows);
      if (at >= work.head_dim) continue;
      const uint8_t* from =
          work.scratch.codes + (QueryHead(work, head, first + query) * kRows + row) * work.head_dim;
      *reinterpret_cast<uint2*>(&codes[query][row / kPools][row % kPools][at]) =
          __ldcg(reinterpret_cast<const uint2*>(from + at));
    }
    for (int i = thread; i < count * kPools; i += kThreads) {
      const float2 some = __ldcg(reinterpret_cast<const float2*>(
          work.scratch.factors + QueryHead(work, head, first + i / kPools) * kPools + i % kPools));
      factors[i / kPools][i % kPools] = {some.x, some.y};
      tops[i / kPools][i % kPools] = 0;
    }
  }
  __device__ static int64_t QueryHead(const RowsWork& work, int head, int index) {
    const int band = index / work.group;
    return (int64_t{band} * work.heads + head) * work.group + index - band * work.group;
  }
};

// What a block of threads scores.
struct ScoredEntries {
  int head;
  int64_t list;  // which has candidates, if there are any
  int count;
};

// A lane's words and scales of the summaries of a warp's blocks: of rows lane / 4 and 8 behind it
// of every 16.
template <int kDim, int kLoad>
struct BlockRows {
  using Shape = RowsShape<kDim>;
  uint32_t words[Shape::kTiles][2][2][Shape::kWords];  // [row of codes][upper, lower]
  float2 scales[Shape::kTiles][2];

  // Of each of a lane's rows its block, from entry `begin` on; -1 behind the last one.
  struct Blocks {
    int of[2 * Shape::kTiles];
  };
  __device__ static Blocks Find(const RowsWork& work, const ScoredEntries& entries, int begin) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    Blocks blocks;
#pragma unroll
    for (int i = 0; i < 2 * Shape::kTiles; ++i) {
      const int entry = begin + i * 8 + lane / 4;
      blocks.of[i] = entry < entries.count ? work.BlockAt(entries.list, entry) : -1;
    }
    return blocks;
  }

  // What is behind the last one is 0.
  __device__ void Load(const ScoreRowsWork& work, int head, const Blocks& blocks) {
#pragma unroll
    for (int i = 0; i < 2 * Shape::kTiles; ++i) LoadBlock(work, head, blocks.of[i], i / 2, i % 2);
  }

 private:
  __device__ void LoadBlock(const ScoreRowsWork& work, int head, int block, int tile, int half) {
    const int column = static_cast<int>(threadIdx.x) % 4;
    const int head_in_group = head % work.table.group_heads;
    const std::byte* record = nullptr;
    scales[tile][half] = make_float2(0.0f, 0.0f);
    if (block >= 0) {
      const std::byte* summary = work.table.Find(head, block);
      record = summary + head_in_group * work.codes_head_stride +
               int64_t{block} * 2 * work.rows.head_dim;
      scales[tile][half] = __ldg(reinterpret_cast<const float2*>(
          summary + work.scales_offset +
          (head_in_group * work.scales_head_stride + int64_t{block} * 2) * 4));
    }
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      LoadCodeWords<kLoad>(record == nullptr ? nullptr : record + row * work.rows.head_dim,
                           work.rows.head_dim, column, words[tile][row][half]);
    }
  }
};

// The sums of a warp's blocks' codes in row `kRow` by the codes of eight pooled queries.
template <Signs kSigns, int kRow, int kDim, int kLoad>
__device__ void MultiplyBlocks(const BlockRows<kDim, kLoad>& blocks,
                               const uint8_t (&codes)[kCodeParts][kPools][RowsShape<kDim>::kStride],
                               int32_t (&sums)[RowsShape<kDim>::kTiles][4]) {
  using Shape = RowsShape<kDim>;
  const int pool = static_cast<int>(threadIdx.x) % kWarp / 4;
  const int column = static_cast<int>(threadIdx.x) % 4;
  int32_t high_sums[Shape::kTiles][4] = {};
  int32_t low_sums[Shape::kTiles][4] = {};
#pragma unroll
  for (int word = 0; word < Shape::kWords; word += kLoad / 4) {
    const int at = CodeWordAt<kLoad>(word, column);
    const auto high = SharedWords<kLoad>(&codes[CodePart(kRow, 0)][pool][at]);
    const auto low = SharedWords<kLoad>(&codes[CodePart(kRow, 1)][pool][at]);
#pragma unroll
    for (int i = 0; i < kLoad / 4; i += 2) {
#pragma unroll
      for (int tile = 0; tile < Shape::kTiles; ++tile) {
        const auto& rows = blocks.words[tile][kRow];
        const uint32_t a[4] = {rows[0][word + i], rows[1][word + i], rows[0][word + i + 1],
                               rows[1][word + i + 1]};
        const uint32_t b_high[2] = {high.words[i], high.words[i + 1]};
        const uint32_t b_low[2] = {low.words[i], low.words[i + 1]};
        MultiplyBytes<kSigns, Signs::kSigned>(high_sums[tile], a, b_high);
        MultiplyBytes<kSigns, Signs::kUnsigned>(low_sums[tile], a, b_low);
      }
    }
  }
#pragma unroll
  for (int tile = 0; tile < Shape::kTiles; ++tile) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      sums[tile][i] = static_cast<int32_t>(static_cast<uint32_t>(high_sums[tile][i]) * 256u +
                                           static_cast<uint32_t>(low_sums[tile][i]));
    }
  }
}

// Scores of a warp's blocks, from entry `begin` of `count` on, for the pooled queries of one query
// head.
template <SummaryKind kKind, int kDim, int kLoad>
__device__ void ScoreQueryHead(const BlockRows<kDim, kLoad>& blocks, int begin, int count,
                               int query, float* scores, SharedQueries<kDim>& queries) {
  using Shape = RowsShape<kDim>;
  constexpr Signs kSecond = kKind == SummaryKind::kMoments ? Signs::kUnsigned : Signs::kSigned;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int column = lane % 4;
  int32_t first[Shape::kTiles][4];
  int32_t second[Shape::kTiles][4];
  MultiplyBlocks<Signs::kSigned, 0>(blocks, queries.codes[query], first);
  MultiplyBlocks<kSecond, 1>(blocks, queries.codes[query], second);
  const selection::QueryFactors factors[2] = {queries.factors[query][2 * column],
                                              queries.factors[query][2 * column + 1]};
  float best[2] = {-INFINITY, -INFINITY};
#pragma unroll
  for (int tile = 0; tile < Shape::kTiles; ++tile) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int entry = begin + tile * 16 + half * 8 + lane / 4;
      if (entry >= count) continue;
      const float2 scale = blocks.scales[tile][half];
      float score[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int at = half * 2 + i;
        if constexpr (kKind == SummaryKind::kMoments) {
          score[i] = selection::MomentScore(factors[i], scale.x, first[tile][at], scale.y,
                                            second[tile][at]);
        } else {
          score[i] = selection::BoxScore(factors[i], scale.x, first[tile][at] + second[tile][at]);
        }
        best[i] = fmaxf(best[i], score[i]);
      }
      *reinterpret_cast<float2*>(scores + int64_t{entry} * kPools + 2 * column) =
          make_float2(score[0], score[1]);
    }
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int apart = 4; apart < kWarp; apart *= 2) {
      best[i] = fmaxf(best[i], __shfl_xor_sync(kAllLanes, best[i], apart));
    }
    if (lane < 4) {
      atomicMax(&queries.tops[query][2 * column + i], OrderedBits(__float_as_uint(best[i])));
    }
  }
}

// Query heads of a block of threads: of several bands, or where there are candidates, which are
// those of a list, of one.
template <int kQueryHeads>
struct ScoredQueries {
  int first;  // counted over all bands
  int count;

  __device__ static ScoredQueries Of(const RowsWork& work, int index) {
    if (work.among.blocks == nullptr) {
      const int first = index * kQueryHeads;
      return {first, min(kQueryHeads, work.bands * work.group - first)};
    }
    const int of_band = (work.group + kQueryHeads - 1) / kQueryHeads;
    const int member = index % of_band * kQueryHeads;
    return {index / of_band * work.group + member, min(kQueryHeads, work.group - member)};
  }
};

// Grid: tiles of a head's entries, heads, query heads of all bands.
template <SummaryKind kKind, int kDim, int kLoad>
__global__ void __launch_bounds__(kThreads, kOfMultiprocessor)
    Scores(const __grid_constant__ ScoreRowsWork work) {
  using Shape = RowsShape<kDim>;
  FollowPrevious();
  extern __shared__ uint4 memory[];
  auto& queries = *reinterpret_cast<SharedQueries<kDim>*>(memory);
  const int head = static_cast<int>(blockIdx.y);
  const auto [first, count] =
      ScoredQueries<Shape::kQueryHeads>::Of(work.rows, static_cast<int>(blockIdx.z));
  const int64_t list = int64_t{first / work.rows.group} * work.rows.heads + head;
  const ScoredEntries entries = {head, list, work.rows.Entries(list)};
  const int tile = static_cast<int>(blockIdx.x) * work.tile_blocks;
  if (tile >= entries.count) return;
  const int end = min(entries.count, tile + work.tile_blocks);
  constexpr int kApart = kScoreWarps * Shape::kBlocks;
  int begin = tile + static_cast<int>(threadIdx.x) / kWarp * Shape::kBlocks;
  using Rows = BlockRows<kDim, kLoad>;
  Rows blocks;
  blocks.Load(work, head, Rows::Find(work.rows, entries, begin));
  queries.Load(work.rows, head, first, count);
  __syncthreads();
  for (; begin < end; begin += kApart) {
    const auto next = Rows::Find(work.rows, entries, begin + kApart);
#pragma unroll 1
    for (int query = 0; query < count; ++query) {
      const int64_t query_head = queries.QueryHead(work.rows, head, first + query);
      ScoreQueryHead<kKind>(blocks, begin, entries.count, query,
                            work.rows.scratch.scores + query_head * work.rows.entries * kPools,
                            queries);
    }
    if (begin + kApart < end) blocks.Load(work, head, next);
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < count * kPools; i += kThreads) {
    const int64_t query_head = queries.QueryHead(work.rows, head, first + i / kPools);
    atomicMax(work.rows.scratch.tops + query_head * kPools + i % kPools,
              queries.tops[i / kPools][i % kPools]);
  }
}

template <SummaryKind kKind, int kDim, int kLoad>
cudaError_t LaunchScores(cudaStream_t stream, ScoreRowsWork work) {
  constexpr auto kKernel = Scores<kKind, kDim, kLoad>;
  constexpr int kBytes = sizeof(SharedQueries<kDim>);
  const cudaError_t error =
      cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (error != cudaSuccess) return error;
  const RowsWork& rows = work.rows;
  constexpr int kQueryHeads = RowsShape<kDim>::kQueryHeads;
  const int queries = rows.among.blocks == nullptr ? CeilDiv(rows.bands * rows.group, kQueryHeads)
                                                   : rows.bands * CeilDiv(rows.group, kQueryHeads);
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
