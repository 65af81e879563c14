#include "kernels/cuda/attention_prefill.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "base/bytes.h"
#include "kernels/cuda/attention_tile.h"
#include "kernels/cuda/key_span.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/tensor_core.h"
#include "kernels/cuda/warp.h"
#include "kernels/cuda/workspace.h"

// A block takes a tile of rows of one KV head against the keys that some of them sees: values
// arrive while logits are computed, the next keys while values are weighed.
namespace headway::cuda {
namespace {

struct Problem : TileRows {
  const std::byte* k;
  const std::byte* v;
  int64_t page_stride;
  int64_t head_stride;
  int32_t page_shift;  // log2 of a page's slots
  int32_t first_slot;
  KeyPositions keys;
  int64_t q_position;
  int64_t window;
  float softcap;
};

// Starts the way of keys [first, first + kTileKeys) into shared memory; zeros stand for those from
// `end` on, and for elements from head_dim on.
template <int kD>
__device__ inline void StartTile(const Problem& problem, const std::byte* head, int first, int end,
                                 uint16_t* to) {
  constexpr int kChunks = kD / kChunk;
  const int slots = 1 << problem.page_shift;
  const int row_bytes = problem.head_dim * 2;
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < kTileKeys * kChunks; i += kTileThreads) {
    const int row = i / kChunks;
    const int column = i % kChunks * kChunk;
    const bool valid = first + row < end && column < problem.head_dim;
    const int slot = problem.first_slot + (valid ? first + row : 0);
    const std::byte* from = head + int64_t{slot >> problem.page_shift} * problem.page_stride +
                            (slot & (slots - 1)) * row_bytes + (valid ? column * 2 : 0);
    CopyAsync(to + row * Tile<kD>::kStride + column, from, valid);
  }
}

// Hides the keys of the tile that a row does not see. `row` is the lane's first.
template <int kD>
__device__ inline void Mask(const Problem& problem, int row, int first_key, RowStates<kD>& state) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int t = 0; t < Tile<kD>::kRowTiles; ++t) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int at = min(row + t * 16 + half * 8, problem.rows - 1);
      const int64_t position = problem.q_position + at / problem.group;
      const KeySpan seen = SeenByAll(problem.keys, position, position, problem.window);
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int key = first_key + n * 8 + lane % 4 * 2 + i;
          if (key < seen.begin || key >= seen.end) state.logits[t][n][half * 2 + i] = kNoKeys;
        }
      }
    }
  }
}

template <int kD>
__device__ inline void SoftCap(const Problem& problem, RowStates<kD>& state) {
  const float inner = problem.scale / problem.softcap;
#pragma unroll
  for (int t = 0; t < Tile<kD>::kRowTiles; ++t) {
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
      for (float& logit : state.logits[t][n]) logit = problem.softcap * tanhf(logit * inner);
    }
  }
}

template <DType kType, int kD>
__global__ void __launch_bounds__(kTileThreads, 2)
    AttendTilesKernel(const __grid_constant__ Problem problem) {
  FollowPrevious();
  constexpr int kStride = Tile<kD>::kStride;
  extern __shared__ uint4 shared[];
  auto* const q = reinterpret_cast<uint16_t*>(shared);
  uint16_t* const k = q + Tile<kD>::kRows * kStride;
  uint16_t* const v = k + kTileKeys * kStride;

  // The last rows see the most keys where there is no window: they start first.
  const int tile = static_cast<int>(gridDim.x - 1 - blockIdx.x);
  const int head = static_cast<int>(blockIdx.y);
  const int first_row = tile * Tile<kD>::kRows;
  const int last_row = min(first_row + Tile<kD>::kRows, problem.rows) - 1;
  const int64_t first_query = problem.q_position + first_row / problem.group;
  const int64_t last_query = problem.q_position + last_row / problem.group;
  const KeySpan any = SeenByAny(problem.keys, first_query, last_query, problem.window);
  const KeySpan all = SeenByAll(problem.keys, first_query, last_query, problem.window);
  const std::byte* const k_head = problem.k + head * problem.head_stride;
  const std::byte* const v_head = problem.v + head * problem.head_stride;

  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp_row = static_cast<int>(threadIdx.x) / kWarp * Tile<kD>::kWarpRows;
  const int row = first_row + warp_row + lane / 4;
  // Logits are left as the products are, or capped: `scale` makes them natural logarithms.
  const float scale = problem.softcap == 0.0f ? problem.scale : 1.0f;
  RowStates<kD> state;
  ClearStates(state);

  StartQueries<kD>(problem, head, first_row, problem.rows, q);
  StartTile<kD>(problem, k_head, any.begin, any.end, k);
  for (int key = any.begin; key < any.end; key += kTileKeys) {
    WaitForCopies();
    __syncthreads();  // these keys are there, and nobody needs the last values any more
    StartTile<kD>(problem, v_head, key, any.end, v);
    Logits<kType>(q + warp_row * kStride, k, state);
    WaitForCopies();
    __syncthreads();  // these values are there, and nobody needs these keys any more
    if (key + kTileKeys < any.end) StartTile<kD>(problem, k_head, key + kTileKeys, any.end, k);
    if (problem.softcap != 0.0f) SoftCap(problem, state);
    if (key < all.begin || key + kTileKeys > all.end) Mask(problem, row, key, state);
    Weigh(scale * kLog2E, state);
    AddValues<kType>(v, state);
  }
  WaitForCopies();
  Finish<kType>(problem, head, row, problem.rows, scale, state);
}

template <DType kType, int kD>
cudaError_t Launch(cudaStream_t stream, const Problem& problem, int heads) {
  constexpr auto kKernel = AttendTilesKernel<kType, kD>;
  // Every device that launches it has to be told.
  const cudaError_t error =
      cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Tile<kD>::kBytes);
  if (error != cudaSuccess) return error;
  const dim3 grid(static_cast<unsigned>(CeilDiv(problem.rows, Tile<kD>::kRows)),
                  static_cast<unsigned>(heads));
  return LaunchKernel(kKernel, grid, kTileThreads, Tile<kD>::kBytes, stream, problem);
}

template <DType kType>
cudaError_t Launch(cudaStream_t stream, const Problem& problem, int heads) {
  if (problem.head_dim <= 64) return Launch<kType, 64>(stream, problem, heads);
  if (problem.head_dim <= 96) return Launch<kType, 96>(stream, problem, heads);
  if (problem.head_dim <= 128) return Launch<kType, 128>(stream, problem, heads);
  return Launch<kType, 256>(stream, problem, heads);
}

bool Multiple(const void* pointer, uintptr_t bytes) {
  return reinterpret_cast<uintptr_t>(pointer) % bytes == 0;
}

}  // namespace

bool CanAttendTiles(const PageFormat& format, DType activation, int group,
                    const AttentionParams& params, const AttentionItem& item) {
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
  const PageRun& run = item.keys.pages;
  return (activation == DType::kBF16 || activation == DType::kF16) && format.dtype == activation &&
         format.head_dim >= 8 && format.head_dim <= kHeadDimMax && format.head_dim % 8 == 0 &&
         std::has_single_bit(static_cast<unsigned>(format.page_slots)) && group >= 1 &&
         item.tokens * group <= kMax && item.heads <= 65535 && run.first_slot + run.count <= kMax &&
         params.scale > 0 && item.split == 0 && item.transform.inv_freq == nullptr &&
         item.key_mass == nullptr && item.q_stride % 8 == 0 && Multiple(item.q, 16) &&
         Multiple(run.k, 16) && Multiple(run.v, 16) && run.page_stride % 16 == 0 &&
         run.head_stride % 16 == 0 && item.o_stride % 2 == 0 && Multiple(item.o, 8) &&
         item.result_stride % 2 == 0 && Multiple(item.result, 4);
}

cudaError_t AttendTiles(cudaStream_t stream, const PageFormat& format, DType activation, int group,
                        const AttentionParams& params, const AttentionItem& item) {
  if (!CanAttendTiles(format, activation, group, params, item)) return cudaErrorInvalidValue;
  if (item.tokens == 0 || item.heads == 0) return cudaSuccess;
  const PageRun& run = item.keys.pages;
  Problem problem = {};
  problem.q = item.q;
  problem.q_stride = item.q_stride;
  problem.k = run.k;
  problem.v = run.v;
  problem.page_stride = run.page_stride;
  problem.head_stride = run.head_stride;
  problem.page_shift = std::countr_zero(static_cast<unsigned>(format.page_slots));
  problem.first_slot = static_cast<int32_t>(run.first_slot);
  problem.keys = {static_cast<int32_t>(item.keys.position), static_cast<int32_t>(run.count),
                  item.keys.positions};
  problem.q_position = item.q_position;
  problem.window = params.window;
  problem.rows = static_cast<int32_t>(item.tokens * group);
  problem.group = group;
  problem.head_dim = format.head_dim;
  problem.scale = params.scale;
  problem.softcap = params.softcap;
  problem.o = item.o;
  problem.o_stride = item.o_stride;
  problem.lse = item.lse;
  problem.lse_stride = item.lse_stride;
  problem.merge = item.merge;
  problem.result = item.result;
  problem.result_stride = item.result_stride;
  return activation == DType::kBF16 ? Launch<DType::kBF16>(stream, problem, item.heads)
                                    : Launch<DType::kF16>(stream, problem, item.heads);
}

}  // namespace headway::cuda
