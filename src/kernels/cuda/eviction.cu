#include "kernels/cuda/eviction.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "base/bytes.h"
#include "kernels/cuda/elements.h"
#include "kernels/cuda/item_batch.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/memory.h"
#include "kernels/cuda/warp.h"
#include "kernels/cuda/workspace.h"

namespace headway::cuda {
namespace {

constexpr float kUnseen = -std::numeric_limits<float>::infinity();

// Threads of a block that takes a row, and loads that each has under way.
constexpr int kRowThreads = 512;
constexpr int kRowWarps = kRowThreads / kWarp;
constexpr int kAtOnce = 8;

struct NoShape {};
using WeightsBatch = ItemBatch<KeyWeightsItem, NoShape>;

// What to subtract from logits whose maximum is `max`: -inf minus -inf would be NaN.
__device__ inline float Finite(float max) { return max == kUnseen ? 0.0f : max; }

// A sum of exponentials, relative to that of the largest number.
struct RunningSum {
  float top = kUnseen;
  float total = 0.0f;

  // To the measure of `other_top`, which is at least `top`.
  __device__ void Raise(float other_top) {
    total *= expf(top - Finite(other_top));
    top = other_top;
  }
};

// A block takes a row: each thread its own columns in order, then warps and the block by a fixed
// tree.
__global__ void __launch_bounds__(kRowThreads) RowSums(const __grid_constant__ WeightsBatch batch) {
  FollowPrevious();
  __shared__ float tops[kRowWarps];
  __shared__ float totals[kRowWarps];
  const int at = ItemOfBlock(batch);
  const KeyWeightsItem& item = batch.items[at];
  const int64_t row = static_cast<int>(blockIdx.x) - batch.first_block[at];
  const float* logits = item.logits + row * item.stride;
  RunningSum sum;
  for (int64_t first = threadIdx.x; first < item.columns; first += kAtOnce * kRowThreads) {
    float values[kAtOnce];
    float top = sum.top;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int64_t column = first + i * kRowThreads;
      values[i] = column < item.columns ? logits[column] : kUnseen;
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) top = fmaxf(top, values[i]);
    sum.Raise(top);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) sum.total += expf(values[i] - Finite(top));
  }
  float top = sum.top;
  for (int apart = 1; apart < kWarp; apart *= 2) {
    top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, apart));
  }
  sum.Raise(top);
  const float of_warp = WarpSum(sum.total);
  if (threadIdx.x % kWarp == 0) {
    tops[threadIdx.x / kWarp] = top;
    totals[threadIdx.x / kWarp] = of_warp;
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int i = 1; i < kRowWarps; ++i) top = fmaxf(top, tops[i]);
  float total = 0.0f;
  for (int i = 0; i < kRowWarps; ++i) {
    RunningSum part = {tops[i], totals[i]};
    part.Raise(top);
    total += part.total;
  }
  item.row_lse[row] = top + logf(total);
}

// A thread takes a column, row by row.
__global__ void __launch_bounds__(kThreads) ColumnSums(const __grid_constant__ WeightsBatch batch) {
  FollowPrevious();
  const int at = ItemOfBlock(batch);
  const KeyWeightsItem& item = batch.items[at];
  const int64_t block = static_cast<int>(blockIdx.x) - batch.first_block[at];
  const int64_t column = block * kThreads + threadIdx.x;
  if (column >= item.columns) return;
  const float* logits = item.logits + column;
  float sum = 0.0f;
  float max = item.raises ? item.max[column] : 0.0f;
#pragma unroll 8
  for (int64_t row = 0; row < item.rows; ++row) {
    const float weight = expf(logits[row * item.stride] - item.row_lse[row]);
    sum += weight;
    max = fmaxf(max, weight);
  }
  float& there = item.sum[item.average.SlotOf(column)];
  there = item.average.Join(column, there, sum);
  if (item.max != nullptr) item.max[column] = max;
}

struct GatherShape {
  int32_t page_slots;
  int32_t row_bytes;
};

struct Slots {
  const std::byte* k;
  const std::byte* v;
  int64_t page_stride;
  int64_t first_slot;
};

struct GatherItem {
  Slots from;
  const int32_t* slots;
  int64_t count;
  std::byte* to_k;
  std::byte* to_v;
  int64_t to_page_stride;
  int64_t to_first_slot;
};
using GatherBatch = ItemBatch<GatherItem, GatherShape>;

// Bytes from the first page to a slot.
__device__ inline int64_t OffsetOf(const GatherShape& shape, int64_t page_stride, int64_t slot) {
  const int64_t page = slot / shape.page_slots;
  return page * page_stride + (slot - page * shape.page_slots) * shape.row_bytes;
}

// A thread takes 16 bytes of K and of V.
__global__ void __launch_bounds__(kThreads) Gather(const __grid_constant__ GatherBatch batch) {
  WaitForPrevious();  // and lets nothing start before its end, for KeysOfEarlierSteps
  const int at = ItemOfBlock(batch);
  const GatherItem& item = batch.items[at];
  const int chunks = batch.shape.row_bytes / 16;
  const int64_t block = static_cast<int>(blockIdx.x) - batch.first_block[at];
  const int64_t index = block * kThreads + threadIdx.x;
  const int64_t slot = index / chunks;
  if (slot >= item.count) return;
  const int64_t chunk = (index - slot * chunks) * 16;
  const int64_t taken = item.slots == nullptr ? slot : item.slots[slot];
  const int64_t from =
      chunk + OffsetOf(batch.shape, item.from.page_stride, item.from.first_slot + taken);
  const int64_t to = chunk + OffsetOf(batch.shape, item.to_page_stride, item.to_first_slot + slot);
  const uint4 key = LoadOnce(item.from.k + from);
  const bool both = item.to_v != nullptr;
  uint4 value = {};
  if (both) value = LoadOnce(item.from.v + from);  // on its way while the key is
  *reinterpret_cast<uint4*>(item.to_k + to) = key;
  if (both) *reinterpret_cast<uint4*>(item.to_v + to) = value;
}

int32_t RowBytes(const PageFormat& format) {
  return format.head_dim * static_cast<int32_t>(DTypeBytes(format.dtype));
}

bool OnPages(const PageRun& run) {
  return run.params == nullptr && Aligned(run.k) && Aligned(run.v) && run.page_stride % 16 == 0;
}

}  // namespace

cudaError_t KeyWeights(cudaStream_t stream, std::span<const KeyWeightsItem> items) {
  const cudaError_t error = InBatches(
      NoShape(), items,
      [](const KeyWeightsItem& item) { return item.columns == 0 ? 0 : item.rows; },
      [&](const WeightsBatch& batch, unsigned blocks) {
        return LaunchKernel(RowSums, blocks, kRowThreads, 0, stream, batch);
      });
  if (error != cudaSuccess) return error;
  return InBatches(
      NoShape(), items, [](const KeyWeightsItem& item) { return CeilDiv(item.columns, kThreads); },
      [&](const WeightsBatch& batch, unsigned blocks) {
        return LaunchKernel(ColumnSums, blocks, kThreads, 0, stream, batch);
      });
}

bool CanGather(const PageFormat& format, std::span<const GatherSlotsItem> items) {
  return RowBytes(format) % 16 == 0 &&
         std::all_of(items.begin(), items.end(), [](const GatherSlotsItem& item) {
           return OnPages(item.from) && OnPages(item.to);
         });
}

cudaError_t GatherSlots(cudaStream_t stream, const PageFormat& format,
                        std::span<const GatherSlotsItem> items) {
  const GatherShape shape = {format.page_slots, RowBytes(format)};
  std::vector<GatherItem> on_gpu;
  for (const GatherSlotsItem& item : items) {
    const PageRun& from = item.from;
    on_gpu.push_back({.from = {from.k, from.v, from.page_stride, from.first_slot},
                      .slots = item.slots,
                      .count = item.count,
                      .to_k = item.to.k,
                      .to_v = item.to.v,
                      .to_page_stride = item.to.page_stride,
                      .to_first_slot = item.to.first_slot});
  }
  return InBatches(
      shape, std::span<const GatherItem>(on_gpu),
      [&](const GatherItem& item) {
        return CeilDiv(item.count * (shape.row_bytes / 16), int64_t{kThreads});
      },
      [&](const GatherBatch& batch, unsigned blocks) {
        return LaunchKernel(Gather, blocks, kThreads, 0, stream, batch);
      });
}

}  // namespace headway::cuda
