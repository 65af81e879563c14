// A warp a line, or a part of one.
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/matvec_problem.h"
#include "kernels/cuda/memory.h"
#include "kernels/cuda/tensor_core.h"
#include "kernels/cuda/warp.h"

namespace headway::cuda {
namespace {

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

constexpr int kLineWarps = 16;
constexpr int kLineThreads = kLineWarps * kWarp;
constexpr int kStepLoads = 4;  // 16-byte loads of a lane in a step
constexpr int kStepChunks = kStepLoads * kWarp;
constexpr int kBlockLinesMax = 128;

// 16-byte loads of a weight row, and the steps that read it.
__host__ __device__ constexpr int ElementsOf(DType dtype) { return dtype == DType::kF32 ? 4 : 8; }
__host__ __device__ inline int StepsOf(DType dtype, int in) {
  const int step = kStepChunks * ElementsOf(dtype);
  return (in + step - 1) / step;
}

// x as f32 in shared memory: rows padded with zeros to whole steps. With 16-bit weights a lane
// needs 8 consecutive elements at a time; they lie in two groups of 4, each next to those of the
// neighbouring lanes, so that no two lanes of a quarter warp meet in a bank.
template <DType kWeight, DType kActivation>
__device__ inline void StageXAs(const MatVecProblem& problem, int rows_staged, int padded,
                                float* to) {
  constexpr int kLoads = kActivation == DType::kF32 ? 2 : 1;
  constexpr int kAhead = 4 / kLoads;  // chunks of a thread: no load waits for one before it
  const int chunks = padded / 8;
  const int there = problem.in / 8;
  const auto* x = static_cast<const uint4*>(problem.x);
  for (int row = 0; row < rows_staged; ++row) {
    const auto* from = x + int64_t{min(row, problem.rows - 1)} * there * kLoads;
    for (int first = static_cast<int>(threadIdx.x); first < chunks;
         first += kAhead * kLineThreads) {
      uint4 raw[kAhead][kLoads];
#pragma unroll
      for (int k = 0; k < kAhead; ++k) {
        const int chunk = min(first + k * kLineThreads, there - 1);
#pragma unroll
        for (int load = 0; load < kLoads; ++load) {
          raw[k][load] = LoadOnce(from + chunk * kLoads + load);
        }
      }
#pragma unroll
      for (int k = 0; k < kAhead; ++k) {
        const int chunk = first + k * kLineThreads;
        if (chunk >= chunks) continue;
        float values[8];
#pragma unroll
        for (int load = 0; load < kLoads; ++load) {
          Unpack<kActivation>(raw[k][load], values + load * 4);
        }
#pragma unroll
        for (float& value : values) value = row < problem.rows && chunk < there ? value : 0.0f;
        float* low = to + int64_t{row} * padded +
                     (kWeight == DType::kF32 ? chunk * 8 : chunk / kWarp * 256 + chunk % kWarp * 4);
        float* high = low + (kWeight == DType::kF32 ? 4 : 128);
        *reinterpret_cast<float4*>(low) = {values[0], values[1], values[2], values[3]};
        *reinterpret_cast<float4*>(high) = {values[4], values[5], values[6], values[7]};
      }
    }
  }
}
template <DType kWeight>
__device__ inline void StageX(const MatVecProblem& problem, int rows_staged, int padded,
                              float* to) {
  switch (problem.activation) {
    case DType::kF32:
      return StageXAs<kWeight, DType::kF32>(problem, rows_staged, padded, to);
    case DType::kF16:
      return StageXAs<kWeight, DType::kF16>(problem, rows_staged, padded, to);
    case DType::kBF16:
      return StageXAs<kWeight, DType::kBF16>(problem, rows_staged, padded, to);
  }
}

// Where element group i (4 elements) of the only row lies, as StageX has it: chunk i / 2 of 8
// elements, its low or high half.
__device__ inline float4* QuadOf(float* to, int i) {
  const int chunk = i / 2;
  return reinterpret_cast<float4*>(to + chunk / kWarp * 256 + chunk % kWarp * 4 + i % 2 * 128);
}
__device__ inline float4 FloatsOf(const uint4& from) {
  return {__uint_as_float(from.x), __uint_as_float(from.y), __uint_as_float(from.z),
          __uint_as_float(from.w)};
}

// What the warps of a block have summed.
__device__ inline float TotalOf(const float (&parts)[kLineWarps]) {
  float sum = 0.0f;
#pragma unroll
  for (float part : parts) sum += part;
  return sum;
}

// Calls function(i, group) for the groups of 4 elements of `from` [in] that are the thread's, and
// with anything for those up to `padded`. No load waits for one before it.
template <typename Load, typename Function>
__device__ inline void EachQuad(const float* from, int in, int padded, const Load& load,
                                const Function& function) {
  constexpr int kAhead = 4;
  for (int first = static_cast<int>(threadIdx.x); first < padded / 4;
       first += kAhead * kLineThreads) {
    uint4 groups[kAhead];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      groups[k] = load(from + int64_t{4} * min(first + k * kLineThreads, in / 4 - 1));
    }
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      const int i = first + k * kLineThreads;
      if (i < padded / 4) function(i, FloatsOf(groups[k]));
    }
  }
}

// RMSNorm of one row of f32 on the way to shared memory. Every block does it for itself, while the
// weights that it asked for are on their way. The norm's own are there before the row is.
__device__ inline void StageRmsWeight(const MatVecProblem& problem, int padded, float* to) {
  if (problem.norm.weight == nullptr) return;
  EachQuad(problem.norm.weight, problem.in, padded, LoadStreaming,
           [&](int i, float4 by) { *QuadOf(to, i) = by; });
}
// The divisor is common to all elements and left to the results, so that the row is read once and
// nothing waits for its sum: `squares` gets the warps' sums. Each thread finds the weights that it
// has staged.
__device__ inline void StageRms(const MatVecProblem& problem, int padded, float* to,
                                float (&squares)[kLineWarps]) {
  const bool weighted = problem.norm.weight != nullptr;
  const int thread = static_cast<int>(threadIdx.x);
  float sum = 0.0f;
  EachQuad(static_cast<const float*>(problem.x), problem.in, padded, LoadOnce,
           [&](int i, float4 from) {
             float4* const at = QuadOf(to, i);
             float4 value = {0.0f, 0.0f, 0.0f, 0.0f};
             if (i < problem.in / 4) {
               const float4 by = weighted ? *at : float4{1.0f, 1.0f, 1.0f, 1.0f};
               sum += from.x * from.x + from.y * from.y + from.z * from.z + from.w * from.w;
               value = {from.x * by.x, from.y * by.y, from.z * by.z, from.w * by.w};
             }
             *at = value;
           });
  sum = WarpSum(sum);
  if (thread % kWarp == 0) squares[thread / kWarp] = sum;
}

// LayerNorm, which needs the mean before anything is squared, and both before the result.
__device__ inline void StageLayerNorm(const MatVecProblem& problem, int padded, float* to) {
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
    *QuadOf(to, i) = value;
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
    LineKernel(const __grid_constant__ MatVecProblem problem) {
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
      batch[i] = chunk + i * kWarp + lane < chunks ? LoadStreaming(cursor.row + chunk + i * kWarp)
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
  const bool normed = kRows == 1 && kWeight != DType::kF32 && problem.normed;
  const bool rms = normed && problem.norm.kind == NormKind::kRms;
  if (rms) StageRmsWeight(problem, padded, x);
  // What the sums of one row are added to is asked for with the row.
  __shared__ float added_to[kRows == 1 ? kBlockLinesMax : 1];
  const bool adds = kRows == 1 && !problem.swiglu && static_cast<int>(threadIdx.x) < count;
  const Place added = adds ? Find(problem, first + static_cast<int>(threadIdx.x)) : Place{0, 0};
  WaitForPrevious();
  const float before = adds ? AddedTo(problem.ops[added.op], 0, added.out) : 0.0f;
  __shared__ float squares[kLineWarps];
  if (rms) {
    StageRms(problem, padded, x, squares);
  } else if (normed) {
    StageLayerNorm(problem, padded, x);
  } else {
    StageX<kWeight>(problem, kRows, padded, x);
  }
  if (adds) added_to[threadIdx.x] = before;
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
      const MatVecOp& op = problem.ops[place.op];
      StoreResult(op, problem.activation, row, place.out, total(output, row),
                  kRows == 1 ? added_to[output] : AddedTo(op, row, place.out));
    }
  }
}

constexpr int64_t kWaveBytes = int64_t{512} << 10;  // weights of a block, about
constexpr int kSharedDefault = 48 << 10;

// How many outputs a block takes: whole waves of blocks, all of about the same size, none so long
// that the last ones to finish are waited for.
void DealLines(const DeviceLimits& limits, DType weight, int sm_blocks, MatVecProblem* problem) {
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
cudaError_t LaunchGroup(cudaStream_t stream, const DeviceLimits& limits, MatVecProblem problem,
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

}  // namespace

// As many rows at a time as shared memory holds x for.
template <DType kWeight>
cudaError_t LaunchLines(cudaStream_t stream, const DeviceLimits& limits,
                        const MatVecProblem& problem) {
  const int64_t row_bytes = int64_t{StepsOf(kWeight, problem.in)} * kStepChunks *
                            ElementsOf(kWeight) * static_cast<int64_t>(sizeof(float));
  // Every unit of a block has a sum for each row.
  const int64_t sums = int64_t{kBlockLinesMax} * kLineWarps * static_cast<int64_t>(sizeof(float));
  int group = 1;
  while (group < problem.rows) group *= 2;
  while (group > 1 && group * (row_bytes + sums) > limits.block_shared) group /= 2;
  if (group * (row_bytes + sums) > limits.block_shared) return LaunchElements(stream, problem);
  const int x_bytes = static_cast<int>(group * row_bytes);
  const auto activation_bytes = static_cast<int64_t>(DTypeBytes(problem.activation));
  for (int row = 0; row < problem.rows; row += group) {
    MatVecProblem part = problem;
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
        error = LaunchGroup<kWeight, 1>(stream, limits, part, x_bytes);
        break;
      case 2:
        error = LaunchGroup<kWeight, 2>(stream, limits, part, x_bytes);
        break;
      case 4:
        error = LaunchGroup<kWeight, 4>(stream, limits, part, x_bytes);
        break;
      default:
        error = LaunchGroup<kWeight, 8>(stream, limits, part, x_bytes);
        break;
    }
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

template cudaError_t LaunchLines<DType::kF32>(cudaStream_t, const DeviceLimits&,
                                              const MatVecProblem&);
template cudaError_t LaunchLines<DType::kF16>(cudaStream_t, const DeviceLimits&,
                                              const MatVecProblem&);
template cudaError_t LaunchLines<DType::kBF16>(cudaStream_t, const DeviceLimits&,
                                               const MatVecProblem&);

}  // namespace headway::cuda
