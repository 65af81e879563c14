// A block of threads that attends from a tile of rows to tiles of keys on tensor cores. A row is a
// query of a token: the heads of a group share the keys that the block reads. Each warp keeps its
// rows' weights and outputs in registers, keys and values pass through shared memory, 64 at a time
// (the order of work of Dao, "FlashAttention-2", 2023, algorithm 1).
#ifndef HEADWAY_KERNELS_CUDA_ATTENTION_TILE_H_
#define HEADWAY_KERNELS_CUDA_ATTENTION_TILE_H_

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "kernels/cuda/attention_decode_block.h"
#include "kernels/cuda/tensor_core.h"
#include "kernels/cuda/warp.h"

namespace headway::cuda {

inline constexpr int kTileWarps = 4;
inline constexpr int kTileThreads = kTileWarps * kWarp;
inline constexpr int kTileKeys = 64;
inline constexpr int kKeyTiles = kTileKeys / 8;  // of a product's width
inline constexpr int kChunk = 8;                 // elements of 16 bytes

// The rows' queries, and where their states go.
struct TileRows {
  const void* q;
  int64_t q_stride;
  int32_t rows;  // tokens * group
  int32_t group;
  int32_t head_dim;
  float scale;
  float* o;
  int64_t o_stride;
  float* lse;
  int64_t lse_stride;
  bool merge;
  void* result;
  int64_t result_stride;
};

// The shapes of a block for heads of up to kD elements.
template <int kD>
struct Tile {
  // Tiles of 16 rows of a warp: two share what is read from shared memory, if registers allow.
  static constexpr int kRowTiles = kD <= 128 ? 2 : 1;
  static constexpr int kWarpRows = 16 * kRowTiles;
  static constexpr int kRows = kTileWarps * kWarpRows;
  // Between rows in shared memory: an odd number of 16 bytes, so that the 8 rows of a matrix lie in
  // different banks.
  static constexpr int kStride = kD + kChunk;
  static constexpr int kBytes = (kRows + 2 * kTileKeys) * kStride * 2;
};

// Starts the way of rows [first_row, end_row) into shared memory; zeros stand for what is behind.
template <int kD>
__device__ inline void StartQueries(const TileRows& problem, int head, int first_row, int end_row,
                                    uint16_t* to) {
  constexpr int kChunks = kD / kChunk;
  const auto* const q = static_cast<const uint16_t*>(problem.q);
  for (int i = static_cast<int>(threadIdx.x); i < Tile<kD>::kRows * kChunks; i += kTileThreads) {
    const int row = i / kChunks;
    const int column = i % kChunks * kChunk;
    const bool valid = first_row + row < end_row && column < problem.head_dim;
    const int at = valid ? first_row + row : 0;
    const int token = at / problem.group;
    const int query_head = head * problem.group + at - token * problem.group;
    CopyAsync(to + row * Tile<kD>::kStride + column,
              q + token * problem.q_stride + int64_t{query_head} * problem.head_dim +
                  (valid ? column : 0),
              valid);
  }
}

// The running softmax of a warp's rows. Of a tile of 16 rows a lane has two: lane / 4 and 8 below.
template <int kD, int kRowTiles = Tile<kD>::kRowTiles, int kKeyTilesAtOnce = kKeyTiles>
struct RowStates {
  float top[kRowTiles][2];                      // the largest logit, unscaled
  float total[kRowTiles][2];                    // of the lane's own columns
  float sum[kRowTiles][kD / 8][4];              // weighted values, not divided by the total
  float logits[kRowTiles][kKeyTilesAtOnce][4];  // of the tile at hand, then their weights
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

template <int kD, int kRowTiles, int kKeys>
__device__ inline void ClearStates(RowStates<kD, kRowTiles, kKeys>& state) {
#pragma unroll
  for (int t = 0; t < kRowTiles; ++t) {
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
}

// Logits become weights relative to the largest seen so far, and what there is is brought to the
// same measure. `scale` takes logits to exponents of 2. NaN passes on.
template <int kD, int kRowTiles, int kKeys>
__device__ inline void Weigh(float scale, RowStates<kD, kRowTiles, kKeys>& state) {
#pragma unroll
  for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = half * 2;
      float top = state.top[t][half];
#pragma unroll
      for (int n = 0; n < kKeys; ++n) {
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
      for (int n = 0; n < kKeys; ++n) {
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

// Weights of 16 keys as a factor: the lanes that have a sum's elements are those that give a
// factor's.
template <DType kType>
__device__ inline void PackWeights(const float (&left)[4], const float (&right)[4],
                                   uint32_t (&weights)[4]) {
  weights[0] = PackPair<kType>(left[0], left[1]);
  weights[1] = PackPair<kType>(left[2], left[3]);
  weights[2] = PackPair<kType>(right[0], right[1]);
  weights[3] = PackPair<kType>(right[2], right[3]);
}

// sum += weights · v.
template <DType kType, int kD>
__device__ inline void AddValues(const uint16_t* v, RowStates<kD>& state) {
  constexpr int kStride = Tile<kD>::kStride;
  constexpr int kRowTiles = Tile<kD>::kRowTiles;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const uint16_t* v_at = v + lane % 16 * kStride + lane / 16 * 8;
#pragma unroll
  for (int step = 0; step < kTileKeys / 16; ++step) {
    uint32_t weights[kRowTiles][4];
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
      PackWeights<kType>(state.logits[t][2 * step], state.logits[t][2 * step + 1], weights[t]);
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

// How a row's state is merged with the one that lies where it goes: o times our_share, plus the
// weighted values, which are not divided by their total, times their_share. NaN, if either is.
struct MergedRow {
  float our_share;
  float their_share;
  float lse;
};
__device__ inline MergedRow MergeRow(float ours, float theirs, float total) {
  const float top = theirs > ours || isnan(theirs) ? theirs : ours;
  const float base = top == kNoKeys ? 0.0f : top;
  const float our_weight = expf(ours - base);
  const float their_weight = expf(theirs - base);
  const float weights = our_weight + their_weight;
  return {ours == kNoKeys ? 0.0f : our_weight / weights,
          theirs == kNoKeys ? 0.0f : their_weight / weights / total,
          weights == 0.0f ? kNoKeys : top + logf(weights)};
}

// The states of rows below `end_row` to where the item wants them. `row` is the lane's first.
template <DType kType, int kD, int kRowTiles, int kKeys>
__device__ inline void Finish(const TileRows& problem, int head, int row, int end_row, float scale,
                              const RowStates<kD, kRowTiles, kKeys>& state) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float total = state.total[t][half];
      total += __shfl_xor_sync(kAllLanes, total, 1);
      total += __shfl_xor_sync(kAllLanes, total, 2);
      const int at = row + t * 16 + half * 8;
      const bool used = at < end_row;
      const int token = at / problem.group;
      const int64_t query_head = int64_t{head} * problem.group + at - token * problem.group;
      const int64_t o_at = token * problem.o_stride + query_head * problem.head_dim;
      float* const lse = problem.lse + token * problem.lse_stride + query_head;
      const float theirs = total == 0.0f ? kNoKeys : fmaf(state.top[t][half], scale, logf(total));
      const float ours = used && problem.merge ? *lse : kNoKeys;
      const MergedRow merged = MergeRow(ours, theirs, total);
      // Every lane of the row has read it.
      __syncwarp();
      if (!used) continue;
      if (lane % 4 == 0 && problem.result == nullptr) *lse = merged.lse;
#pragma unroll
      for (int n = 0; n < kD / 8; ++n) {
        const int column = n * 8 + lane % 4 * 2;
        if (column >= problem.head_dim) continue;
        float2 value = {state.sum[t][n][half * 2] * merged.their_share,
                        state.sum[t][n][half * 2 + 1] * merged.their_share};
        auto* const o = reinterpret_cast<float2*>(problem.o + o_at + column);
        // The o of a state without keys is not read: it may be anything.
        if (ours != kNoKeys) {
          const float2 old = *o;
          value.x = fmaf(old.x, merged.our_share, value.x);
          value.y = fmaf(old.y, merged.our_share, value.y);
        }
        if (problem.result == nullptr) {
          *o = value;
        } else {
          auto* const result = static_cast<uint16_t*>(problem.result) +
                               token * problem.result_stride + query_head * problem.head_dim +
                               column;
          *reinterpret_cast<uint32_t*>(result) = PackPair<kType>(value.x, value.y);
        }
      }
    }
  }
}

}  // namespace headway::cuda

#endif  // HEADWAY_KERNELS_CUDA_ATTENTION_TILE_H_
