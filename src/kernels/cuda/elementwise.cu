#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/launch.h"

// Every kernel reads and writes its memory once, 16 bytes at a time where addresses and sizes allow
// it (kN is 8 elements a thread then) and an element at a time elsewhere (kN is 1).
namespace headway::cuda {
namespace {

constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xFFFFFFFFu;
constexpr int kThreads = 256;

template <DType kType>
struct ElementOf {
  using Type = float;
};
template <>
struct ElementOf<DType::kF16> {
  using Type = __half;
};
template <>
struct ElementOf<DType::kBF16> {
  using Type = __nv_bfloat16;
};

__device__ inline float AsFloat(float value) { return value; }
__device__ inline float AsFloat(__half value) { return __half2float(value); }
__device__ inline float AsFloat(__nv_bfloat16 value) { return __bfloat162float(value); }

template <DType kType>
__device__ inline typename ElementOf<kType>::Type FromFloat(float value) {
  if constexpr (kType == DType::kF32) {
    return value;
  } else if constexpr (kType == DType::kF16) {
    return __float2half_rn(value);
  } else {
    return __float2bfloat16_rn(value);
  }
}

template <DType kType>
__device__ inline float Rounded(float value) {
  return AsFloat(FromFloat<kType>(value));
}

// Elements index to index + kN; whole 16 bytes of kN * size that lie on 16 bytes.
template <DType kType, int kN>
__device__ inline void Load(const void* data, int64_t index, float (&values)[kN]) {
  using Element = typename ElementOf<kType>::Type;
  const Element* from = static_cast<const Element*>(data) + index;
  if constexpr (kN == 1) {
    values[0] = AsFloat(*from);
  } else {
    constexpr int kVectors = kN * static_cast<int>(sizeof(Element)) / 16;
    uint4 vectors[kVectors];
#pragma unroll
    for (int i = 0; i < kVectors; ++i) vectors[i] = reinterpret_cast<const uint4*>(from)[i];
    Element raw[kN];
    memcpy(raw, vectors, sizeof(raw));
#pragma unroll
    for (int i = 0; i < kN; ++i) values[i] = AsFloat(raw[i]);
  }
}

template <DType kType, int kN>
__device__ inline void Store(void* data, int64_t index, const float (&values)[kN]) {
  using Element = typename ElementOf<kType>::Type;
  Element* to = static_cast<Element*>(data) + index;
  if constexpr (kN == 1) {
    *to = FromFloat<kType>(values[0]);
  } else {
    constexpr int kVectors = kN * static_cast<int>(sizeof(Element)) / 16;
    Element raw[kN];
#pragma unroll
    for (int i = 0; i < kN; ++i) raw[i] = FromFloat<kType>(values[i]);
    uint4 vectors[kVectors];
    memcpy(vectors, raw, sizeof(raw));
#pragma unroll
    for (int i = 0; i < kVectors; ++i) reinterpret_cast<uint4*>(to)[i] = vectors[i];
  }
}

__device__ inline float WarpSum(float value) {
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(kAllLanes, value, distance);
  }
  return value;
}

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

template <DType kType, int kN>
__global__ void __launch_bounds__(kThreads)
    EmbedKernel(const std::byte* table, int64_t width, const TokenId* ids, float* x) {
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
  Store<DType::kF32>(x, int64_t{blockIdx.x} * width + column, values);
}

// ---- Norms.

template <DType kType>
__device__ inline void StoreQuad(void* y, int64_t index, const float4& value) {
  if constexpr (kType == DType::kF32) {
    *reinterpret_cast<float4*>(static_cast<float*>(y) + index) = value;
  } else {
    using Element = typename ElementOf<kType>::Type;
    const Element raw[4] = {FromFloat<kType>(value.x), FromFloat<kType>(value.y),
                            FromFloat<kType>(value.z), FromFloat<kType>(value.w)};
    uint2 vector;
    memcpy(&vector, raw, sizeof(raw));
    *reinterpret_cast<uint2*>(static_cast<Element*>(y) + index) = vector;
  }
}

__device__ inline float BlockSum(float value) {
  __shared__ float sums[kWarp];
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  value = WarpSum(value);
  if (lane == 0) sums[threadIdx.x / kWarp] = value;
  __syncthreads();
  return WarpSum(lane < warps ? sums[lane] : 0.0f);
}

constexpr int kWideThreads = 1024;
constexpr int kNormItemsMax = 8;

// A row a block, or a row a warp, whose threads hold it in kItems groups of 4.
template <DType kType, int kItems, bool kWarpRow>
__global__ void __launch_bounds__(kWarpRow ? kThreads : kWideThreads)
    RmsNormKernel(const float* x, const float* weight, float eps, int64_t rows, int64_t width,
                  void* y) {
  FollowPrevious();
  const int threads = kWarpRow ? kWarp : static_cast<int>(blockDim.x);
  const int thread = static_cast<int>(threadIdx.x) % threads;
  const int64_t row =
      kWarpRow ? (int64_t{blockIdx.x} * kThreads + threadIdx.x) / kWarp : int64_t{blockIdx.x};
  if (row >= rows) return;
  const int quads = static_cast<int>(width / 4);
  const auto* from = reinterpret_cast<const float4*>(x + row * width);
  const auto* scales = reinterpret_cast<const float4*>(weight);
  // Asked for before the sum is known, unless that takes too many registers.
  constexpr bool kEarly = kWarpRow || kItems < kNormItemsMax;
  float4 values[kItems];
  float4 early[kEarly ? kItems : 1];
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const int at = thread + i * threads;
    values[i] = at < quads ? from[at] : float4{0.0f, 0.0f, 0.0f, 0.0f};
    if constexpr (kEarly) early[i] = at < quads ? scales[at] : float4{0.0f, 0.0f, 0.0f, 0.0f};
  }
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const float4& value = values[i];
    sum += (value.x * value.x + value.y * value.y) + (value.z * value.z + value.w * value.w);
  }
  sum = kWarpRow ? WarpSum(sum) : BlockSum(sum);
  const float scale = 1.0f / sqrtf(sum / static_cast<float>(width) + eps);
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const int at = thread + i * threads;
    if (at >= quads) continue;
    float4 by;
    if constexpr (kEarly) {
      by = early[i];
    } else {
      by = scales[at];
    }
    const float4& value = values[i];
    StoreQuad<kType>(y, row * width + at * 4,
                     {value.x * scale * by.x, value.y * scale * by.y, value.z * scale * by.z,
                      value.w * scale * by.w});
  }
}

// Rows of any width and alignment, a row a block.
template <DType kType>
__global__ void __launch_bounds__(kThreads)
    RmsNormAnyKernel(const float* x, const float* weight, float eps, int64_t width, void* y) {
  FollowPrevious();
  const int64_t start = int64_t{blockIdx.x} * width;
  float sum = 0.0f;
  for (int64_t i = threadIdx.x; i < width; i += kThreads) {
    sum = fmaf(x[start + i], x[start + i], sum);
  }
  const float scale = 1.0f / sqrtf(BlockSum(sum) / static_cast<float>(width) + eps);
  for (int64_t i = threadIdx.x; i < width; i += kThreads) {
    Store<kType, 1>(y, start + i, {x[start + i] * scale * weight[i]});
  }
}

constexpr int kHeadNormDimMax = kWarp * 8;

// `lanes` lanes a head, 8 elements each.
template <DType kType>
__global__ void __launch_bounds__(kThreads)
    HeadNormKernel(const float* weight, float eps, int64_t tokens, int heads, int head_dim,
                   int lanes, void* x, int64_t x_stride) {
  FollowPrevious();
  const int64_t index = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / lanes;
  const int column = static_cast<int>(threadIdx.x) % lanes * 8;
  // No lane leaves: the others' shuffles need it.
  const bool active = index < tokens * heads && column < head_dim;
  const int64_t token = index / heads;
  const int64_t at = token * x_stride + (index - token * heads) * head_dim + column;
  float values[8] = {};
  float by[8];
  if (active) {
    Load<kType>(x, at, values);
    Load<DType::kF32>(weight, column, by);
  }
  float sum = 0.0f;
#pragma unroll
  for (const float value : values) sum = fmaf(value, value, sum);
  for (int distance = lanes / 2; distance > 0; distance /= 2) {
    sum += __shfl_xor_sync(kAllLanes, sum, distance);
  }
  const float scale = 1.0f / sqrtf(sum / static_cast<float>(head_dim) + eps);
  if (!active) return;
#pragma unroll
  for (int i = 0; i < 8; ++i) values[i] *= scale * by[i];
  Store<kType>(x, at, values);
}

// A warp a head.
template <DType kType>
__global__ void __launch_bounds__(kThreads)
    HeadNormAnyKernel(const float* weight, float eps, int64_t tokens, int heads, int head_dim,
                      void* x, int64_t x_stride) {
  FollowPrevious();
  const int64_t index = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / kWarp;
  if (index >= tokens * heads) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t token = index / heads;
  const int64_t start = token * x_stride + (index - token * heads) * head_dim;
  float value[1];
  float sum = 0.0f;
  for (int i = lane; i < head_dim; i += kWarp) {
    Load<kType>(x, start + i, value);
    sum = fmaf(value[0], value[0], sum);
  }
  const float scale = 1.0f / sqrtf(WarpSum(sum) / static_cast<float>(head_dim) + eps);
  for (int i = lane; i < head_dim; i += kWarp) {
    Load<kType>(x, start + i, value);
    value[0] *= scale * weight[i];
    Store<kType>(x, start + i, value);
  }
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

// ---- Rotations, and K and V into their pages.

__global__ void __launch_bounds__(kThreads)
    RopeAnglesKernel(const int32_t* positions, int64_t count, const float* inv_freq, int half,
                     float scale, float* cos, float* sin) {
  FollowPrevious();
  const int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (at >= count) return;
  const int64_t token = at / half;
  const float angle = __fmul_rn(static_cast<float>(positions[token]), inv_freq[at - token * half]);
  float s = 0.0f;
  float c = 0.0f;
  sincosf(angle, &s, &c);
  cos[at] = c * scale;
  sin[at] = s * scale;
}

// Rotates elements at to at + kN with those half further on, in place; angles are the token's.
template <DType kType, int kN>
__device__ inline void Rotate(const RopeTable& table, int64_t token, int column, void* x,
                              int64_t at, float (&low)[kN], float (&high)[kN]) {
  const int half = table.rotary_dim / 2;
  float c[kN];
  float s[kN];
  Load<kType>(x, at, low);
  Load<kType>(x, at + half, high);
  Load<DType::kF32>(table.cos, token * half + column, c);
  Load<DType::kF32>(table.sin, token * half + column, s);
#pragma unroll
  for (int i = 0; i < kN; ++i) {
    const float turned = low[i] * c[i] - high[i] * s[i];
    high[i] = high[i] * c[i] + low[i] * s[i];
    low[i] = turned;
  }
  Store<kType>(x, at, low);
  Store<kType>(x, at + half, high);
}

constexpr int kRopeThreads = 128;

template <DType kType, int kN>
__global__ void __launch_bounds__(kRopeThreads)
    RopeKernel(RopeTable table, int heads, int head_dim, void* x, int64_t x_stride) {
  FollowPrevious();
  const int groups = table.rotary_dim / 2 / kN;
  const int unit = static_cast<int>(blockIdx.y * kRopeThreads + threadIdx.x);
  if (unit >= heads * groups) return;
  const int head = unit / groups;
  const int column = (unit - head * groups) * kN;
  const int64_t token = blockIdx.x;
  float low[kN];
  float high[kN];
  Rotate<kType>(table, token, column, x, token * x_stride + int64_t{head} * head_dim + column, low,
                high);
}

// The byte, from a first page, where the row of `slot` of head `head` starts.
template <DType kPage>
__device__ inline int64_t RowOffset(const PageFormat& format, const PageRun& run, int64_t slot,
                                    int head) {
  const int row_bytes = format.head_dim * static_cast<int>(sizeof(typename ElementOf<kPage>::Type));
  const int64_t at = run.first_slot + slot;
  const int64_t page = at / format.page_slots;
  return head * run.head_stride + page * run.page_stride +
         (at - page * format.page_slots) * row_bytes;
}

// What was rounded to an activation, rounded to the pages' dtype.
template <DType kType, DType kPage, int kN>
__device__ inline void StorePage(std::byte* row, int column, float (&values)[kN]) {
  if constexpr (kType != kPage) {
#pragma unroll
    for (float& value : values) value = Rounded<kType>(value);
  }
  Store<kPage>(row, column, values);
}

constexpr int kItemsMax = 32;

struct StoreKvItems {
  StoreKvItem items[kItemsMax];
};

template <DType kType, DType kPage, int kN>
__global__ void __launch_bounds__(kThreads)
    StoreKvKernel(PageFormat format, const __grid_constant__ StoreKvItems list) {
  WaitForPrevious();  // and lets nothing start before its end, for KeysOfEarlierSteps
  const StoreKvItem& item = list.items[blockIdx.y];
  const int groups = format.head_dim / kN;
  const int row_groups = item.heads * groups;
  const int64_t index = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (index >= item.to.count * row_groups) return;
  const int64_t slot = index / row_groups;
  const int rest = static_cast<int>(index - slot * row_groups);
  const int head = rest / groups;
  const int column = (rest - head * groups) * kN;
  const int64_t from = slot * item.kv_stride + rest * kN;
  const int64_t row = RowOffset<kPage>(format, item.to, slot, head);
  float k[kN];
  float v[kN];
  Load<kType>(item.k, from, k);
  Load<kType>(item.v, from, v);
  Store<kPage>(item.to.k + row, column, k);
  Store<kPage>(item.to.v + row, column, v);
}

// The work of a token: pairs of groups of q and of k that rotate, groups of k that do not, v.
template <DType kType, DType kPage>
__global__ void __launch_bounds__(kRopeThreads)
    RopeStoreKvKernel(RopeTable table, int q_heads, void* q, int64_t q_stride, PageFormat format,
                      const __grid_constant__ StoreKvItem item) {
  FollowPrevious();
  constexpr int kN = 8;
  const int64_t token = blockIdx.x;
  const int head_dim = format.head_dim;
  const int pairs = table.rotary_dim / 2 / kN;
  const int plain = head_dim / kN - 2 * pairs;
  int unit = static_cast<int>(blockIdx.y * kRopeThreads + threadIdx.x);
  float low[kN];
  float high[kN];
  if (unit < q_heads * pairs) {
    const int head = unit / pairs;
    const int column = (unit - head * pairs) * kN;
    Rotate<kType>(table, token, column, q, token * q_stride + int64_t{head} * head_dim + column,
                  low, high);
    return;
  }
  unit -= q_heads * pairs;
  const int64_t start = token * item.kv_stride;
  if (unit < item.heads * pairs) {
    const int head = unit / pairs;
    const int column = (unit - head * pairs) * kN;
    Rotate<kType>(table, token, column, const_cast<void*>(item.k),
                  start + int64_t{head} * head_dim + column, low, high);
    std::byte* row = item.to.k + RowOffset<kPage>(format, item.to, token, head);
    StorePage<kType, kPage>(row, column, low);
    StorePage<kType, kPage>(row, column + pairs * kN, high);
    return;
  }
  unit -= item.heads * pairs;
  const bool is_v = unit >= item.heads * plain;
  if (is_v) unit -= item.heads * plain;
  const int groups = is_v ? head_dim / kN : plain;
  if (groups == 0 || unit >= item.heads * groups) return;
  const int head = unit / groups;
  const int column = (unit - head * groups) * kN + (is_v ? 0 : table.rotary_dim);
  Load<kType>(is_v ? item.v : item.k, start + int64_t{head} * head_dim + column, low);
  std::byte* row = (is_v ? item.to.v : item.to.k) + RowOffset<kPage>(format, item.to, token, head);
  Store<kPage>(row, column, low);
}

// ---- AddSinks.

// A warp a row.
__global__ void __launch_bounds__(kThreads)
    AddSinksKernel(const float* sink_logits, int64_t rows, int heads, int head_dim, bool quads,
                   float* o, float* lse) {
  FollowPrevious();
  const int64_t row = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / kWarp;
  if (row >= rows) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const float mine = lse[row];
  const float sink = sink_logits[row % heads];
  const bool empty = mine == -INFINITY;
  const float max = isnan(mine) || mine > sink ? mine : sink;
  const bool nothing = max == -INFINITY;  // of either; -inf - -inf would be NaN
  const float weight = nothing ? 0.0f : expf(mine - max);
  const float total = nothing ? 1.0f : weight + expf(sink - max);
  const float scale = weight / total;
  float* const to = o + row * head_dim;
  // The o of a state that saw no key is not read: it may be anything.
  if (quads) {
    auto* const four = reinterpret_cast<float4*>(to);
    for (int i = lane; i < head_dim / 4; i += kWarp) {
      float4 value{0.0f, 0.0f, 0.0f, 0.0f};
      if (!empty) {
        value = four[i];
        value = {value.x * scale, value.y * scale, value.z * scale, value.w * scale};
      }
      four[i] = value;
    }
  } else {
    for (int i = lane; i < head_dim; i += kWarp) to[i] = empty ? 0.0f : to[i] * scale;
  }
  __syncwarp();
  if (lane == 0) lse[row] = max + logf(total);
}

// ---- Host.

bool Aligned(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; }

// Whether rows of `dtype`, `stride` elements apart from `pointer`, all lie on 16 bytes.
bool Aligned(const void* pointer, int64_t stride, DType dtype) {
  return Aligned(pointer) && stride * static_cast<int64_t>(DTypeBytes(dtype)) % 16 == 0;
}

unsigned Blocks(int64_t work, int64_t of_block) {
  return static_cast<unsigned>((work + of_block - 1) / of_block);
}

template <DType kType>
struct Constant {
  static constexpr DType kValue = kType;
};

// function(Constant<dtype>{}).
template <typename Function>
cudaError_t WithDType(DType dtype, Function function) {
  switch (dtype) {
    case DType::kF32:
      return function(Constant<DType::kF32>{});
    case DType::kF16:
      return function(Constant<DType::kF16>{});
    case DType::kBF16:
      return function(Constant<DType::kBF16>{});
  }
  return cudaErrorInvalidValue;
}

// Below this many rows, a row is spread over as many threads as it has work for.
constexpr int64_t kFewRows = 256;

template <DType kType>
cudaError_t LaunchRmsNorm(cudaStream_t stream, const float* x, const float* weight, float eps,
                          int64_t rows, int64_t width, void* y) {
  const int64_t quads = width / 4;
  if (width % 4 != 0 || !Aligned(x) || !Aligned(weight) || !Aligned(y) ||
      quads > int64_t{kWideThreads} * kNormItemsMax) {
    return LaunchKernel(RmsNormAnyKernel<kType>, static_cast<unsigned>(rows), kThreads, 0, stream,
                        x, weight, eps, width, y);
  }
  if (quads <= kWarp * kNormItemsMax && rows >= kFewRows) {
    return LaunchKernel(RmsNormKernel<kType, kNormItemsMax, true>, Blocks(rows, kThreads / kWarp),
                        kThreads, 0, stream, x, weight, eps, rows, width, y);
  }
  int64_t threads = std::min<int64_t>((quads + kWarp - 1) / kWarp * kWarp,
                                      rows < kFewRows ? kWideThreads : kThreads);
  while (threads * kNormItemsMax < quads) threads *= 2;
  const int64_t items = (quads + threads - 1) / threads;
  const auto kernel = items <= 1   ? RmsNormKernel<kType, 1, false>
                      : items <= 2 ? RmsNormKernel<kType, 2, false>
                      : items <= 4 ? RmsNormKernel<kType, 4, false>
                                   : RmsNormKernel<kType, kNormItemsMax, false>;
  return LaunchKernel(kernel, static_cast<unsigned>(rows), static_cast<unsigned>(threads), 0,
                      stream, x, weight, eps, rows, width, y);
}

bool RopeAligned(const RopeTable& table, int head_dim, const void* x, int64_t x_stride,
                 DType dtype) {
  return table.rotary_dim % 16 == 0 && head_dim % 8 == 0 && Aligned(table.cos) &&
         Aligned(table.sin) && Aligned(x, x_stride, dtype);
}

bool StoreAligned(DType activation, const PageFormat& format, const StoreKvItem& item) {
  return format.head_dim % 8 == 0 && Aligned(item.k, item.kv_stride, activation) &&
         Aligned(item.v, item.kv_stride, activation) && Aligned(item.to.k) && Aligned(item.to.v) &&
         item.to.page_stride % 16 == 0 && item.to.head_stride % 16 == 0;
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

cudaError_t Embed(cudaStream_t stream, const WeightView& table, const TokenId* ids, int64_t tokens,
                  float* x) {
  if (tokens == 0 || table.in == 0) return cudaSuccess;
  return WithDType(table.dtype, [&](auto dtype) {
    constexpr DType kType = decltype(dtype)::kValue;
    const bool wide = table.in % 8 == 0 && Aligned(table.data) && Aligned(x);
    const dim3 grid(static_cast<unsigned>(tokens), Blocks(table.in, kThreads * (wide ? 8 : 1)));
    const auto kernel = wide ? EmbedKernel<kType, 8> : EmbedKernel<kType, 1>;
    return LaunchKernel(kernel, grid, kThreads, 0, stream, table.data, table.in, ids, x);
  });
}

cudaError_t RmsNorm(cudaStream_t stream, DType activation, const float* x, const float* weight,
                    float eps, int64_t rows, int64_t width, void* y) {
  if (rows == 0 || width == 0) return cudaSuccess;
  return WithDType(activation, [&](auto dtype) {
    return LaunchRmsNorm<decltype(dtype)::kValue>(stream, x, weight, eps, rows, width, y);
  });
}

cudaError_t HeadNorm(cudaStream_t stream, DType activation, const float* weight, float eps,
                     int64_t tokens, int heads, int head_dim, void* x, int64_t x_stride) {
  if (tokens == 0 || heads == 0 || head_dim == 0) return cudaSuccess;
  return WithDType(activation, [&](auto dtype) {
    constexpr DType kType = decltype(dtype)::kValue;
    if (head_dim % 8 == 0 && head_dim <= kHeadNormDimMax && Aligned(weight) &&
        Aligned(x, x_stride, activation)) {
      int lanes = 1;
      while (lanes * 8 < head_dim) lanes *= 2;
      return LaunchKernel(HeadNormKernel<kType>, Blocks(tokens * heads * lanes, kThreads), kThreads,
                          0, stream, weight, eps, tokens, heads, head_dim, lanes, x, x_stride);
    }
    return LaunchKernel(HeadNormAnyKernel<kType>, Blocks(tokens * heads * kWarp, kThreads),
                        kThreads, 0, stream, weight, eps, tokens, heads, head_dim, x, x_stride);
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

cudaError_t RopeAngles(cudaStream_t stream, const int32_t* positions, int64_t tokens,
                       const float* inv_freq, int rotary_dim, float scale, float* cos, float* sin) {
  const int half = rotary_dim / 2;
  if (tokens == 0 || half == 0) return cudaSuccess;
  return LaunchKernel(RopeAnglesKernel, Blocks(tokens * half, kThreads), kThreads, 0, stream,
                      positions, tokens * half, inv_freq, half, scale, cos, sin);
}

cudaError_t Rope(cudaStream_t stream, DType activation, const RopeTable& table, int64_t tokens,
                 int heads, int head_dim, void* x, int64_t x_stride) {
  const int half = table.rotary_dim / 2;
  if (tokens == 0 || heads == 0 || half == 0) return cudaSuccess;
  return WithDType(activation, [&](auto dtype) {
    constexpr DType kType = decltype(dtype)::kValue;
    const bool wide = RopeAligned(table, head_dim, x, x_stride, activation);
    const dim3 grid(static_cast<unsigned>(tokens),
                    Blocks(int64_t{heads} * half, kRopeThreads * (wide ? 8 : 1)));
    const auto kernel = wide ? RopeKernel<kType, 8> : RopeKernel<kType, 1>;
    return LaunchKernel(kernel, grid, kRopeThreads, 0, stream, table, heads, head_dim, x, x_stride);
  });
}

cudaError_t StoreKv(cudaStream_t stream, DType activation, const PageFormat& format,
                    std::span<const StoreKvItem> items) {
  while (!items.empty()) {
    StoreKvItems list{};
    unsigned count = 0;
    int64_t elements = 0;  // of the longest item
    bool wide = true;
    for (const StoreKvItem& item : items.first(std::min<size_t>(items.size(), kItemsMax))) {
      list.items[count++] = item;
      elements = std::max(elements, item.to.count * item.heads * format.head_dim);
      wide = wide && StoreAligned(activation, format, item);
    }
    items = items.subspan(count);
    if (elements == 0) continue;
    const cudaError_t error = WithDType(activation, [&](auto from) {
      return WithDType(format.dtype, [&](auto to) {
        constexpr DType kType = decltype(from)::kValue;
        constexpr DType kPage = decltype(to)::kValue;
        const dim3 grid(Blocks(elements, kThreads * (wide ? 8 : 1)), count);
        const auto kernel = wide ? StoreKvKernel<kType, kPage, 8> : StoreKvKernel<kType, kPage, 1>;
        return LaunchKernel(kernel, grid, kThreads, 0, stream, format, list);
      });
    });
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

cudaError_t RopeStoreKv(cudaStream_t stream, DType activation, const RopeTable& table, int q_heads,
                        void* q, int64_t q_stride, const PageFormat& format,
                        const StoreKvItem& item) {
  const int64_t tokens = item.to.count;
  if (tokens == 0) return cudaSuccess;
  if (!RopeAligned(table, format.head_dim, q, q_stride, activation) ||
      !StoreAligned(activation, format, item)) {
    cudaError_t error =
        Rope(stream, activation, table, tokens, q_heads, format.head_dim, q, q_stride);
    if (error != cudaSuccess) return error;
    error = Rope(stream, activation, table, tokens, item.heads, format.head_dim,
                 const_cast<void*>(item.k), item.kv_stride);
    if (error != cudaSuccess) return error;
    return StoreKv(stream, activation, format, {&item, 1});
  }
  const int pairs = table.rotary_dim / 16;
  const int groups = format.head_dim / 8;
  const int64_t units =
      int64_t{q_heads} * pairs + int64_t{item.heads} * (pairs + groups - 2 * pairs + groups);
  if (units == 0) return cudaSuccess;
  return WithDType(activation, [&](auto from) {
    return WithDType(format.dtype, [&](auto to) {
      const dim3 grid(static_cast<unsigned>(tokens), Blocks(units, kRopeThreads));
      return LaunchKernel(RopeStoreKvKernel<decltype(from)::kValue, decltype(to)::kValue>, grid,
                          kRopeThreads, 0, stream, table, q_heads, q, q_stride, format, item);
    });
  });
}

cudaError_t AddSinks(cudaStream_t stream, const float* sink_logits, int64_t tokens, int heads,
                     int head_dim, float* o, float* lse) {
  const int64_t rows = tokens * heads;
  if (rows == 0) return cudaSuccess;
  const bool quads = head_dim % 4 == 0 && Aligned(o);
  return LaunchKernel(AddSinksKernel, Blocks(rows * kWarp, kThreads), kThreads, 0, stream,
                      sink_logits, rows, heads, head_dim, quads, o, lse);
}

}  // namespace headway::cuda
