#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>

#include "base/bytes.h"
#include "kernels/cuda/elements.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/gelu.h"
#include "kernels/cuda/memory.h"

namespace headway::cuda {
namespace {

// ---- Biases.

constexpr int kBiasesMax = 4;

struct Biases {
  const float* from[kBiasesMax];
  int64_t out[kBiasesMax];
};

template <DType kType>
__global__ void __launch_bounds__(kThreads) JoinBiasesKernel(Biases biases, void* to) {
  FollowPrevious();
  const int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  int64_t out = at;
#pragma unroll
  for (int i = 0; i < kBiasesMax; ++i) {
    if (out >= 0 && out < biases.out[i]) {
      Store<kType, 1>(to, at, {biases.from[i] == nullptr ? 0.0f : biases.from[i][out]});
    }
    out -= biases.out[i];
  }
}

// ---- Embed.

// Rows of tables in files may lie at any even address.
template <DType kType>
__device__ inline float LoadUnaligned(const std::byte* data, int64_t index) {
  const auto* halves = reinterpret_cast<const uint16_t*>(data);
  if constexpr (kType == DType::kF32) {
    return __uint_as_float(uint32_t{halves[2 * index]} | uint32_t{halves[2 * index + 1]} << 16);
  } else if constexpr (kType == DType::kF16) {
    return __half2float(__ushort_as_half(halves[index]));
  } else {
    return __uint_as_float(uint32_t{halves[index]} << 16);
  }
}

struct SmallBytes {
  uint32_t words[kSmallBytesMax / 4];
};

__global__ void __launch_bounds__(kThreads)
    WriteSmallKernel(const __grid_constant__ SmallBytes bytes, int words, uint32_t* to) {
  FollowPrevious();
  const int word = static_cast<int>(threadIdx.x);
  if (word < words) to[word] = bytes.words[word];
}
static_assert(kSmallBytesMax / 4 <= kThreads);

constexpr int kWriteLoads = 4;  // of 16 bytes, of a thread
__global__ void __launch_bounds__(kThreads)
    WriteFromKernel(const uint4* from, int64_t count, uint4* to) {
  LetNextStart();
  const int64_t first = int64_t{blockIdx.x} * kThreads * kWriteLoads + threadIdx.x;
  uint4 values[kWriteLoads];
#pragma unroll
  for (int i = 0; i < kWriteLoads; ++i) {
    const int64_t at = first + i * kThreads;
    if (at < count) values[i] = LoadOnce(from + at);
  }
  WaitForPrevious();
#pragma unroll
  for (int i = 0; i < kWriteLoads; ++i) {
    const int64_t at = first + i * kThreads;
    if (at < count) to[at] = values[i];
  }
}

template <DType kType, int kN>
__global__ void __launch_bounds__(kThreads)
    EmbedKernel(const std::byte* table, int64_t width, const TokenId* ids, EmbedResult result,
                float* x) {
  WaitForPrevious();
  LetNextStart();  // what follows finds earlier steps done, for KeysOfEarlierSteps
  const int64_t column = (int64_t{blockIdx.y} * kThreads + threadIdx.x) * kN;
  if (column >= width) return;
  const int64_t from = int64_t{ids[blockIdx.x]} * width + column;
  float values[kN];
  if constexpr (kN == 1) {
    values[0] = LoadUnaligned<kType>(table, from);
  } else {
    Load<kType>(table, from, values);
  }
  const int64_t to = int64_t{blockIdx.x} * width + column;
  if (result == EmbedResult::kAdd) {
    float before[kN];
    Load<DType::kF32>(x, to, before);
#pragma unroll
    for (int i = 0; i < kN; ++i) values[i] += before[i];
  }
  Store<DType::kF32>(x, to, values);
}

// ---- SwiGlu.

// With 16-bit activations the quick exponential is far more exact than the result can be.
template <DType kType>
__device__ inline float Silu(float value) {
  if constexpr (kType == DType::kF32) {
    return value / (1.0f + expf(-value));
  } else {
    return __fdividef(value, 1.0f + __expf(-value));
  }
}

template <DType kType, int kN>
__global__ void __launch_bounds__(kThreads)
    SwiGluKernel(const void* gate, const void* up, int64_t count, void* y) {
  FollowPrevious();
  const int64_t at = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kN;
  if (at + kN <= count) {
    float gates[kN];
    float ups[kN];
    Load<kType>(gate, at, gates);
    Load<kType>(up, at, ups);
#pragma unroll
    for (int i = 0; i < kN; ++i) gates[i] = Silu<kType>(gates[i]) * ups[i];
    Store<kType>(y, at, gates);
    return;
  }
  for (int64_t i = at; i < count; ++i) {
    float one[1];
    float other[1];
    Load<kType>(gate, i, one);
    Load<kType>(up, i, other);
    one[0] = Silu<kType>(one[0]) * other[0];
    Store<kType>(y, i, one);
  }
}

// ---- GELU.

template <DType kType, int kN>
__global__ void __launch_bounds__(kThreads) GeluKernel(LinearResult kind, ActivationRows rows) {
  FollowPrevious();
  const int64_t column = (int64_t{blockIdx.y} * kThreads + threadIdx.x) * kN;
  if (column >= rows.width) return;
  const int64_t at = blockIdx.x * rows.stride + column;
  float values[kN];
  Load<kType>(rows.x, at, values);
#pragma unroll
  for (float& value : values) value = Gelu(kind, value);
  Store<kType>(rows.x, at, values);
}

// ---- CorrectRows: a thread has a column of a block of rows.

template <DType kType>
__global__ void __launch_bounds__(kThreads) CorrectRowsKernel(CorrectRowsItem item) {
  FollowPrevious();
  const int64_t column = int64_t{blockIdx.y} * kThreads + threadIdx.x;
  if (column >= item.width) return;
  const int64_t first = int64_t{blockIdx.x} * item.every;
  const int64_t end = first + item.every < item.rows ? first + item.every : item.rows;
  const float exact = item.exact[blockIdx.x * item.width + column];
  float value[1];
  Load<kType>(item.x, first * item.width + column, value);
  const float change = exact - value[0];
  value[0] = exact;
  Store<kType>(item.x, first * item.width + column, value);
  for (int64_t row = first + 1; row < end; ++row) {
    Load<kType>(item.x, row * item.width + column, value);
    value[0] += change;
    Store<kType>(item.x, row * item.width + column, value);
  }
}

}  // namespace

cudaError_t JoinBiases(cudaStream_t stream, DType dtype, std::span<const LinearOp> ops, void* to) {
  while (!ops.empty()) {
    Biases biases = {};
    int64_t total = 0;
    const size_t count = std::min<size_t>(ops.size(), kBiasesMax);
    for (size_t i = 0; i < count; ++i) {
      biases.from[i] = ops[i].bias;
      biases.out[i] = ops[i].weight.out;
      total += ops[i].weight.out;
    }
    ops = ops.subspan(count);
    if (total == 0) continue;
    const cudaError_t error = WithDType(dtype, [&](auto type) {
      return LaunchKernel(JoinBiasesKernel<decltype(type)::kValue>, Blocks(total, kThreads),
                          kThreads, 0, stream, biases, to);
    });
    if (error != cudaSuccess) return error;
    to = static_cast<std::byte*>(to) + total * static_cast<int64_t>(DTypeBytes(dtype));
  }
  return cudaSuccess;
}

cudaError_t WriteSmall(cudaStream_t stream, std::span<const std::byte> bytes, void* to) {
  if (bytes.size() > static_cast<size_t>(kSmallBytesMax)) return cudaErrorInvalidValue;
  SmallBytes small = {};
  std::memcpy(&small, bytes.data(), bytes.size());
  return LaunchKernel(WriteSmallKernel, 1, kThreads, 0, stream, small,
                      static_cast<int>((bytes.size() + 3) / 4), static_cast<uint32_t*>(to));
}

cudaError_t WriteFrom(cudaStream_t stream, std::span<const std::byte> pinned, void* to) {
  const int64_t count = CeilDiv(std::ssize(pinned), int64_t{sizeof(uint4)});
  if (count == 0) return cudaSuccess;
  if (!Aligned(pinned.data()) || !Aligned(to)) return cudaErrorInvalidValue;
  return LaunchKernel(WriteFromKernel, Blocks(count, kThreads * kWriteLoads), kThreads, 0, stream,
                      reinterpret_cast<const uint4*>(pinned.data()), count,
                      static_cast<uint4*>(to));
}

cudaError_t Embed(cudaStream_t stream, const WeightView& table, std::span<const TokenId> ids,
                  EmbedResult result, float* x) {
  if (ids.empty() || table.in == 0) return cudaSuccess;
  return WithDType(table.dtype, [&](auto dtype) {
    constexpr DType kType = decltype(dtype)::kValue;
    const bool wide = table.in % 8 == 0 && Aligned(table.data) && Aligned(x);
    const dim3 grid(static_cast<unsigned>(ids.size()), Blocks(table.in, kThreads * (wide ? 8 : 1)));
    const auto kernel = wide ? EmbedKernel<kType, 8> : EmbedKernel<kType, 1>;
    return LaunchKernel(kernel, grid, kThreads, 0, stream, table.data, table.in, ids.data(), result,
                        x);
  });
}

cudaError_t SwiGlu(cudaStream_t stream, DType activation, const void* gate, const void* up,
                   int64_t count, void* y) {
  if (count == 0) return cudaSuccess;
  return WithDType(activation, [&](auto dtype) {
    constexpr DType kType = decltype(dtype)::kValue;
    const bool wide = Aligned(gate) && Aligned(up) && Aligned(y);
    const auto kernel = wide ? SwiGluKernel<kType, 8> : SwiGluKernel<kType, 1>;
    return LaunchKernel(kernel, Blocks(count, kThreads * (wide ? 8 : 1)), kThreads, 0, stream, gate,
                        up, count, y);
  });
}

cudaError_t GeluInPlace(cudaStream_t stream, DType activation, LinearResult kind,
                        const ActivationRows& rows) {
  if (rows.rows == 0 || rows.width == 0) return cudaSuccess;
  return WithDType(activation, [&](auto dtype) {
    constexpr DType kType = decltype(dtype)::kValue;
    const bool wide = rows.width % 8 == 0 && RowsAligned(rows.x, rows.stride, activation);
    const auto kernel = wide ? GeluKernel<kType, 8> : GeluKernel<kType, 1>;
    const dim3 grid(static_cast<unsigned>(rows.rows),
                    Blocks(rows.width, kThreads * (wide ? 8 : 1)));
    return LaunchKernel(kernel, grid, kThreads, 0, stream, kind, rows);
  });
}

cudaError_t CorrectRows(cudaStream_t stream, DType activation, const CorrectRowsItem& item) {
  if (item.rows == 0 || item.width == 0) return cudaSuccess;
  return WithDType(activation, [&](auto dtype) {
    const dim3 grid(static_cast<unsigned>(item.blocks()), Blocks(item.width, kThreads));
    return LaunchKernel(CorrectRowsKernel<decltype(dtype)::kValue>, grid, kThreads, 0, stream,
                        item);
  });
}

}  // namespace headway::cuda
