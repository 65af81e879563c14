// Norms of values behind the projection of attention's output: a block of threads takes a tile of
// values, reads it once and goes over the projection's rows, head by head of the group.
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
#include "kernels/cuda/tensor_core.h"
#include "kernels/cuda/warp.h"
#include "kernels/cuda/workspace.h"

namespace headway::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kBlockThreads = kWarps * kWarp;

// Of tensor cores: 16 values a warp, whose elements stay in registers.
constexpr int kTileValues = 16 * kWarps;
constexpr int kTileRows = kTileValues / 2;  // of the weight; two such tiles take the values' place
// Of f32: a value a lane; rows that a lane has sums of at a time.
constexpr int kPlainValues = kWarp;
constexpr int kPlainRows = 4;

struct ProjectionShape {
  int32_t group;
};

struct ProjectionItem {
  SlotRows values;
  const std::byte* weight;  // the group's first column
  int64_t row_bytes;        // from a row of the weight to the next
  float* norms;
  int32_t out;
};
using ProjectionBatch = ItemBatch<ProjectionItem, ProjectionShape>;

// Starts the way of rows [first, first + kTileRows) of the part that query head `head` has of the
// weight.
template <int kD>
__device__ inline void StartWeight(const ProjectionItem& item, int head, int first, uint16_t* to) {
  constexpr int kChunks = kD / 8;
  const int dim = item.values.head_dim;
  for (int i = static_cast<int>(threadIdx.x); i < kTileRows * kChunks; i += kBlockThreads) {
    const int row = i / kChunks;
    const int column = i % kChunks * 8;
    const bool valid = first + row < item.out && column < dim;
    const std::byte* from =
        item.weight + (valid ? (first + row) * item.row_bytes + (head * dim + column) * 2 : 0);
    CopyAsync(to + row * (kD + 8) + column, from, valid);
  }
}

// Heads of up to kD elements of 16 bits.
template <DType kType, int kD>
__global__ void __launch_bounds__(kBlockThreads)
    TileNorms(const __grid_constant__ ProjectionBatch batch) {
  FollowPrevious();
  constexpr int kStride = kD + 8;  // the 8 rows of a matrix lie in different banks
  constexpr int kSteps = kD / 16;
  __shared__ __align__(16) uint16_t shared[kTileValues * kStride];
  const int at = ItemOfBlock(batch);
  const ProjectionItem& item = batch.items[at];
  const int first = (static_cast<int>(blockIdx.x) - batch.first_block[at]) * kTileValues;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;

  StartRows<kTileValues, kD, 2, kBlockThreads>(item.values, first,
                                               reinterpret_cast<std::byte*>(shared), kStride * 2);
  WaitForCopies();
  __syncthreads();
  uint32_t values[kSteps][4];
  const uint16_t* v = shared + (warp * 16 + lane / 16 * 8 + lane % 8) * kStride + lane / 8 % 2 * 8;
#pragma unroll
  for (int step = 0; step < kSteps; ++step) LoadMatrices(v + step * 16, values[step]);
  __syncthreads();

  // Tiles of rows, of one head after the other.
  const int of_head = (item.out + kTileRows - 1) / kTileRows;
  const int tiles = of_head * batch.shape.group;
  const auto start = [&](int tile) {
    if (tile < tiles) {
      StartWeight<kD>(item, tile / of_head, tile % of_head * kTileRows,
                      shared + tile % 2 * kTileRows * kStride);
    }
    GroupCopies();
  };
  float norms[2][2] = {};  // of values lane % 4 * 2 and the next, and of those 8 further
  start(0);
  for (int tile = 0; tile < tiles; ++tile) {
    start(tile + 1);
    WaitForCopiesButNewest();
    __syncthreads();
#pragma unroll
    for (int part = 0; part < kTileRows; part += 16) {
      float sums[2][4] = {};
      const uint16_t* w =
          shared + (tile % 2 * kTileRows + part + lane % 16) * kStride + lane / 16 * 8;
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        uint32_t rows[4];
        LoadMatrices(w + step * 16, rows);
        MultiplyAdd<kType>(sums[0], rows, values[step][0], values[step][1]);
        MultiplyAdd<kType>(sums[1], rows, values[step][2], values[step][3]);
      }
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        norms[n][0] += fabsf(sums[n][0]) + fabsf(sums[n][2]);
        norms[n][1] += fabsf(sums[n][1]) + fabsf(sums[n][3]);
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int n = 0; n < 2; ++n) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      // Lanes with the same lane % 4 have other rows of the same values.
      for (int apart = 4; apart < kWarp; apart *= 2) {
        norms[n][i] += __shfl_xor_sync(kAllLanes, norms[n][i], apart);
      }
      const int value = first + warp * 16 + lane % 4 * 2 + n * 8 + i;
      if (lane < 4 && value < item.values.count) {
        item.norms[value] = norms[n][i] / static_cast<float>(batch.shape.group);
      }
    }
  }
}

// Heads of f32.
__global__ void __launch_bounds__(kBlockThreads)
    PlainNorms(const __grid_constant__ ProjectionBatch batch) {
  FollowPrevious();
  constexpr int kStride = kHeadDimMax + 4;  // 16 bytes of neighbours lie in different banks
  __shared__ __align__(16) float values[kPlainValues * kStride];
  __shared__ float totals[kWarps][kWarp];
  const int at = ItemOfBlock(batch);
  const ProjectionItem& item = batch.items[at];
  const int first = (static_cast<int>(blockIdx.x) - batch.first_block[at]) * kPlainValues;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int dim = item.values.head_dim;
  StartRows<kPlainValues, kHeadDimMax, 4, kBlockThreads>(
      item.values, first, reinterpret_cast<std::byte*>(values), kStride * 4);
  WaitForCopies();
  __syncthreads();
  float total = 0.0f;
  const int rows = item.out * batch.shape.group;
  for (int row = warp * kPlainRows; row < rows; row += kWarps * kPlainRows) {
    const float* weights[kPlainRows];
    float sums[kPlainRows] = {};
#pragma unroll
    for (int r = 0; r < kPlainRows; ++r) {
      const int there = min(row + r, rows - 1);
      weights[r] = reinterpret_cast<const float*>(item.weight + there % item.out * item.row_bytes) +
                   there / item.out * dim;
    }
    for (int i = 0; i < dim; i += 4) {
      const float4 v = *reinterpret_cast<const float4*>(values + lane * kStride + i);
#pragma unroll
      for (int r = 0; r < kPlainRows; ++r) {
        const float4 w = *reinterpret_cast<const float4*>(weights[r] + i);
        sums[r] = fmaf(w.x, v.x, sums[r]);
        sums[r] = fmaf(w.y, v.y, sums[r]);
        sums[r] = fmaf(w.z, v.z, sums[r]);
        sums[r] = fmaf(w.w, v.w, sums[r]);
      }
    }
#pragma unroll
    for (int r = 0; r < kPlainRows; ++r) {
      if (row + r < rows) total += fabsf(sums[r]);
    }
  }
  totals[warp][lane] = total;
  __syncthreads();
  if (warp != 0 || first + lane >= item.values.count) return;
  for (int other = 1; other < kWarps; ++other) total += totals[other][lane];
  item.norms[first + lane] = total / static_cast<float>(batch.shape.group);
}

template <DType kType>
cudaError_t LaunchTiles(cudaStream_t stream, int head_dim, const ProjectionBatch& batch,
                        unsigned blocks) {
  const auto kernel = head_dim <= 64    ? TileNorms<kType, 64>
                      : head_dim <= 128 ? TileNorms<kType, 128>
                                        : TileNorms<kType, kHeadDimMax>;
  return LaunchKernel(kernel, blocks, kBlockThreads, 0, stream, batch);
}

}  // namespace

bool CanProject(const PageFormat& format, std::span<const ProjectedNormsItem> items) {
  const int head_dim = format.head_dim;
  if (head_dim < 8 || head_dim > kHeadDimMax || head_dim % 8 != 0) return false;
  return std::all_of(items.begin(), items.end(), [&](const ProjectedNormsItem& item) {
    return item.values.params == nullptr && Aligned(item.values.v) &&
           item.values.page_stride % 16 == 0 && item.weight.dtype == format.dtype &&
           item.first_column % 8 == 0 &&
           RowsAligned(item.weight.data, item.weight.in, format.dtype);
  });
}

cudaError_t ProjectedNorms(cudaStream_t stream, const PageFormat& format, int group,
                           std::span<const ProjectedNormsItem> items) {
  const bool plain = format.dtype == DType::kF32;
  const auto element = static_cast<int64_t>(DTypeBytes(format.dtype));
  std::vector<ProjectionItem> on_gpu;
  for (const ProjectedNormsItem& item : items) {
    on_gpu.push_back({.values = RowsOf(format, item.values, item.values.v),
                      .weight = item.weight.data + item.first_column * element,
                      .row_bytes = item.weight.in * element,
                      .norms = item.norms,
                      .out = static_cast<int32_t>(item.weight.out)});
  }
  return InBatches(
      ProjectionShape{group}, std::span<const ProjectionItem>(on_gpu),
      [&](const ProjectionItem& item) {
        return CeilDiv(int64_t{item.values.count}, int64_t{plain ? kPlainValues : kTileValues});
      },
      [&](const ProjectionBatch& batch, unsigned blocks) {
        if (plain) return LaunchKernel(PlainNorms, blocks, kBlockThreads, 0, stream, batch);
        return format.dtype == DType::kBF16
                   ? LaunchTiles<DType::kBF16>(stream, format.head_dim, batch, blocks)
                   : LaunchTiles<DType::kF16>(stream, format.head_dim, batch, blocks);
      });
}

}  // namespace headway::cuda
