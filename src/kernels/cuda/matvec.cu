#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/matvec.h"
#include "kernels/cuda/warp.h"

// Three kernels. One row, and rows whose dtype is not the weights': a warp takes a line (a row of
// the weight matrix), or a part of one, at a time. Several rows of the weights' own 16-bit dtype:
// tensor cores, since there the multiplications would take longer than the weights do to arrive.
// Weights that cannot be read 16 bytes at a time: one element at a time.
//
// The two fast ones keep one batch of weights on its way while they work on another, also from one
// line to the next, and ask for the first batch before they touch x.
namespace headway::cuda {
namespace {

constexpr int kOpsMax = 4;

struct Op {
  const std::byte* weight;
  const float* bias;
  void* y;
  int64_t y_stride;
  int out;
  DType dtype;
  LinearResult result;
};

struct Problem {
  Op ops[kOpsMax];
  int op_count;
  bool swiglu;  // ops are gate and up, and y is ops[0]'s
  DType activation;
  const void* x;
  bool normed;  // x is one row of f32, and its norm the operand
  NormView norm;
  int rows;
  int in;
  int outputs;    // of all ops; of one with swiglu
  int per_block;  // outputs of a block
  int split;      // parts of a line, each a warp's
  int part_steps;
};

// Where output `index` of all ops is.
struct Place {
  int op;
  int out;
};

__device__ inline Place Find(const Problem& problem, int index) {
  Place place{0, index};
  if (!problem.swiglu) {
    while (place.op + 1 < problem.op_count && place.out >= problem.ops[place.op].out) {
      place.out -= problem.ops[place.op].out;
      ++place.op;
    }
  }
  return place;
}

__device__ inline void StoreActivation(void* y, int64_t index, DType dtype, float value) {
  if (dtype == DType::kF32) {
    static_cast<float*>(y)[index] = value;
  } else if (dtype == DType::kBF16) {
    static_cast<__nv_bfloat16*>(y)[index] = __float2bfloat16_rn(value);
  } else {
    static_cast<__half*>(y)[index] = __float2half_rn(value);
  }
}

__device__ inline void StoreResult(const Op& op, DType activation, int row, int out, float sum) {
  if (op.bias != nullptr) sum += op.bias[out];
  const int64_t at = row * op.y_stride + out;
  if (op.result == LinearResult::kRelu && sum < 0.0f) sum = 0.0f;
  if (op.result == LinearResult::kActivation || op.result == LinearResult::kRelu) {
    StoreActivation(op.y, at, activation, sum);
  } else {
    float* y = static_cast<float*>(op.y) + at;
    *y = op.result == LinearResult::kAddFloat ? *y + sum : sum;
  }
}

__device__ inline void StoreSwiGlu(const Problem& problem, int row, int out, float gate, float up) {
  const Op& op = problem.ops[0];
  if (op.bias != nullptr) gate += op.bias[out];
  if (problem.ops[1].bias != nullptr) up += problem.ops[1].bias[out];
  StoreActivation(op.y, row * op.y_stride + out, problem.activation,
                  gate / (1.0f + expf(-gate)) * up);
}

// Weights are read once: they must not push x out of L1.
__device__ inline uint4 LoadWeights(const uint4* from) {
  uint4 value;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(from));
  return value;
}

template <DType kType>
__device__ inline float2 UnpackPair(uint32_t pair) {
  if constexpr (kType == DType::kBF16) {
    return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xFFFF0000u)};
  } else {
    __half2 halves;
    memcpy(&halves, &pair, sizeof(pair));
    return __half22float2(halves);
  }
}

// The 16 bytes of a load as floats.
template <DType kType>
__device__ inline void Unpack(const uint4& from, float* to) {
  const uint32_t words[4] = {from.x, from.y, from.z, from.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (kType == DType::kF32) {
      to[i] = __uint_as_float(words[i]);
    } else {
      const float2 pair = UnpackPair<kType>(words[i]);
      to[2 * i] = pair.x;
      to[2 * i + 1] = pair.y;
    }
  }
}

// ---- A warp a line.

constexpr int kLineWarps = 16;
constexpr int kLineThreads = kLineWarps * kWarp;
constexpr int kStepLoads = 4;  // 16-byte loads of a lane in a step
constexpr int kStepChunks = kStepLoads * kWarp;

// 16-byte loads of a weight row, and the steps that read it.
__host__ __device__ constexpr int ElementsOf(DType dtype) { return dtype == DType::kF32 ? 4 : 8; }
__host__ __device__ inline int StepsOf(DType dtype, int in) {
  const int step = kStepChunks * ElementsOf(dtype);
  return (in + step - 1) / step;
}

// x as f32 in shared memory: rows padded with zeros to whole steps. With 16-bit weights a lane
// needs 8 consecutive elements at a time; they lie in two groups of 4, each next to those of the
// neighbouring lanes, so that no two lanes of a quarter warp meet in a bank.
template <DType kWeight>
__device__ inline void StageX(const Problem& problem, int rows_staged, int padded, float* to) {
  const int chunks = padded / 8;
  for (int i = static_cast<int>(threadIdx.x); i < rows_staged * chunks; i += kLineThreads) {
    const int row = i / chunks;
    const int chunk = i - row * chunks;
    float values[8] = {};
    if (row < problem.rows && chunk * 8 < problem.in) {
      const int64_t at = int64_t{row} * problem.in + chunk * 8;
      if (problem.activation == DType::kF32) {
        const auto* from =
            reinterpret_cast<const uint4*>(static_cast<const float*>(problem.x) + at);
        Unpack<DType::kF32>(from[0], values);
        Unpack<DType::kF32>(from[1], values + 4);
      } else {
        const uint4 raw =
            *reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(problem.x) + at);
        if (problem.activation == DType::kBF16) {
          Unpack<DType::kBF16>(raw, values);
        } else {
          Unpack<DType::kF16>(raw, values);
        }
      }
    }
    float* low = to + int64_t{row} * padded +
                 (kWeight == DType::kF32 ? chunk * 8 : chunk / kWarp * 256 + chunk % kWarp * 4);
    float* high = low + (kWeight == DType::kF32 ? 4 : 128);
    *reinterpret_cast<float4*>(low) = {values[0], values[1], values[2], values[3]};
    *reinterpret_cast<float4*>(high) = {values[4], values[5], values[6], values[7]};
  }
}

// Element group i (4 elements) of the only row, laid out as StageX does: chunk i / 2 of 8 elements,
// its low or high half.
__device__ inline void StageQuad(float* to, int i, float4 value) {
  const int chunk = i / 2;
  float* at = to + chunk / kWarp * 256 + chunk % kWarp * 4 + i % 2 * 128;
  *reinterpret_cast<float4*>(at) = value;
}

// What the warps of a block have summed.
__device__ inline float TotalOf(const float (&parts)[kLineWarps]) {
  float sum = 0.0f;
#pragma unroll
  for (float part : parts) sum += part;
  return sum;
}

// The same of one row of f32 that is normed on the way. Every block does it for itself, while the
// weights that it asked for are on their way. RMSNorm's divisor is common to all elements and left
// to the results, so that the row is read once and nothing waits for its sum: `squares` gets the
// warps' sums.
__device__ inline void StageRms(const Problem& problem, int padded, float* to,
                                float (&squares)[kLineWarps]) {
  const auto* x = static_cast<const float4*>(problem.x);
  const auto* weight = reinterpret_cast<const float4*>(problem.norm.weight);
  const int thread = static_cast<int>(threadIdx.x);
  float sum = 0.0f;
#pragma unroll 4
  for (int i = thread; i < padded / 4; i += kLineThreads) {
    float4 value = {0.0f, 0.0f, 0.0f, 0.0f};
    if (i < problem.in / 4) {
      const float4 from = x[i];
      const float4 by = weight != nullptr ? weight[i] : float4{1.0f, 1.0f, 1.0f, 1.0f};
      sum += from.x * from.x + from.y * from.y + from.z * from.z + from.w * from.w;
      value = {from.x * by.x, from.y * by.y, from.z * by.z, from.w * by.w};
    }
    StageQuad(to, i, value);
  }
  sum = WarpSum(sum);
  if (thread % kWarp == 0) squares[thread / kWarp] = sum;
}

// LayerNorm, which needs the mean before anything is squared, and both before the result.
__device__ inline void StageLayerNorm(const Problem& problem, int padded, float* to) {
  __shared__ float sums[2][kLineWarps];
  const auto* x = static_cast<const float4*>(problem.x);
  const auto* weight = reinterpret_cast<const float4*>(problem.norm.weight);
  const auto* bias = reinterpret_cast<const float4*>(problem.norm.bias);
  const int thread = static_cast<int>(threadIdx.x);
  const float n = static_cast<float>(problem.in);
  auto total = [&](float sum, float(&parts)[kLineWarps]) {
    sum = WarpSum(sum);
    if (thread % kWarp == 0) parts[thread / kWarp] = sum;
    __syncthreads();
    return TotalOf(parts);
  };
  float sum = 0.0f;
  for (int i = thread; i < problem.in / 4; i += kLineThreads) {
    const float4 value = x[i];
    sum += (value.x + value.y) + (value.z + value.w);
  }
  const float mean = total(sum, sums[0]) / n;
  sum = 0.0f;
  for (int i = thread; i < problem.in / 4; i += kLineThreads) {
    float4 value = x[i];
    value = {value.x - mean, value.y - mean, value.z - mean, value.w - mean};
    sum += value.x * value.x + value.y * value.y + value.z * value.z + value.w * value.w;
  }
  const float scale = 1.0f / sqrtf(total(sum, sums[1]) / n + problem.norm.eps);
  for (int i = thread; i < padded / 4; i += kLineThreads) {
    float4 value = {0.0f, 0.0f, 0.0f, 0.0f};
    if (i < problem.in / 4) {
      const float4 from = x[i];
      const float4 by = weight != nullptr ? weight[i] : float4{1.0f, 1.0f, 1.0f, 1.0f};
      const float4 add = bias != nullptr ? bias[i] : float4{0.0f, 0.0f, 0.0f, 0.0f};
      value = {(from.x - mean) * scale * by.x + add.x, (from.y - mean) * scale * by.y + add.y,
               (from.z - mean) * scale * by.z + add.z, (from.w - mean) * scale * by.w + add.w};
    }
    StageQuad(to, i, value);
  }
}

// A step of a unit (a part of a line of this block) of a warp.
struct LineCursor {
  int unit;
  int step;
  int end;  // of the unit's steps
  const uint4* row;
};

template <DType kWeight, int kRows>
__global__ void __launch_bounds__(kLineThreads, kRows <= 2 ? 2 : 1)
    LineKernel(const __grid_constant__ Problem problem) {
  constexpr int kElements = ElementsOf(kWeight);
  extern __shared__ float4 shared[];
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int chunks = problem.in / kElements;
  const int steps = StepsOf(kWeight, problem.in);
  const int padded = steps * kStepChunks * kElements;
  float* const x = reinterpret_cast<float*>(shared);
  float* const sums = x + kRows * padded;  // [units, kRows]

  const int first = static_cast<int>(blockIdx.x) * problem.per_block;
  const int count = min(problem.per_block, problem.outputs - first);
  const int lines = problem.swiglu ? 2 * count : count;
  const int units = lines * problem.split;

  auto open = [&](LineCursor& cursor, int unit) {
    const int line = unit / problem.split;
    const int part = unit - line * problem.split;
    const Place place =
        problem.swiglu ? Place{line & 1, first + line / 2} : Find(problem, first + line);
    cursor.unit = unit;
    cursor.step = part * problem.part_steps;
    cursor.end = min(cursor.step + problem.part_steps, steps);
    cursor.row = reinterpret_cast<const uint4*>(problem.ops[place.op].weight) +
                 int64_t{place.out} * chunks + lane;
  };
  auto advance = [&](LineCursor& cursor) {
    if (++cursor.step < cursor.end) return true;
    if (cursor.unit + kLineWarps >= units) return false;
    open(cursor, cursor.unit + kLineWarps);
    return true;
  };
  auto load = [&](const LineCursor& cursor, uint4(&batch)[kStepLoads]) {
    const int chunk = cursor.step * kStepChunks;
#pragma unroll
    for (int i = 0; i < kStepLoads; ++i) {
      batch[i] = chunk + i * kWarp + lane < chunks ? LoadWeights(cursor.row + chunk + i * kWarp)
                                                   : uint4{0, 0, 0, 0};
    }
  };

  float sum[kRows] = {};
  auto consume = [&](const LineCursor& cursor, const uint4(&batch)[kStepLoads]) {
    const float* const from = x + cursor.step * (kStepChunks * kElements) + lane * 4;
#pragma unroll
    for (int i = 0; i < kStepLoads; ++i) {
      float weights[kElements];
      Unpack<kWeight>(batch[i], weights);
#pragma unroll
      for (int row = 0; row < kRows; ++row) {
#pragma unroll
        for (int part = 0; part < kElements / 4; ++part) {
          const float4 values = *reinterpret_cast<const float4*>(
              from + row * padded + i * (kWarp * kElements) + part * 128);
          sum[row] = fmaf(values.x, weights[part * 4], sum[row]);
          sum[row] = fmaf(values.y, weights[part * 4 + 1], sum[row]);
          sum[row] = fmaf(values.z, weights[part * 4 + 2], sum[row]);
          sum[row] = fmaf(values.w, weights[part * 4 + 3], sum[row]);
        }
      }
    }
    if (cursor.step + 1 < cursor.end) return;
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      sum[row] = WarpSum(sum[row]);
      if (lane == 0) sums[cursor.unit * kRows + row] = sum[row];
      sum[row] = 0.0f;
    }
  };

  uint4 even[kStepLoads];
  uint4 odd[kStepLoads];
  LineCursor next{};
  bool more = warp < units;
  LetNextStart();
  if (more) {
    open(next, warp);
    load(next, even);
  }
  WaitForPrevious();
  __shared__ float squares[kLineWarps];
  const bool normed = kRows == 1 && kWeight != DType::kF32 && problem.normed;
  const bool rms = normed && problem.norm.kind == NormKind::kRms;
  if (rms) {
    StageRms(problem, padded, x, squares);
  } else if (normed) {
    StageLayerNorm(problem, padded, x);
  } else {
    StageX<kWeight>(problem, kRows, padded, x);
  }
  __syncthreads();
  while (more) {
    LineCursor current = next;
    more = advance(next);
    if (more) load(next, odd);
    consume(current, even);
    if (!more) break;
    current = next;
    more = advance(next);
    if (more) load(next, even);
    consume(current, odd);
  }
  __syncthreads();

  const float mean = rms ? TotalOf(squares) / static_cast<float>(problem.in) : 0.0f;
  const float scale = rms ? 1.0f / sqrtf(mean + problem.norm.eps) : 1.0f;
  auto total = [&](int line, int row) {
    float value = 0.0f;
#pragma unroll 1
    for (int part = 0; part < problem.split; ++part) {
      value += sums[(line * problem.split + part) * kRows + row];
    }
    return value * scale;
  };
  for (int i = static_cast<int>(threadIdx.x); i < count * problem.rows; i += kLineThreads) {
    const int row = i / count;
    const int output = i - row * count;
    if (problem.swiglu) {
      StoreSwiGlu(problem, row, first + output, total(2 * output, row), total(2 * output + 1, row));
    } else {
      const Place place = Find(problem, first + output);
      StoreResult(problem.ops[place.op], problem.activation, row, place.out, total(output, row));
    }
  }
}

// ---- Tensor cores: 16 lines and up to 8 rows a tile, its `in` dealt to the warps of a block.

constexpr int kTileWarps = 8;
constexpr int kTileThreads = kTileWarps * kWarp;
constexpr int kTileBlocks = 3;  // of an SM
constexpr int kTileLines = 16;
constexpr int kTileRows = 8;
constexpr int kTileRowStride = 20;  // floats; spreads the rows of a sum over the banks
constexpr int kTileChunks = 8;      // 16-byte chunks of a line in a warp's batch

template <DType kType>
__device__ inline void MultiplyAdd(float (&sum)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                   uint32_t a3, uint32_t b0, uint32_t b1) {
  if constexpr (kType == DType::kBF16) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  }
}

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
    TileKernel(const __grid_constant__ Problem problem) {
  FollowPrevious();
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
    const Op& op = problem.ops[place.op];
    const Op& other = problem.swiglu ? problem.ops[1] : op;
    const int other_out = problem.swiglu ? place.out + group : place.out + group + 8;
    low = reinterpret_cast<const uint4*>(op.weight) +
          int64_t{min(place.out + group, op.out - 1)} * chunks;
    high =
        reinterpret_cast<const uint4*>(other.weight) + int64_t{min(other_out, op.out - 1)} * chunks;
  };
  auto load = [&](int step, TileBatch& batch) {
    const int first = (step * kTileWarps + warp) * kTileChunks + lane % 4;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int chunk = first + i * 4;
      const bool inside = chunk < chunks;
      batch.low[i] = inside ? LoadWeights(low + chunk) : uint4{0, 0, 0, 0};
      batch.high[i] = inside ? LoadWeights(high + chunk) : uint4{0, 0, 0, 0};
      batch.x[i] = inside && has_row ? __ldg(x_row + chunk) : uint4{0, 0, 0, 0};
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
      MultiplyAdd<kType>(sum, batch.low[i].x, batch.high[i].x, batch.low[i].y, batch.high[i].y,
                         batch.x[i].x, batch.x[i].y);
      MultiplyAdd<kType>(sum, batch.low[i].z, batch.high[i].z, batch.low[i].w, batch.high[i].w,
                         batch.x[i].z, batch.x[i].w);
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
      const Op& op = problem.ops[place.op];
      if (place.out + line < op.out) {
        if (!problem.swiglu) {
          StoreResult(op, problem.activation, row, place.out + line, total(row, line));
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
  auto load_next = [&](TileBatch& batch) {
    if (next_step == 0) {
      if (next_tile >= tiles) return;
      open(next_tile);
    }
    load(next_step, batch);
    if (++next_step == steps) {
      next_step = 0;
      next_tile += grid;
    }
  };

  TileBatch even;
  TileBatch odd;
  load_next(even);
  while (true) {
    load_next(odd);
    consume(even);
    if (tile >= tiles) break;
    load_next(even);
    consume(odd);
    if (tile >= tiles) break;
  }
}

// ---- Any alignment and width: a warp an output, an element at a time.

constexpr int kSlowThreads = 256;

__device__ inline float LoadElement(const void* data, int64_t index, DType dtype) {
  const auto* halves = static_cast<const uint16_t*>(data);
  if (dtype == DType::kF32) {
    return __uint_as_float(uint32_t{halves[2 * index]} | uint32_t{halves[2 * index + 1]} << 16);
  }
  if (dtype == DType::kBF16) return __uint_as_float(uint32_t{halves[index]} << 16);
  return __half2float(__ushort_as_half(halves[index]));
}

__global__ void __launch_bounds__(kSlowThreads)
    ElementKernel(const __grid_constant__ Problem problem) {
  FollowPrevious();
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int output = static_cast<int>((blockIdx.x * kSlowThreads + threadIdx.x) / kWarp);
  if (output >= problem.outputs) return;
  const Place place = Find(problem, output);
  float gate[kMatVecRowsMax] = {};
  for (int which = 0; which < (problem.swiglu ? 2 : 1); ++which) {
    const Op& op = problem.ops[place.op + which];
    const int64_t line = int64_t{place.out} * problem.in;
    float sum[kMatVecRowsMax] = {};
#pragma unroll 4
    for (int i = lane; i < problem.in; i += kWarp) {
      const float weight = LoadElement(op.weight, line + i, op.dtype);
#pragma unroll
      for (int row = 0; row < kMatVecRowsMax; ++row) {
        if (row < problem.rows) {
          const int64_t at = int64_t{row} * problem.in + i;
          sum[row] = fmaf(LoadElement(problem.x, at, problem.activation), weight, sum[row]);
        }
      }
    }
#pragma unroll
    for (int row = 0; row < kMatVecRowsMax; ++row) {
#pragma unroll
      for (int distance = kWarp / 2; distance > 0; distance /= 2) {
        sum[row] += __shfl_xor_sync(kAllLanes, sum[row], distance);
      }
      if (lane == 0 && row < problem.rows) {
        if (!problem.swiglu) {
          StoreResult(op, problem.activation, row, place.out, sum[row]);
        } else if (which == 1) {
          StoreSwiGlu(problem, row, place.out, gate[row], sum[row]);
        }
      }
      gate[row] = sum[row];
    }
  }
}

// ---- Host.

struct DeviceLimits {
  int sms = 0;
  int block_shared = 0;  // bytes
  int sm_shared = 0;
};

cudaError_t GetLimits(DeviceLimits* limits) {
  int device = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return error;
  error = cudaDeviceGetAttribute(&limits->sms, cudaDevAttrMultiProcessorCount, device);
  if (error != cudaSuccess) return error;
  error = cudaDeviceGetAttribute(&limits->block_shared, cudaDevAttrMaxSharedMemoryPerBlockOptin,
                                 device);
  if (error != cudaSuccess) return error;
  return cudaDeviceGetAttribute(&limits->sm_shared, cudaDevAttrMaxSharedMemoryPerMultiprocessor,
                                device);
}

constexpr int64_t kWaveBytes = int64_t{512} << 10;  // weights of a block, about
constexpr int kBlockLinesMax = 128;
constexpr int kSharedDefault = 48 << 10;
constexpr int64_t kNormedBytesMax = 64 << 10;  // of a normed row in shared memory

// How many outputs a block takes: whole waves of blocks, all of about the same size, none so long
// that the last ones to finish are waited for.
void DealLines(const DeviceLimits& limits, DType weight, int sm_blocks, Problem* problem) {
  const int steps = StepsOf(weight, problem->in);
  const int lines = problem->swiglu ? 2 : 1;
  const int64_t slots = int64_t{limits.sms} * sm_blocks;
  const int64_t bytes =
      int64_t{problem->outputs} * lines * problem->in * static_cast<int64_t>(DTypeBytes(weight));
  const int64_t waves = std::max<int64_t>((bytes / slots + kWaveBytes / 2) / kWaveBytes, 1);
  problem->per_block = static_cast<int>(std::min<int64_t>(
      (problem->outputs + slots * waves - 1) / (slots * waves), kBlockLinesMax / lines));
  // Lines are split where that evens out the warps' shares.
  int best = 0;
  for (int split = 1; split <= std::min(kLineWarps, steps); split *= 2) {
    const int part_steps = (steps + split - 1) / split;
    const int parts = (steps + part_steps - 1) / part_steps;
    const int units = problem->per_block * lines * parts;
    const int longest = (units + kLineWarps - 1) / kLineWarps * part_steps;
    if (best == 0 || longest * 33 < best * 32) {
      best = longest;
      problem->split = parts;
      problem->part_steps = part_steps;
    }
  }
}

template <DType kWeight, int kRows>
cudaError_t LaunchLines(cudaStream_t stream, const DeviceLimits& limits, Problem problem,
                        int x_bytes) {
  const bool two = kRows <= 2 && 2 * (x_bytes + (8 << 10)) <= limits.sm_shared;
  DealLines(limits, kWeight, two ? 2 : 1, &problem);
  const int units = problem.per_block * (problem.swiglu ? 2 : 1) * problem.split;
  const int shared = x_bytes + units * kRows * static_cast<int>(sizeof(float));
  const auto kernel = LineKernel<kWeight, kRows>;
  if (shared > kSharedDefault) {
    const cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
    if (error != cudaSuccess) return error;
  }
  const int blocks = (problem.outputs + problem.per_block - 1) / problem.per_block;
  return LaunchKernel(kernel, blocks, kLineThreads, shared, stream, problem);
}

cudaError_t LaunchSlow(cudaStream_t stream, const Problem& problem) {
  const int warps = kSlowThreads / kWarp;
  return LaunchKernel(ElementKernel, (problem.outputs + warps - 1) / warps, kSlowThreads, 0, stream,
                      problem);
}

// As many rows at a time as shared memory holds x for.
template <DType kWeight>
cudaError_t LineRows(cudaStream_t stream, const DeviceLimits& limits, const Problem& problem) {
  const int64_t row_bytes = int64_t{StepsOf(kWeight, problem.in)} * kStepChunks *
                            ElementsOf(kWeight) * static_cast<int64_t>(sizeof(float));
  // Every unit of a block has a sum for each row.
  const int64_t sums = int64_t{kBlockLinesMax} * kLineWarps * static_cast<int64_t>(sizeof(float));
  int group = 1;
  while (group < problem.rows) group *= 2;
  while (group > 1 && group * (row_bytes + sums) > limits.block_shared) group /= 2;
  if (group * (row_bytes + sums) > limits.block_shared) return LaunchSlow(stream, problem);
  const int x_bytes = static_cast<int>(group * row_bytes);
  const auto activation_bytes = static_cast<int64_t>(DTypeBytes(problem.activation));
  for (int row = 0; row < problem.rows; row += group) {
    Problem part = problem;
    part.rows = std::min(group, problem.rows - row);
    part.x = static_cast<const std::byte*>(problem.x) + row * activation_bytes * problem.in;
    for (int i = 0; i < part.op_count; ++i) {
      const int64_t y_bytes =
          IsActivation(part.ops[i].result) ? activation_bytes : static_cast<int64_t>(sizeof(float));
      part.ops[i].y = static_cast<std::byte*>(part.ops[i].y) + row * part.ops[i].y_stride * y_bytes;
    }
    cudaError_t error = cudaSuccess;
    switch (group) {
      case 1:
        error = LaunchLines<kWeight, 1>(stream, limits, part, x_bytes);
        break;
      case 2:
        error = LaunchLines<kWeight, 2>(stream, limits, part, x_bytes);
        break;
      case 4:
        error = LaunchLines<kWeight, 4>(stream, limits, part, x_bytes);
        break;
      default:
        error = LaunchLines<kWeight, 8>(stream, limits, part, x_bytes);
        break;
    }
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

template <DType kType>
cudaError_t LaunchTiles(cudaStream_t stream, const DeviceLimits& limits, const Problem& problem) {
  int tiles = 0;
  for (int i = 0; i < (problem.swiglu ? 1 : problem.op_count); ++i) {
    tiles += TilesOf(problem.ops[i].out, problem.swiglu);
  }
  return LaunchKernel(TileKernel<kType>, std::min(tiles, limits.sms * kTileBlocks), kTileThreads, 0,
                      stream, problem);
}

// A problem whose weights all have dtype `weight` and lie on 16 bytes.
cudaError_t LaunchFast(cudaStream_t stream, DType weight, const Problem& problem) {
  DeviceLimits limits;
  const cudaError_t error = GetLimits(&limits);
  if (error != cudaSuccess) return error;
  if (problem.rows > 1 && weight == problem.activation && !problem.normed) {
    if (weight == DType::kBF16) return LaunchTiles<DType::kBF16>(stream, limits, problem);
    if (weight == DType::kF16) return LaunchTiles<DType::kF16>(stream, limits, problem);
  }
  if (weight == DType::kBF16) return LineRows<DType::kBF16>(stream, limits, problem);
  if (weight == DType::kF16) return LineRows<DType::kF16>(stream, limits, problem);
  return LineRows<DType::kF32>(stream, limits, problem);
}

bool Aligned(const void* pointer, uintptr_t bytes) {
  return reinterpret_cast<uintptr_t>(pointer) % bytes == 0;
}

bool Fast(const void* x, const WeightView& weight) {
  return weight.in % 8 == 0 && Aligned(x, 16) && Aligned(weight.data, 16);
}

Op MakeOp(const LinearOp& op) {
  return {.weight = op.weight.data,
          .bias = op.bias,
          .y = op.y,
          .y_stride = op.y_stride,
          .out = static_cast<int>(op.weight.out),
          .dtype = op.weight.dtype,
          .result = op.result};
}

Problem MakeProblem(DType activation, const void* x, int64_t rows, int64_t in) {
  Problem problem{};
  problem.activation = activation;
  problem.x = x;
  problem.rows = static_cast<int>(rows);
  problem.in = static_cast<int>(in);
  return problem;
}

Problem MakeGated(DType activation, const void* x, int64_t rows, const LinearOp& gate,
                  const LinearOp& up, void* y) {
  Problem problem = MakeProblem(activation, x, rows, gate.weight.in);
  problem.swiglu = true;
  problem.op_count = 2;
  problem.ops[0] = MakeOp(gate);
  problem.ops[1] = MakeOp(up);
  for (Op& op : problem.ops) {
    op.y = y;
    op.y_stride = gate.weight.out;
    op.result = LinearResult::kActivation;
  }
  problem.outputs = static_cast<int>(gate.weight.out);
  return problem;
}

bool Valid(const LinearOp& op, int64_t in) {
  return op.weight.in == in && Aligned(op.weight.data, 2);
}

}  // namespace

bool CanNormMatVec(const MatVecNorm& x, std::span<const LinearOp> ops) {
  const DType dtype = ops.front().weight.dtype;
  const int64_t in = ops.front().weight.in;
  if (x.norm.kind == NormKind::kNone || dtype == DType::kF32 || ops.size() > kOpsMax ||
      !Aligned(x.norm.weight, 16) || !Aligned(x.norm.bias, 16) ||
      in * static_cast<int64_t>(sizeof(float)) > kNormedBytesMax) {
    return false;
  }
  return std::all_of(ops.begin(), ops.end(), [&](const LinearOp& op) {
    return op.weight.dtype == dtype && op.weight.in == in && Fast(x.x, op.weight);
  });
}

cudaError_t NormMatVec(cudaStream_t stream, DType activation, const MatVecNorm& x,
                       std::span<const LinearOp> ops) {
  Problem problem = MakeProblem(activation, x.x, 1, ops.front().weight.in);
  problem.normed = true;
  problem.norm = x.norm;
  for (const LinearOp& op : ops) {
    problem.ops[problem.op_count++] = MakeOp(op);
    problem.outputs += static_cast<int>(op.weight.out);
  }
  return LaunchFast(stream, ops.front().weight.dtype, problem);
}

cudaError_t NormMatVecSwiGlu(cudaStream_t stream, DType activation, const MatVecNorm& x,
                             const LinearOp& gate, const LinearOp& up, void* y) {
  Problem problem = MakeGated(activation, x.x, 1, gate, up, y);
  problem.normed = true;
  problem.norm = x.norm;
  return LaunchFast(stream, gate.weight.dtype, problem);
}

cudaError_t MatVec(cudaStream_t stream, DType activation, const void* x, int64_t rows,
                   std::span<const LinearOp> ops) {
  if (rows < 0 || rows > kMatVecRowsMax) return cudaErrorInvalidValue;
  if (rows == 0 || ops.empty()) return cudaSuccess;
  const int64_t in = ops[0].weight.in;
  for (const LinearOp& op : ops) {
    if (!Valid(op, in)) return cudaErrorInvalidValue;
  }
  for (const bool fast : {true, false}) {
    for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
      Problem problem = MakeProblem(activation, x, rows, in);
      auto launch = [&] {
        if (problem.op_count == 0) return cudaSuccess;
        const cudaError_t error =
            fast ? LaunchFast(stream, dtype, problem) : LaunchSlow(stream, problem);
        problem.op_count = 0;
        problem.outputs = 0;
        return error;
      };
      for (const LinearOp& op : ops) {
        if (op.weight.dtype != dtype || Fast(x, op.weight) != fast || op.weight.out == 0) continue;
        problem.ops[problem.op_count++] = MakeOp(op);
        problem.outputs += static_cast<int>(op.weight.out);
        if (problem.op_count == kOpsMax) {
          const cudaError_t error = launch();
          if (error != cudaSuccess) return error;
        }
      }
      const cudaError_t error = launch();
      if (error != cudaSuccess) return error;
    }
  }
  return cudaSuccess;
}

cudaError_t MatVecSwiGlu(cudaStream_t stream, DType activation, const void* x, int64_t rows,
                         const LinearOp& gate, const LinearOp& up, void* y) {
  const int64_t in = gate.weight.in;
  if (rows < 0 || rows > kMatVecRowsMax || !Valid(gate, in) || !Valid(up, in) ||
      gate.weight.out != up.weight.out) {
    return cudaErrorInvalidValue;
  }
  if (rows == 0 || gate.weight.out == 0) return cudaSuccess;
  const Problem problem = MakeGated(activation, x, rows, gate, up, y);
  if (gate.weight.dtype == up.weight.dtype && Fast(x, gate.weight) && Fast(x, up.weight)) {
    return LaunchFast(stream, gate.weight.dtype, problem);
  }
  return LaunchSlow(stream, problem);
}

}  // namespace headway::cuda
