// What eviction asks of queries that are not rotated, of keys and of values on a GPU: moments,
// expected logits, norms.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/bytes.h"
#include "kernels/cuda/elements.h"
#include "kernels/cuda/eviction.h"
#include "kernels/cuda/item_batch.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/memory.h"
#include "kernels/cuda/slot_rows.h"
#include "kernels/cuda/warp.h"
#include "kernels/cuda/workspace.h"

namespace headway::cuda {
namespace {

// Of moments: a block has kTile by kTile products of one head, each thread kEach by kEach of them.
constexpr int kTile = 64;
constexpr int kEach = 4;
constexpr int kSide = kTile / kEach;  // threads of a row of products
constexpr int kAtOnce = 32;           // queries in shared memory
static_assert(kSide * kSide == kThreads);

struct MomentsShape {
  int32_t head_dim;
  int32_t tiles;  // of a side of a head's products
};
using MomentsBatch = ItemBatch<QueryMomentsItem, MomentsShape>;

// Elements [first, first + kTile) of a head of queries [row, row + kAtOnce); zeros beyond either
// end.
template <DType kType>
__device__ inline void LoadQueries(const MomentsShape& shape, const QueryMomentsItem& item,
                                   int head, int64_t row, int first, float (&to)[kAtOnce][kTile]) {
  using Element = typename ElementOf<kType>::Type;
  const Element* const q = static_cast<const Element*>(item.q) + int64_t{head} * shape.head_dim;
  for (int i = static_cast<int>(threadIdx.x); i < kAtOnce * kTile; i += kThreads) {
    const int64_t at = row + i / kTile;
    const int element = first + i % kTile;
    const bool valid = at < item.rows && element < shape.head_dim;
    to[i / kTile][i % kTile] = valid ? AsFloat(q[at * item.q_stride + element]) : 0.0f;
  }
}

template <DType kType>
__global__ void __launch_bounds__(kThreads) Moments(const __grid_constant__ MomentsBatch batch) {
  FollowPrevious();
  __shared__ float left[kAtOnce][kTile];
  __shared__ float right[kAtOnce][kTile];
  const MomentsShape& shape = batch.shape;
  const int at = ItemOfBlock(batch);
  const QueryMomentsItem& item = batch.items[at];
  const int block = static_cast<int>(blockIdx.x) - batch.first_block[at];
  const int head = block / (shape.tiles * shape.tiles);
  const int first_i = block / shape.tiles % shape.tiles * kTile;
  const int first_j = block % shape.tiles * kTile;
  const int i0 = static_cast<int>(threadIdx.x) / kSide * kEach;
  const int j0 = static_cast<int>(threadIdx.x) % kSide * kEach;
  float products[kEach][kEach] = {};
  float sums[kEach] = {};
  for (int64_t row = 0; row < item.rows; row += kAtOnce) {
    __syncthreads();
    LoadQueries<kType>(shape, item, head, row, first_i, left);
    LoadQueries<kType>(shape, item, head, row, first_j, right);
    __syncthreads();
    for (int r = 0; r < kAtOnce; ++r) {
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const float of_i = left[r][i0 + i];
        sums[i] += of_i;
#pragma unroll
        for (int j = 0; j < kEach; ++j) {
          products[i][j] = fmaf(of_i, right[r][j0 + j], products[i][j]);
        }
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int of_i = first_i + i0 + i;
    if (of_i >= shape.head_dim) break;
    const int64_t line = int64_t{head} * shape.head_dim + of_i;
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const int of_j = first_j + j0 + j;
      if (of_j >= shape.head_dim) break;
      float& there = item.products[line * shape.head_dim + of_j];
      there = item.adds ? there + products[i][j] : products[i][j];
    }
    if (first_j + j0 == 0) item.sums[line] = item.adds ? item.sums[line] + sums[i] : sums[i];
  }
}

// Of expected logits: a key a lane, the covariance's rows by warps.
constexpr int kWarps = 4;
constexpr int kBlockThreads = kWarps * kWarp;
constexpr int kRows = 4;  // that a lane has sums of at a time

struct ExpectedShape {
  int32_t group;
  float scale;
};

struct ExpectedItem {
  SlotRows keys;
  const float* mean;
  const float* covariance;
  float* logits;
  int64_t stride;
};
using ExpectedBatch = ItemBatch<ExpectedItem, ExpectedShape>;

template <DType kType>
__global__ void __launch_bounds__(kBlockThreads)
    Expected(const __grid_constant__ ExpectedBatch batch) {
  FollowPrevious();
  constexpr int kStride = kHeadDimMax + 1;  // neighbours lie in different banks
  constexpr int kElement = kType == DType::kF32 ? 4 : 2;
  using Element = typename ElementOf<kType>::Type;
  __shared__ float keys[kWarp * kStride];
  __shared__ float totals[kWarps][kWarp];
  const int at = ItemOfBlock(batch);
  const ExpectedItem& item = batch.items[at];
  const int block = static_cast<int>(blockIdx.x) - batch.first_block[at];
  const int head = block % batch.shape.group;
  const int first = block / batch.shape.group * kWarp;
  const int dim = item.keys.head_dim;
  for (int i = static_cast<int>(threadIdx.x); i < kWarp * dim; i += kBlockThreads) {
    const int key = i / dim;
    const int element = i - key * dim;
    keys[key * kStride + element] = first + key < item.keys.count
                                        ? AsFloat(reinterpret_cast<const Element*>(
                                              RowAt<kElement>(item.keys, first + key))[element])
                                        : 0.0f;
  }
  __syncthreads();
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const float* const key = keys + lane * kStride;
  const float* const mean = item.mean + head * dim;
  const float* const covariance = item.covariance + int64_t{head} * dim * dim;
  const float half = batch.shape.scale / 2;
  float total = 0.0f;
  for (int row = warp * kRows; row < dim; row += kWarps * kRows) {  // dim is a multiple of kRows
    float sums[kRows] = {};
    for (int i = 0; i < dim; i += 4) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const float4 c = *reinterpret_cast<const float4*>(covariance + (row + r) * dim + i);
        sums[r] = fmaf(c.x, key[i], sums[r]);
        sums[r] = fmaf(c.y, key[i + 1], sums[r]);
        sums[r] = fmaf(c.z, key[i + 2], sums[r]);
        sums[r] = fmaf(c.w, key[i + 3], sums[r]);
      }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      total = fmaf(fmaf(half, sums[r], mean[row + r]), key[row + r], total);
    }
  }
  totals[warp][lane] = total;
  __syncthreads();
  if (warp != 0 || first + lane >= item.keys.count) return;
  for (int other = 1; other < kWarps; ++other) total += totals[other][lane];
  item.logits[head * item.stride + first + lane] = batch.shape.scale * total;
}

struct NoShape {};

struct NormsItem {
  SlotRows values;
  float* norms;
};
using NormsBatch = ItemBatch<NormsItem, NoShape>;

// A warp takes a value.
template <DType kType>
__global__ void __launch_bounds__(kThreads) Norms(const __grid_constant__ NormsBatch batch) {
  FollowPrevious();
  constexpr int kElement = kType == DType::kF32 ? 4 : 2;
  using Element = typename ElementOf<kType>::Type;
  const int at = ItemOfBlock(batch);
  const NormsItem& item = batch.items[at];
  const int block = static_cast<int>(blockIdx.x) - batch.first_block[at];
  const int slot = block * (kThreads / kWarp) + static_cast<int>(threadIdx.x) / kWarp;
  if (slot >= item.values.count) return;
  const auto* const value = reinterpret_cast<const Element*>(RowAt<kElement>(item.values, slot));
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  float sum = 0.0f;
  for (int i = lane; i < item.values.head_dim; i += kWarp) {
    const float element = AsFloat(value[i]);
    sum = fmaf(element, element, sum);
  }
  sum = WarpSum(sum);
  if (lane == 0) item.norms[slot] = sqrtf(sum);
}

}  // namespace

bool CanExpect(const KeyLogitsCall& call, std::span<const ExpectedLogitsItem> items) {
  const int head_dim = call.format.head_dim;
  return head_dim >= 8 && head_dim <= kHeadDimMax && head_dim % 8 == 0 && call.group >= 1 &&
         std::all_of(items.begin(), items.end(), [](const ExpectedLogitsItem& item) {
           return item.keys.pages.params == nullptr && item.keys.positions == nullptr &&
                  Aligned(item.covariance);
         });
}

cudaError_t QueryMoments(cudaStream_t stream, const QueryShape& shape,
                         std::span<const QueryMomentsItem> items) {
  const auto tiles = static_cast<int32_t>(CeilDiv(shape.head_dim, kTile));
  const MomentsShape on_gpu = {shape.head_dim, tiles};
  return InBatches(
      on_gpu, items, [&](const QueryMomentsItem&) { return int64_t{shape.heads} * tiles * tiles; },
      [&](const MomentsBatch& batch, unsigned blocks) {
        return WithDType(shape.activation, [&](auto type) {
          return LaunchKernel(Moments<decltype(type)::kValue>, blocks, kThreads, 0, stream, batch);
        });
      });
}

cudaError_t ExpectedLogits(cudaStream_t stream, const KeyLogitsCall& call,
                           std::span<const ExpectedLogitsItem> items) {
  std::vector<ExpectedItem> on_gpu;
  for (const ExpectedLogitsItem& item : items) {
    on_gpu.push_back({.keys = RowsOf(call.format, item.keys.pages, item.keys.pages.k),
                      .mean = item.mean,
                      .covariance = item.covariance,
                      .logits = item.logits,
                      .stride = item.stride});
  }
  return InBatches(
      ExpectedShape{call.group, call.scale}, std::span<const ExpectedItem>(on_gpu),
      [&](const ExpectedItem& item) {
        return CeilDiv(int64_t{item.keys.count}, int64_t{kWarp}) * call.group;
      },
      [&](const ExpectedBatch& batch, unsigned blocks) {
        return WithDType(call.format.dtype, [&](auto type) {
          return LaunchKernel(Expected<decltype(type)::kValue>, blocks, kBlockThreads, 0, stream,
                              batch);
        });
      });
}

cudaError_t ValueNorms(cudaStream_t stream, const PageFormat& format,
                       std::span<const ValueNormsItem> items) {
  std::vector<NormsItem> on_gpu;
  for (const ValueNormsItem& item : items) {
    on_gpu.push_back({RowsOf(format, item.values, item.values.v), item.norms});
  }
  return InBatches(
      NoShape(), std::span<const NormsItem>(on_gpu),
      [](const NormsItem& item) {
        return CeilDiv(int64_t{item.values.count}, int64_t{kThreads / kWarp});
      },
      [&](const NormsBatch& batch, unsigned blocks) {
        return WithDType(format.dtype, [&](auto type) {
          return LaunchKernel(Norms<decltype(type)::kValue>, blocks, kThreads, 0, stream, batch);
        });
      });
}

}  // namespace headway::cuda
