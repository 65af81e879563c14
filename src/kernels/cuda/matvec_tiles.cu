// Tensor cores: 16 lines and up to 8 rows a tile, its `in` dealt to the warps of a block.
#include <algorithm>
#include <cstdint>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/matvec_problem.h"
#include "kernels/cuda/memory.h"
#include "kernels/cuda/tensor_core.h"
#include "kernels/cuda/warp.h"

namespace headway::cuda {
namespace {

constexpr int kTileWarps = 8;
constexpr int kTileThreads = kTileWarps * kWarp;
constexpr int kTileBlocks = 3;  // of an SM
constexpr int kTileLines = 16;
constexpr int kTileRows = 8;
constexpr int kTileRowStride = 20;  // floats; spreads the rows of a sum over the banks
constexpr int kTileChunks = 8;      // 16-byte chunks of a line in a warp's batch

// Tiles of an op; with swiglu 8 lines of gate and 8 of up make one.
__host__ __device__ inline int TilesOf(int out, bool swiglu) {
  const int outputs = swiglu ? kTileLines / 2 : kTileLines;
  return (out + outputs - 1) / outputs;
}

struct TileBatch {
  uint4 low[2];   // of line lane / 4 of the tile
  uint4 high[2];  // of line lane / 4 + 8
  uint4 x[2];     // of row lane / 4
};

// The 16 bytes that a lane reads hold 8 consecutive elements of a line, where the instruction wants
// pairs of elements from 4 places. A dot product does not mind in which order it is summed: lines
// and rows are read the same way, so that each element meets its own.
template <DType kType>
__global__ void __launch_bounds__(kTileThreads, kTileBlocks)
    TileKernel(const __grid_constant__ MatVecProblem problem) {
  LetNextStart();
  __shared__ float sums[2][kTileWarps][kTileRows * kTileRowStride];
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int group = lane / 4;
  const int chunks = problem.in / 8;
  const int steps = (chunks + kTileChunks * kTileWarps - 1) / (kTileChunks * kTileWarps);
  const int grid = static_cast<int>(gridDim.x);

  // The op of a tile, and its first output there.
  auto find = [&](int tile) {
    Place place{0, 0};
    if (!problem.swiglu) {
      while (place.op + 1 < problem.op_count) {
        const int tiles = TilesOf(problem.ops[place.op].out, false);
        if (tile < tiles) break;
        tile -= tiles;
        ++place.op;
      }
    }
    place.out = tile * (problem.swiglu ? kTileLines / 2 : kTileLines);
    return place;
  };
  int tiles = 0;
  for (int i = 0; i < (problem.swiglu ? 1 : problem.op_count); ++i) {
    tiles += TilesOf(problem.ops[i].out, problem.swiglu);
  }

  const uint4* const x_row = static_cast<const uint4*>(problem.x) + int64_t{group} * chunks;
  const bool has_row = group < problem.rows;
  const uint4* low = nullptr;
  const uint4* high = nullptr;
  // Lines past the end of an op repeat its last one.
  auto open = [&](int tile) {
    const Place place = find(tile);
    const MatVecOp& op = problem.ops[place.op];
    const MatVecOp& other = problem.swiglu ? problem.ops[1] : op;
    const int other_out = problem.swiglu ? place.out + group : place.out + group + 8;
    low = reinterpret_cast<const uint4*>(op.weight) +
          int64_t{min(place.out + group, op.out - 1)} * chunks;
    high =
        reinterpret_cast<const uint4*>(other.weight) + int64_t{min(other_out, op.out - 1)} * chunks;
  };
  auto first_chunk = [&](int step) { return (step * kTileWarps + warp) * kTileChunks + lane % 4; };
  auto load_lines = [&](int step, TileBatch& batch) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int chunk = first_chunk(step) + i * 4;
      batch.low[i] = chunk < chunks ? LoadStreaming(low + chunk) : uint4{0, 0, 0, 0};
      batch.high[i] = chunk < chunks ? LoadStreaming(high + chunk) : uint4{0, 0, 0, 0};
    }
  };
  auto load_rows = [&](int step, TileBatch& batch) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int chunk = first_chunk(step) + i * 4;
      batch.x[i] = chunk < chunks && has_row ? x_row[chunk] : uint4{0, 0, 0, 0};
    }
  };

  int tile = static_cast<int>(blockIdx.x);
  int step = 0;
  int side = 0;
  float sum[4] = {};
  // Works on the batch in hand; at the end of a tile adds up what the warps have. Another tile's
  // sums use the other side of the buffer, so that one barrier a tile is enough.
  auto consume = [&](const TileBatch& batch) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t first[4] = {batch.low[i].x, batch.high[i].x, batch.low[i].y, batch.high[i].y};
      MultiplyAdd<kType>(sum, first, batch.x[i].x, batch.x[i].y);
      const uint32_t last[4] = {batch.low[i].z, batch.high[i].z, batch.low[i].w, batch.high[i].w};
      MultiplyAdd<kType>(sum, last, batch.x[i].z, batch.x[i].w);
    }
    if (++step < steps) return;
    float* const mine = sums[side][warp] + lane % 4 * 2 * kTileRowStride + group;
    mine[0] = sum[0];
    mine[kTileRowStride] = sum[1];
    mine[8] = sum[2];
    mine[kTileRowStride + 8] = sum[3];
    __syncthreads();
    auto total = [&](int row, int line) {
      float value = 0.0f;
#pragma unroll
      for (int i = 0; i < kTileWarps; ++i) value += sums[side][i][row * kTileRowStride + line];
      return value;
    };
    const int line = static_cast<int>(threadIdx.x) % kTileLines;
    const int row = static_cast<int>(threadIdx.x) / kTileLines;
    if (row < problem.rows) {
      const Place place = find(tile);
      const MatVecOp& op = problem.ops[place.op];
      if (place.out + line < op.out) {
        if (!problem.swiglu) {
          StoreResult(op, problem.activation, row, place.out + line, total(row, line),
                      AddedTo(op, row, place.out + line));
        } else if (line < kTileLines / 2) {
          StoreSwiGlu(problem, row, place.out + line, total(row, line), total(row, line + 8));
        }
      }
    }
#pragma unroll
    for (float& value : sum) value = 0.0f;
    side ^= 1;
    step = 0;
    tile += grid;
  };

  int next_tile = tile;
  int next_step = 0;
  auto advance = [&] {
    if (++next_step < steps) return;
    next_step = 0;
    next_tile += grid;
  };
  auto load_next = [&](TileBatch& batch) {
    if (next_step == 0) {
      if (next_tile >= tiles) return;
      open(next_tile);
    }
    load_lines(next_step, batch);
    load_rows(next_step, batch);
    advance();
  };

  TileBatch even;
  TileBatch odd;
  if (next_tile < tiles) {  // always; or the assembler has the loads behind the wait
    open(next_tile);
    load_lines(0, even);
  }
  WaitForPrevious();
  load_rows(0, even);
  advance();
  while (true) {
    load_next(odd);
    consume(even);
    if (tile >= tiles) break;
    load_next(even);
    consume(odd);
    if (tile >= tiles) break;
  }
}

template <DType kType>
cudaError_t LaunchTilesOf(cudaStream_t stream, const DeviceLimits& limits,
                          const MatVecProblem& problem) {
  int tiles = 0;
  for (int i = 0; i < (problem.swiglu ? 1 : problem.op_count); ++i) {
    tiles += TilesOf(problem.ops[i].out, problem.swiglu);
  }
  return LaunchKernel(TileKernel<kType>, std::min(tiles, limits.sms * kTileBlocks), kTileThreads, 0,
                      stream, problem);
}

}  // namespace

cudaError_t LaunchTiles(cudaStream_t stream, const DeviceLimits& limits, DType dtype,
                        const MatVecProblem& problem) {
  if (dtype == DType::kBF16) return LaunchTilesOf<DType::kBF16>(stream, limits, problem);
  return LaunchTilesOf<DType::kF16>(stream, limits, problem);
}

}  // namespace headway::cuda
