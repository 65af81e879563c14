#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <type_traits>

#include "base/bytes.h"
#include "kernels/cuda/item_batch.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/merge.h"
#include "kernels/cuda/warp.h"

namespace headway::cuda {
namespace {

constexpr int kWarps = 8;  // of a block
constexpr float kNoKeys = -std::numeric_limits<float>::infinity();
// Elements of a row that a lane loads before it uses any of them.
constexpr int kAtOnce = 4;
// A warp does a row of so many parts alone; with more parts, a block does 32 elements of a row.
constexpr int kFewParts = 16;
constexpr int kFewWarps = 2;  // of a block of such: one sequence has few rows, for many processors
// Parts whose values a warp of a block has under way.
constexpr int kPartsAtOnce = 8;

__device__ float Widen(float value) { return value; }
__device__ float Widen(__half value) { return __half2float(value); }
__device__ float Widen(__nv_bfloat16 value) { return __bfloat162float(value); }
__device__ void Store(float value, float* to) { *to = value; }
__device__ void Store(float value, __half* to) { *to = __float2half_rn(value); }
__device__ void Store(float value, __nv_bfloat16* to) { *to = __float2bfloat16_rn(value); }

// What to subtract from logarithms whose maximum is `max`: -inf minus -inf would be NaN.
__device__ float Finite(float max) { return max == kNoKeys ? 0.0f : max; }

__device__ float WarpMax(float value) {
  for (int apart = 1; apart < kWarp; apart *= 2) {
    value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, apart));
  }
  return value;
}

// What the items of a launch have in common.
struct MergeShape {
  int32_t head_dim;
  int64_t o_part_stride;
  int64_t lse_part_stride;
};
// And what they have not.
struct MergeLine {
  const float* part_o;
  const float* part_lse;
  const float* extra_o;
  const float* extra_lse;
  void* o;
  float* lse;
  int32_t parts;
  int32_t rows;

  MergeLine() = default;
  explicit MergeLine(const MergeItem& item)
      : part_o(item.part_o),
        part_lse(item.part_lse),
        extra_o(item.extra_o),
        extra_lse(item.extra_lse),
        o(item.o),
        lse(item.lse),
        parts(item.parts),
        rows(static_cast<int32_t>(item.rows)) {}
};

using MergeBatch = ItemBatch<MergeLine, MergeShape>;
using MergeManyBatch =
    ItemBatch<MergeLine, MergeShape, ItemsOf<MergeLine, MergeShape>(kParametersMax)>;

// An item's parts, the one that lies elsewhere among them.
__device__ int PartsOf(const MergeLine& item) {
  return item.parts + (item.extra_o == nullptr ? 0 : 1);
}
template <typename Batch>
__device__ const float* PartO(const Batch& batch, const MergeLine& item, int part) {
  return part < item.parts ? item.part_o + part * batch.shape.o_part_stride : item.extra_o;
}
template <typename Batch>
__device__ const float* PartLse(const Batch& batch, const MergeLine& item, int part) {
  return part < item.parts ? item.part_lse + part * batch.shape.lse_part_stride : item.extra_lse;
}

// The order of additions: parts i, i + kWarps, ... are added up in order as chain i, then the
// chains in order, whichever kernel does it.

// A warp a row, with all parts' values under way before the first is used.
template <typename T, typename Batch>
__global__ void __launch_bounds__(kFewWarps* kWarp)
    MergeFewParts(const __grid_constant__ Batch batch) {
  LetNextStart();
  const int index = ItemOfBlock(batch);
  const MergeLine& item = batch.items[index];
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t block = static_cast<int64_t>(blockIdx.x) - batch.first_block[index];
  const int64_t row = block * kFewWarps + static_cast<int>(threadIdx.x) / kWarp;
  if (row >= item.rows) return;

  const int parts = PartsOf(item);
  // Where states lie is known before they are there: all that is left to do then is to load them.
  const float* from[kFewParts];
#pragma unroll
  for (int part = 0; part < kFewParts; ++part) {
    from[part] = PartO(batch, item, min(part, parts - 1)) + row * batch.shape.head_dim + lane;
  }
  const float* const lse_from = PartLse(batch, item, min(lane, parts - 1)) + row;
  float values[kFewParts][kAtOnce];
  const auto load = [&](int first) {
#pragma unroll
    for (int part = 0; part < kFewParts; ++part) {
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const bool there = part < parts && first + i * kWarp + lane < batch.shape.head_dim;
        values[part][i] = there ? from[part][first + i * kWarp] : 0.0f;
      }
    }
  };
  WaitForPrevious();
  const float own = lane < parts ? *lse_from : kNoKeys;
  load(0);
  const float top = Finite(WarpMax(own));
  const float weight = expf(own - top);
  float weights[kFewParts];
  float total = 0.0f;
#pragma unroll
  for (int part = 0; part < kFewParts; ++part) weights[part] = __shfl_sync(kAllLanes, weight, part);
#pragma unroll
  for (int chain = 0; chain < kWarps; ++chain) total += weights[chain] + weights[chain + kWarps];
  if (item.lse != nullptr && lane == 0) {
    item.lse[row] = total == 0.0f ? kNoKeys : top + logf(total);
  }
  T* to = static_cast<T*>(item.o) + row * batch.shape.head_dim;
  for (int first = 0; first < batch.shape.head_dim; first += kAtOnce * kWarp) {
    if (first > 0) load(first);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      // The o of a state without keys may be anything: it takes no part.
      const auto value = [&](int part) { return weights[part] == 0.0f ? 0.0f : values[part][i]; };
      float sum = 0.0f;
#pragma unroll
      for (int chain = 0; chain < kWarps; ++chain) {
        const int next = chain + kWarps;
        const float begun = __fmul_rn(weights[chain], value(chain));
        sum = __fadd_rn(sum, fmaf(weights[next], value(next), begun));
      }
      const int at = first + i * kWarp + lane;
      if (at < batch.shape.head_dim) Store(total == 0.0f ? 0.0f : sum / total, to + at);
    }
  }
}

// A block does 32 elements of a row, its warps take the parts by turns.
template <typename T, typename Batch>
__global__ void __launch_bounds__(kWarps* kWarp)
    MergeManyParts(const __grid_constant__ Batch batch) {
  LetNextStart();
  __shared__ float tops[kWarps];
  __shared__ float sums[kWarps][kWarp];
  __shared__ float totals[kWarps];
  const int index = ItemOfBlock(batch);
  const MergeLine& item = batch.items[index];
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int slices = (batch.shape.head_dim + kWarp - 1) / kWarp;
  const int64_t block = static_cast<int64_t>(blockIdx.x) - batch.first_block[index];
  const int64_t row = block / slices;
  const int slice = static_cast<int>(block % slices);
  const int element = slice * kWarp + lane;
  const int parts = PartsOf(item);

  const bool mine = element < batch.shape.head_dim;
  const int64_t at = row * batch.shape.head_dim + element;
  const float* lse_from[kPartsAtOnce];
  const float* from[kPartsAtOnce];
  const auto find = [&](int first) {
#pragma unroll
    for (int i = 0; i < kPartsAtOnce; ++i) {
      const int part = min(first + i * kWarps, parts - 1);
      lse_from[i] = PartLse(batch, item, part) + row;
      from[i] = PartO(batch, item, part) + at;
    }
  };
  float lses[kPartsAtOnce];
  float values[kPartsAtOnce];
  const auto load = [&](int first) {
#pragma unroll
    for (int i = 0; i < kPartsAtOnce; ++i) {
      const bool there = first + i * kWarps < parts;
      lses[i] = there ? *lse_from[i] : kNoKeys;
      values[i] = there && mine ? *from[i] : 0.0f;
    }
  };
  find(warp);  // before the states are there
  WaitForPrevious();
  load(warp);  // before the logarithms' maximum is known

  float top = kNoKeys;
  for (int part = static_cast<int>(threadIdx.x); part < parts; part += kWarps * kWarp) {
    top = fmaxf(top, PartLse(batch, item, part)[row]);
  }
  top = WarpMax(top);
  if (lane == 0) tops[warp] = top;
  __syncthreads();
  for (int i = 0; i < kWarps; ++i) top = fmaxf(top, tops[i]);
  top = Finite(top);

  float sum = 0.0f;
  float total = 0.0f;
  for (int part = warp; part < parts; part += kPartsAtOnce * kWarps) {
    if (part > warp) {
      find(part);
      load(part);
    }
#pragma unroll
    for (int i = 0; i < kPartsAtOnce; ++i) {
      const float weight = expf(lses[i] - top);
      // The o of a state without keys may be anything: it takes no part.
      sum = fmaf(weight, lses[i] == kNoKeys ? 0.0f : values[i], sum);
      total += weight;
    }
  }
  sums[warp][lane] = sum;
  if (lane == 0) totals[warp] = total;
  __syncthreads();
  if (warp != 0) return;
  sum = 0.0f;
  total = 0.0f;
  for (int i = 0; i < kWarps; ++i) {
    sum += sums[i][lane];
    total += totals[i];
  }
  if (mine) {
    Store(total == 0.0f ? 0.0f : sum / total, static_cast<T*>(item.o) + at);
  }
  if (item.lse != nullptr && slice == 0 && lane == 0) {
    item.lse[row] = total == 0.0f ? kNoKeys : top + logf(total);
  }
}

template <typename T, typename Batch>
cudaError_t Launch(cudaStream_t stream, const Batch& batch, bool few, int64_t blocks) {
  return LaunchKernel(few ? MergeFewParts<T, Batch> : MergeManyParts<T, Batch>,
                      static_cast<unsigned>(blocks), (few ? kFewWarps : kWarps) * kWarp, 0, stream,
                      batch);
}

template <typename Batch>
cudaError_t Launch(cudaStream_t stream, DType activation, const Batch& batch, bool few,
                   int64_t blocks) {
  switch (activation) {
    case DType::kBF16:
      return Launch<__nv_bfloat16>(stream, batch, few, blocks);
    case DType::kF16:
      return Launch<__half>(stream, batch, few, blocks);
    case DType::kF32:
      return Launch<float>(stream, batch, few, blocks);
  }
  return cudaErrorInvalidValue;
}

// The items with few parts, or the others, of some that have strides in common.
template <typename Batch>
cudaError_t MergeSome(cudaStream_t stream, DType activation, const MergeShape& shape,
                      std::span<const MergeItem> items, bool few) {
  return InBatchesOf<Batch>(
      shape, items,
      [&](const MergeItem& item) -> int64_t {
        if ((item.AllParts() <= kFewParts) != few) return 0;
        if (!few) return item.rows * CeilDiv(shape.head_dim, kWarp);
        constexpr int64_t kRowsMax = std::numeric_limits<int32_t>::max();
        return item.rows > kRowsMax ? item.rows : CeilDiv(item.rows, kFewWarps);
      },
      [&](const Batch& batch, unsigned blocks) {
        return Launch(stream, activation, batch, few, blocks);
      });
}

// The items of a call mostly have the same strides: those that follow with others are launches of
// their own.
template <typename Batch>
cudaError_t MergeAll(cudaStream_t stream, DType activation, int head_dim,
                     std::span<const MergeItem> items) {
  while (!items.empty()) {
    const MergeItem& first = items.front();
    const auto other = std::find_if(items.begin(), items.end(), [&](const MergeItem& item) {
      return item.o_part_stride != first.o_part_stride ||
             item.lse_part_stride != first.lse_part_stride;
    });
    const std::span alike = items.first(static_cast<size_t>(other - items.begin()));
    items = items.subspan(alike.size());
    const MergeShape shape = {head_dim, first.o_part_stride, first.lse_part_stride};
    for (const bool few : {true, false}) {
      const cudaError_t error = MergeSome<Batch>(stream, activation, shape, alike, few);
      if (error != cudaSuccess) return error;
    }
  }
  return cudaSuccess;
}

// kN elements: 4 are one load.
template <int kN, typename T>
__device__ void LoadSome(const T* from, float (&values)[kN]) {
  if constexpr (kN == 1) {
    values[0] = Widen(*from);
  } else {
    using Vector = std::conditional_t<sizeof(T) == 4, uint4, uint2>;
    const Vector vector = *reinterpret_cast<const Vector*>(from);
    T raw[kN];
    memcpy(raw, &vector, sizeof(raw));
#pragma unroll
    for (int i = 0; i < kN; ++i) values[i] = Widen(raw[i]);
  }
}

template <int kN, typename T>
__device__ void StoreSome(const float (&values)[kN], T* to) {
  T raw[kN];
#pragma unroll
  for (int i = 0; i < kN; ++i) Store(values[i], &raw[i]);
  if constexpr (kN == 1) {
    *to = raw[0];
  } else {
    using Vector = std::conditional_t<sizeof(T) == 4, uint4, uint2>;
    Vector vector;
    memcpy(&vector, raw, sizeof(raw));
    *reinterpret_cast<Vector*>(to) = vector;
  }
}

// A warp takes the rows of kRowsAtOnce heads of a token, kN elements a lane at a time, and has all
// their loads under way before it uses one: rows are short, and memory is far.
constexpr int kRowsAtOnce = 4;
template <typename T, int kN>
__global__ void __launch_bounds__(kWarps* kWarp)
    MergeStateRows(const __grid_constant__ StateMerge merge, int head_dim, int bundles) {
  FollowPrevious();
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t bundle = int64_t{blockIdx.x} * kWarps + static_cast<int>(threadIdx.x) / kWarp;
  const int64_t token = bundle / bundles;
  const int first_head = static_cast<int>(bundle - token * bundles) * kRowsAtOnce;
  if (token >= merge.tokens) return;
  float* lse = merge.lse + token * merge.lse_stride + first_head;
  float* o = merge.o + token * merge.o_stride + int64_t{first_head} * head_dim;
  const T* part = static_cast<const T*>(merge.part_o) + token * merge.part_o_token_stride +
                  first_head * merge.part_o_head_stride;
  T* result = merge.result == nullptr
                  ? nullptr
                  : static_cast<T*>(merge.result) + token * merge.result_stride +
                        int64_t{first_head} * head_dim;
  const int rows = min(kRowsAtOnce, merge.heads - first_head);
  float old[kRowsAtOnce][kN];
  float added[kRowsAtOnce][kN];
  const auto load = [&](int at) {
    if (at >= head_dim) return;
#pragma unroll
    for (int row = 0; row < kRowsAtOnce; ++row) {
      if (row >= rows) break;
      if (!merge.first) LoadSome(o + row * head_dim + at, old[row]);
      if (merge.part_lse != nullptr)
        LoadSome(part + row * merge.part_o_head_stride + at, added[row]);
    }
  };
  load(lane * kN);  // before the logarithms are there
  // A lane works out the shares of one row; no share of a state without keys, whose o may be
  // anything.
  const int mine = lane % kRowsAtOnce;
  const bool there = mine < rows;
  const float ours = there && !merge.first ? lse[mine] : kNoKeys;
  const float theirs = there && merge.part_lse != nullptr
                           ? merge.part_lse[token * merge.part_lse_token_stride +
                                            (first_head + mine) * merge.part_lse_head_stride]
                           : kNoKeys;
  const float top = Finite(fmaxf(ours, theirs));
  const float our_weight = expf(ours - top);
  const float their_weight = expf(theirs - top);
  const float total = our_weight + their_weight;
  const float by = total == 0.0f ? 0.0f : 1.0f / total;

  for (int at = lane * kN; at - lane * kN < head_dim; at += kWarp * kN) {
#pragma unroll
    for (int row = 0; row < kRowsAtOnce; ++row) {
      if (row >= rows) break;
      const float our_share = __shfl_sync(kAllLanes, our_weight * by, row);
      const float their_share = __shfl_sync(kAllLanes, their_weight * by, row);
      if (at >= head_dim) continue;
      float value[kN];
#pragma unroll
      for (int i = 0; i < kN; ++i) {
        value[i] = our_share == 0.0f ? 0.0f : our_share * old[row][i];
        if (their_share != 0.0f) value[i] += their_share * added[row][i];
      }
      if (result != nullptr) {
        StoreSome(value, result + row * head_dim + at);
      } else {
        StoreSome(value, o + row * head_dim + at);
      }
    }
    load(at + kWarp * kN);
  }
  // Every lane has read them.
  __syncwarp();
  if (result == nullptr && lane < rows) lse[lane] = total == 0.0f ? kNoKeys : top + logf(total);
}

// Whether rows that start at `pointer` and lie `strides` elements apart can be read 4 elements at a
// time.
bool Quads(const void* pointer, size_t element, std::initializer_list<int64_t> strides) {
  return reinterpret_cast<uintptr_t>(pointer) % (4 * element) == 0 &&
         std::all_of(strides.begin(), strides.end(), [](int64_t s) { return s % 4 == 0; });
}

template <typename T>
cudaError_t LaunchMergeState(cudaStream_t stream, int head_dim, const StateMerge& merge) {
  const bool quads =
      Quads(merge.o, sizeof(float), {head_dim, merge.o_stride}) &&
      Quads(merge.part_o, sizeof(T), {merge.part_o_token_stride, merge.part_o_head_stride}) &&
      Quads(merge.result, sizeof(T), {merge.result_stride});
  const int64_t bundles = CeilDiv(merge.heads, kRowsAtOnce);
  const int64_t blocks = CeilDiv(merge.tokens * bundles, kWarps);
  if (blocks > std::numeric_limits<int32_t>::max()) return cudaErrorInvalidValue;
  return LaunchKernel(quads ? MergeStateRows<T, 4> : MergeStateRows<T, 1>,
                      static_cast<unsigned>(blocks), kWarps * kWarp, 0, stream, merge, head_dim,
                      static_cast<int>(bundles));
}

}  // namespace

cudaError_t Merge(cudaStream_t stream, DType activation, int head_dim,
                  std::span<const MergeItem> items) {
  return items.size() > MergeBatch::kItemsMax
             ? MergeAll<MergeManyBatch>(stream, activation, head_dim, items)
             : MergeAll<MergeBatch>(stream, activation, head_dim, items);
}

cudaError_t MergeState(cudaStream_t stream, DType part_dtype, int head_dim,
                       const StateMerge& merge) {
  if (merge.tokens == 0 || merge.heads == 0) return cudaSuccess;
  switch (part_dtype) {
    case DType::kBF16:
      return LaunchMergeState<__nv_bfloat16>(stream, head_dim, merge);
    case DType::kF16:
      return LaunchMergeState<__half>(stream, head_dim, merge);
    case DType::kF32:
      return LaunchMergeState<float>(stream, head_dim, merge);
  }
  return cudaErrorInvalidValue;
}

}  // namespace headway::cuda
