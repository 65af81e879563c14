// Logits of keys: a block of threads takes a tile of keys, reads it once and goes over all queries,
// which stay in the cache.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "base/bytes.h"
#include "kernels/cuda/elements.h"
#include "kernels/cuda/eviction.h"
#include "kernels/cuda/item_batch.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/memory.h"
#include "kernels/cuda/slot_rows.h"
#include "kernels/cuda/tensor_core.h"
#include "kernels/cuda/warp.h"
#include "kernels/cuda/workspace.h"

namespace headway::cuda {
namespace {

constexpr float kUnseen = -std::numeric_limits<float>::infinity();
constexpr int kWarps = 4;
constexpr int kBlockThreads = kWarps * kWarp;

// Of tensor cores: 16 keys a warp, whose elements stay in registers.
constexpr int kTileKeys = 16 * kWarps;
constexpr int kTileRows = kTileKeys / 2;  // of queries; two such tiles take the keys' place
// Of f32: a key a lane; queries that a lane has sums of at a time.
constexpr int kPlainKeys = kWarp;
constexpr int kPlainRows = 4;

struct LogitsShape {
  int32_t head_dim, group;
  float scale;
};

struct LogitsItem {
  const std::byte* q;
  int64_t q_stride;  // bytes between rows
  SlotRows keys;
  float* logits;
  int64_t stride;
  int32_t rows;   // query heads of rows
  int32_t ahead;  // keys that the first row sees: none below 1
};
using LogitsBatch = ItemBatch<LogitsItem, LogitsShape>;

// Where query `row` of the item lies.
template <int kElement>
__device__ inline const std::byte* QueryAt(const LogitsShape& shape, const LogitsItem& item,
                                           int row) {
  const int token = row / shape.group;
  return item.q + token * item.q_stride +
         int64_t{row - token * shape.group} * shape.head_dim * kElement;
}

// Keys of the item that query `row` sees.
__device__ inline int SeenBy(const LogitsShape& shape, const LogitsItem& item, int row) {
  return item.ahead + row / shape.group;
}

// The same of queries [first, first + kTileRows).
template <int kD>
__device__ inline void StartQueries(const LogitsShape& shape, const LogitsItem& item, int first,
                                    uint16_t* to) {
  constexpr int kChunks = kD / 8;
  for (int i = static_cast<int>(threadIdx.x); i < kTileRows * kChunks; i += kBlockThreads) {
    const int row = i / kChunks;
    const int column = i % kChunks * 8;
    const bool valid = first + row < item.rows && column < shape.head_dim;
    const std::byte* from = QueryAt<2>(shape, item, valid ? first + row : 0);
    CopyAsync(to + row * (kD + 8) + column, from + (valid ? column * 2 : 0), valid);
  }
}

// Two logits that lie side by side, of keys `key` and the next one.
__device__ inline void StorePair(const LogitsShape& shape, const LogitsItem& item, int row, int key,
                                 float left, float right) {
  if (row >= item.rows) return;
  const int seen = SeenBy(shape, item, row);
  left = key < seen ? left * shape.scale : kUnseen;
  right = key + 1 < seen ? right * shape.scale : kUnseen;
  float* to = item.logits + row * item.stride + key;
  if (key + 1 < item.keys.count && reinterpret_cast<uintptr_t>(to) % sizeof(float2) == 0) {
    *reinterpret_cast<float2*>(to) = make_float2(left, right);
    return;
  }
  if (key < item.keys.count) to[0] = left;
  if (key + 1 < item.keys.count) to[1] = right;
}

// Heads of up to kD elements of 16 bits.
template <DType kType, int kD>
__global__ void __launch_bounds__(kBlockThreads)
    TileLogits(const __grid_constant__ LogitsBatch batch) {
  FollowPrevious();
  constexpr int kStride = kD + 8;  // the 8 rows of a matrix lie in different banks
  constexpr int kSteps = kD / 16;
  __shared__ __align__(16) uint16_t shared[kTileKeys * kStride];
  const LogitsShape& shape = batch.shape;
  const int at = ItemOfBlock(batch);
  const LogitsItem& item = batch.items[at];
  const int first = (static_cast<int>(blockIdx.x) - batch.first_block[at]) * kTileKeys;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;

  StartRows<kTileKeys, kD, 2, kBlockThreads>(item.keys, first, reinterpret_cast<std::byte*>(shared),
                                             kStride * 2);
  WaitForCopies();
  __syncthreads();
  uint32_t keys[kSteps][4];
  const uint16_t* k = shared + (warp * 16 + lane / 16 * 8 + lane % 8) * kStride + lane / 8 % 2 * 8;
#pragma unroll
  for (int step = 0; step < kSteps; ++step) LoadMatrices(k + step * 16, keys[step]);
  __syncthreads();

  const int key = first + warp * 16 + lane % 4 * 2;
  StartQueries<kD>(shape, item, 0, shared);
  GroupCopies();
  for (int row = 0; row < item.rows; row += kTileRows) {
    const int turn = row / kTileRows % 2;
    StartQueries<kD>(shape, item, row + kTileRows, shared + (1 - turn) * kTileRows * kStride);
    GroupCopies();
    WaitForCopiesButNewest();
    __syncthreads();
#pragma unroll
    for (int tile = 0; tile < kTileRows; tile += 16) {
      float sums[2][4] = {};
      const uint16_t* q = shared + (turn * kTileRows + tile + lane % 16) * kStride + lane / 16 * 8;
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        uint32_t queries[4];
        LoadMatrices(q + step * 16, queries);
        MultiplyAdd<kType>(sums[0], queries, keys[step][0], keys[step][1]);
        MultiplyAdd<kType>(sums[1], queries, keys[step][2], keys[step][3]);
      }
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const int upper = row + tile + lane / 4;
        StorePair(shape, item, upper, key + n * 8, sums[n][0], sums[n][1]);
        StorePair(shape, item, upper + 8, key + n * 8, sums[n][2], sums[n][3]);
      }
    }
    __syncthreads();
  }
}

// Heads of f32.
__global__ void __launch_bounds__(kBlockThreads)
    PlainLogits(const __grid_constant__ LogitsBatch batch) {
  FollowPrevious();
  constexpr int kStride = kHeadDimMax + 4;  // 16 bytes of neighbours lie in different banks
  __shared__ __align__(16) float keys[kPlainKeys * kStride];
  const LogitsShape& shape = batch.shape;
  const int at = ItemOfBlock(batch);
  const LogitsItem& item = batch.items[at];
  const int first = (static_cast<int>(blockIdx.x) - batch.first_block[at]) * kPlainKeys;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  StartRows<kPlainKeys, kHeadDimMax, 4, kBlockThreads>(
      item.keys, first, reinterpret_cast<std::byte*>(keys), kStride * 4);
  WaitForCopies();
  __syncthreads();
  const int key = first + lane;
  for (int row = static_cast<int>(threadIdx.x) / kWarp * kPlainRows; row < item.rows;
       row += kWarps * kPlainRows) {
    const float* queries[kPlainRows];
    float sums[kPlainRows] = {};
#pragma unroll
    for (int r = 0; r < kPlainRows; ++r) {
      const int there = min(row + r, item.rows - 1);
      queries[r] = reinterpret_cast<const float*>(QueryAt<4>(shape, item, there));
    }
    for (int i = 0; i < shape.head_dim; i += 4) {
      const float4 k = *reinterpret_cast<const float4*>(keys + lane * kStride + i);
#pragma unroll
      for (int r = 0; r < kPlainRows; ++r) {
        const float4 q = *reinterpret_cast<const float4*>(queries[r] + i);
        sums[r] = fmaf(q.x, k.x, sums[r]);
        sums[r] = fmaf(q.y, k.y, sums[r]);
        sums[r] = fmaf(q.z, k.z, sums[r]);
        sums[r] = fmaf(q.w, k.w, sums[r]);
      }
    }
#pragma unroll
    for (int r = 0; r < kPlainRows; ++r) {
      if (row + r >= item.rows || key >= item.keys.count) continue;
      item.logits[(row + r) * item.stride + key] =
          key < SeenBy(shape, item, row + r) ? sums[r] * shape.scale : kUnseen;
    }
  }
}

template <DType kType>
cudaError_t LaunchTiles(cudaStream_t stream, const LogitsBatch& batch, unsigned blocks) {
  const int head_dim = batch.shape.head_dim;
  const auto kernel = head_dim <= 64    ? TileLogits<kType, 64>
                      : head_dim <= 128 ? TileLogits<kType, 128>
                                        : TileLogits<kType, kHeadDimMax>;
  return LaunchKernel(kernel, blocks, kBlockThreads, 0, stream, batch);
}

LogitsItem ItemOf(const KeyLogitsCall& call, const KeyLogitsItem& from) {
  const PageRun& run = from.keys.pages;
  const int64_t ahead = from.q_position - from.keys.position + 1;
  constexpr int64_t kFar = int64_t{1} << 30;  // more than there are keys
  return {.q = static_cast<const std::byte*>(from.q),
          .q_stride = from.q_stride * static_cast<int64_t>(DTypeBytes(call.activation)),
          .keys = RowsOf(call.format, run, run.k),
          .logits = from.logits,
          .stride = from.stride,
          .rows = static_cast<int32_t>(from.rows * call.group),
          .ahead = static_cast<int32_t>(std::clamp(ahead, -kFar, kFar))};
}

}  // namespace

bool CanMakeLogits(const KeyLogitsCall& call, std::span<const KeyLogitsItem> items) {
  const int head_dim = call.format.head_dim;
  if (head_dim < 8 || head_dim > kHeadDimMax || head_dim % 8 != 0 || call.group < 1 ||
      call.format.dtype != call.activation) {
    return false;
  }
  return std::all_of(items.begin(), items.end(), [&](const KeyLogitsItem& item) {
    const PageRun& run = item.keys.pages;
    return run.params == nullptr && item.keys.positions == nullptr && Aligned(run.k) &&
           run.page_stride % 16 == 0 && RowsAligned(item.q, item.q_stride, call.activation);
  });
}

cudaError_t KeyLogits(cudaStream_t stream, const KeyLogitsCall& call,
                      std::span<const KeyLogitsItem> items) {
  const LogitsShape shape = {call.format.head_dim, call.group, call.scale};
  const bool plain = call.format.dtype == DType::kF32;
  std::vector<LogitsItem> on_gpu;
  for (const KeyLogitsItem& item : items) on_gpu.push_back(ItemOf(call, item));
  return InBatches(
      shape, std::span<const LogitsItem>(on_gpu),
      [&](const LogitsItem& item) {
        return item.rows == 0 ? 0 : CeilDiv(item.keys.count, plain ? kPlainKeys : kTileKeys);
      },
      [&](const LogitsBatch& batch, unsigned blocks) {
        if (plain) return LaunchKernel(PlainLogits, blocks, kBlockThreads, 0, stream, batch);
        return call.format.dtype == DType::kBF16 ? LaunchTiles<DType::kBF16>(stream, batch, blocks)
                                                 : LaunchTiles<DType::kF16>(stream, batch, blocks);
      });
}

}  // namespace headway::cuda
