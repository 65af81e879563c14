#include "kernels/cuda/attention_prefill.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "base/bytes.h"
#include "kernels/cuda/key_span.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/tensor_core.h"
#include "kernels/cuda/warp.h"
#include "kernels/cuda/workspace.h"

// A block takes a tile of rows of one KV head against the keys that some of them sees. A row is a
// query of a token: the heads of a group share the keys that the block reads. Each warp keeps its
// rows' weights and outputs in registers, keys and values pass through shared memory, 64 at a time:
// values arrive while logits are computed, the next keys while values are weighed (the order of
// work of Dao, "FlashAttention-2", 2023, algorithm 1).
namespace headway::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarp;
constexpr int kKeys = 64;  // of a tile
constexpr int kKeyTiles = kKeys / 8;
constexpr int kChunk = 8;  // elements of 16 bytes
constexpr float kNoKeys = -std::numeric_limits<float>::infinity();
constexpr float kLog2E = 1.44269504f;

struct Problem {
  const uint16_t* q;
  int64_t q_stride;
  const std::byte* k;
  const std::byte* v;
  int64_t page_stride;
  int64_t head_stride;
  int32_t page_shift;  // log2 of a page's slots
  int32_t first_slot;
  KeyPositions keys;
  int64_t q_position;
  int64_t window;
  int32_t rows;  // tokens * group
  int32_t group;
  int32_t head_dim;
  float scale;
  float softcap;
  float* o;
  int64_t o_stride;
  float* lse;
  int64_t lse_stride;
  bool merge;
  uint16_t* result;
  int64_t result_stride;
};

// The shapes of a block for heads of up to kD elements.
template <int kD>
struct Tile {
  // Tiles of 16 rows of a warp: two share what is read from shared memory, if registers allow.
  static constexpr int kRowTiles = kD <= 128 ? 2 : 1;
  static constexpr int kWarpRows = 16 * kRowTiles;
  static constexpr int kRows = kWarps * kWarpRows;
  // Between rows in shared memory: an odd number of 16 bytes, so that the 8 rows of a matrix lie in
  // different banks.
  static constexpr int kStride = kD + kChunk;
  static constexpr int kBytes = (kRows + 2 * kKeys) * kStride * 2;
};

// Starts the way of keys [first, first + kKeys) into shared memory; zeros stand for those from
// `end` on, and for elements from head_dim on.
template <int kD>
__device__ inline void StartTile(const Problem& problem, const std::byte* head, int first, int end,
                                 uint16_t* to) {
  constexpr int kChunks = kD / kChunk;
  const int slots = 1 << problem.page_shift;
  const int row_bytes = problem.head_dim * 2;
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < kKeys * kChunks; i += kThreads) {
    const int row = i / kChunks;
    const int column = i % kChunks * kChunk;
    const bool valid = first + row < end && column < problem.head_dim;
    const int slot = problem.first_slot + (valid ? first + row : 0);
    const std::byte* from = head + int64_t{slot >> problem.page_shift} * problem.page_stride +
                            (slot & (slots - 1)) * row_bytes + (valid ? column * 2 : 0);
    CopyAsync(to + row * Tile<kD>::kStride + column, from, valid);
  }
}

template <int kD>
__device__ inline void StartQueries(const Problem& problem, int head, int first_row, uint16_t* to) {
  constexpr int kChunks = kD / kChunk;
  for (int i = static_cast<int>(threadIdx.x); i < Tile<kD>::kRows * kChunks; i += kThreads) {
    const int row = i / kChunks;
    const int column = i % kChunks * kChunk;
    const bool valid = first_row + row < problem.rows && column < problem.head_dim;
    const int at = valid ? first_row + row : 0;
    const int token = at / problem.group;
    const int query_head = head * problem.group + at - token * problem.group;
    CopyAsync(to + row * Tile<kD>::kStride + column,
              problem.q + token * problem.q_stride + int64_t{query_head} * problem.head_dim +
                  (valid ? column : 0),
              valid);
  }
}

// The running softmax of a warp's rows. Of a tile of 16 rows a lane has two: lane / 4 and 8 below.
template <int kD>
struct RowStates {
  static constexpr int kRowTiles = Tile<kD>::kRowTiles;
  float top[kRowTiles][2];                // the largest logit, unscaled
  float total[kRowTiles][2];              // of the lane's own columns
  float sum[kRowTiles][kD / 8][4];        // weighted values, not divided by the total
  float logits[kRowTiles][kKeyTiles][4];  // of the tile at hand, then their weights
};

// logits = q · k.
template <DType kType, int kD>
__device__ inline void Logits(const uint16_t* q, const uint16_t* k, RowStates<kD>& state) {
  constexpr int kStride = Tile<kD>::kStride;
  constexpr int kRowTiles = Tile<kD>::kRowTiles;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
      for (float& logit : state.logits[t][n]) logit = 0.0f;
    }
  }
  const uint16_t* q_at = q + lane % 16 * kStride + lane / 16 * 8;
  const uint16_t* k_at = k + (lane / 16 * 8 + lane % 8) * kStride + lane / 8 % 2 * 8;
#pragma unroll
  for (int step = 0; step < kD / 16; ++step) {
    uint32_t rows[kRowTiles][4];
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) LoadMatrices(q_at + t * 16 * kStride + step * 16, rows[t]);
#pragma unroll
    for (int n = 0; n < kKeyTiles; n += 2) {
      uint32_t keys[4];
      LoadMatrices(k_at + n * 8 * kStride + step * 16, keys);
#pragma unroll
      for (int t = 0; t < kRowTiles; ++t) {
        MultiplyAdd<kType>(state.logits[t][n], rows[t], keys[0], keys[1]);
        MultiplyAdd<kType>(state.logits[t][n + 1], rows[t], keys[2], keys[3]);
      }
    }
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

// Logits become weights relative to the largest seen so far, and what there is is brought to the
// same measure. `scale` takes logits to exponents of 2. NaN passes on.
template <int kD>
__device__ inline void Weigh(float scale, RowStates<kD>& state) {
#pragma unroll
  for (int t = 0; t < Tile<kD>::kRowTiles; ++t) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = half * 2;
      float top = state.top[t][half];
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n) {
        top = fmaxf(top, fmaxf(state.logits[t][n][i], state.logits[t][n][i + 1]));
      }
      top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, 1));
      top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, 2));
      // -inf minus -inf would be NaN.
      const float base = top == kNoKeys ? 0.0f : top * scale;
      const float keep = Exp2(fmaf(state.top[t][half], scale, -base));
      state.top[t][half] = top;
      float total = 0.0f;
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n) {
        state.logits[t][n][i] = Exp2(fmaf(state.logits[t][n][i], scale, -base));
        state.logits[t][n][i + 1] = Exp2(fmaf(state.logits[t][n][i + 1], scale, -base));
        total += state.logits[t][n][i] + state.logits[t][n][i + 1];
      }
      state.total[t][half] = fmaf(state.total[t][half], keep, total);
#pragma unroll
      for (int n = 0; n < kD / 8; ++n) {
        state.sum[t][n][i] *= keep;
        state.sum[t][n][i + 1] *= keep;
      }
    }
  }
}

// sum += weights · v.
template <DType kType, int kD>
__device__ inline void AddValues(const uint16_t* v, RowStates<kD>& state) {
  constexpr int kStride = Tile<kD>::kStride;
  constexpr int kRowTiles = Tile<kD>::kRowTiles;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const uint16_t* v_at = v + lane % 16 * kStride + lane / 16 * 8;
#pragma unroll
  for (int step = 0; step < kKeys / 16; ++step) {
    uint32_t weights[kRowTiles][4];
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
      // The lanes that have a sum's elements are those that give a factor's.
      const float(&left)[4] = state.logits[t][2 * step];
      const float(&right)[4] = state.logits[t][2 * step + 1];
      weights[t][0] = PackPair<kType>(left[0], left[1]);
      weights[t][1] = PackPair<kType>(left[2], left[3]);
      weights[t][2] = PackPair<kType>(right[0], right[1]);
      weights[t][3] = PackPair<kType>(right[2], right[3]);
    }
#pragma unroll
    for (int n = 0; n < kD / 8; n += 2) {
      uint32_t values[4];
      LoadTransposed(v_at + step * 16 * kStride + n * 8, values);
#pragma unroll
      for (int t = 0; t < kRowTiles; ++t) {
        MultiplyAdd<kType>(state.sum[t][n], weights[t], values[0], values[1]);
        MultiplyAdd<kType>(state.sum[t][n + 1], weights[t], values[2], values[3]);
      }
    }
  }
}

// The states to where the item wants them. `row` is the lane's first.
template <DType kType, int kD>
__device__ inline void Finish(const Problem& problem, int head, int row, float scale,
                              const RowStates<kD>& state) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int t = 0; t < Tile<kD>::kRowTiles; ++t) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float total = state.total[t][half];
      total += __shfl_xor_sync(kAllLanes, total, 1);
      total += __shfl_xor_sync(kAllLanes, total, 2);
      const int at = row + t * 16 + half * 8;
      const bool used = at < problem.rows;
      const int token = at / problem.group;
      const int64_t query_head = int64_t{head} * problem.group + at - token * problem.group;
      const int64_t o_at = token * problem.o_stride + query_head * problem.head_dim;
      float* const lse = problem.lse + token * problem.lse_stride + query_head;
      const float theirs = total == 0.0f ? kNoKeys : fmaf(state.top[t][half], scale, logf(total));
      const float ours = used && problem.merge ? *lse : kNoKeys;
      // NaN, if either is.
      const float top = theirs > ours || isnan(theirs) ? theirs : ours;
      const float base = top == kNoKeys ? 0.0f : top;
      const float our_weight = expf(ours - base);
      const float their_weight = expf(theirs - base);
      const float weights = our_weight + their_weight;
      const float our_share = ours == kNoKeys ? 0.0f : our_weight / weights;
      const float their_share = theirs == kNoKeys ? 0.0f : their_weight / weights / total;
      // Every lane of the row has read it.
      __syncwarp();
      if (!used) continue;
      if (lane % 4 == 0 && problem.result == nullptr) {
        *lse = weights == 0.0f ? kNoKeys : top + logf(weights);
      }
#pragma unroll
      for (int n = 0; n < kD / 8; ++n) {
        const int column = n * 8 + lane % 4 * 2;
        if (column >= problem.head_dim) continue;
        float2 value = {state.sum[t][n][half * 2] * their_share,
                        state.sum[t][n][half * 2 + 1] * their_share};
        auto* const o = reinterpret_cast<float2*>(problem.o + o_at + column);
        // The o of a state without keys is not read: it may be anything.
        if (ours != kNoKeys) {
          const float2 old = *o;
          value.x = fmaf(old.x, our_share, value.x);
          value.y = fmaf(old.y, our_share, value.y);
        }
        if (problem.result == nullptr) {
          *o = value;
        } else {
          *reinterpret_cast<uint32_t*>(problem.result + token * problem.result_stride +
                                       query_head * problem.head_dim + column) =
              PackPair<kType>(value.x, value.y);
        }
      }
    }
  }
}

template <DType kType, int kD>
__global__ void __launch_bounds__(kThreads, 2)
    AttendTilesKernel(const __grid_constant__ Problem problem) {
  FollowPrevious();
  constexpr int kStride = Tile<kD>::kStride;
  extern __shared__ uint4 shared[];
  auto* const q = reinterpret_cast<uint16_t*>(shared);
  uint16_t* const k = q + Tile<kD>::kRows * kStride;
  uint16_t* const v = k + kKeys * kStride;

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
#pragma unroll
  for (int t = 0; t < Tile<kD>::kRowTiles; ++t) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      state.top[t][half] = kNoKeys;
      state.total[t][half] = 0.0f;
    }
#pragma unroll
    for (int n = 0; n < kD / 8; ++n) {
#pragma unroll
      for (float& sum : state.sum[t][n]) sum = 0.0f;
    }
  }

  StartQueries<kD>(problem, head, first_row, q);
  StartTile<kD>(problem, k_head, any.begin, any.end, k);
  for (int key = any.begin; key < any.end; key += kKeys) {
    WaitForCopies();
    __syncthreads();  // these keys are there, and nobody needs the last values any more
    StartTile<kD>(problem, v_head, key, any.end, v);
    Logits<kType>(q + warp_row * kStride, k, state);
    WaitForCopies();
    __syncthreads();  // these values are there, and nobody needs these keys any more
    if (key + kKeys < any.end) StartTile<kD>(problem, k_head, key + kKeys, any.end, k);
    if (problem.softcap != 0.0f) SoftCap(problem, state);
    if (key < all.begin || key + kKeys > all.end) Mask(problem, row, key, state);
    Weigh(scale * kLog2E, state);
    AddValues<kType>(v, state);
  }
  WaitForCopies();
  Finish<kType>(problem, head, row, scale, state);
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
  return LaunchKernel(kKernel, grid, kThreads, Tile<kD>::kBytes, stream, problem);
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
  problem.q = static_cast<const uint16_t*>(item.q);
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
  problem.result = static_cast<uint16_t*>(item.result);
  problem.result_stride = item.result_stride;
  return activation == DType::kBF16 ? Launch<DType::kBF16>(stream, problem, item.heads)
                                    : Launch<DType::kF16>(stream, problem, item.heads);
}

}  // namespace headway::cuda
