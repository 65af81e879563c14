#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/cuda/elements.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/exact_angle.h"
#include "kernels/cuda/memory.h"

namespace headway::cuda {
namespace {

// Rotations, and K and V into their pages.

template <RopeProduct kProduct>
__global__ void __launch_bounds__(kThreads)
    RopeAnglesKernel(const int32_t* positions, int64_t count, const float* inv_freq, int half,
                     float scale, float* cos, float* sin) {
  FollowPrevious();
  const int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (at >= count) return;
  const int64_t token = at / half;
  const int32_t position = positions[token];
  const float frequency = inv_freq[at - token * half];
  float s = 0.0f;
  float c = 0.0f;
  if constexpr (kProduct == RopeProduct::kRounded) {
    sincosf(__fmul_rn(static_cast<float>(position), frequency), &s, &c);
  } else {
    const float2 angle = ExactAngle(position, frequency);
    c = angle.x;
    s = angle.y;
  }
  cos[at] = c * scale;
  sin[at] = s * scale;
}

// Elements of x at to at + kN, and those half further on, rotated; angles are the token's.
template <DType kType, int kN>
__device__ inline void LoadRotated(const RopeTable& table, int64_t token, int column, const void* x,
                                   int64_t at, float (&halves)[2][kN]) {
  float(&low)[kN] = halves[0];
  float(&high)[kN] = halves[1];
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
}

// The same in place.
template <DType kType, int kN>
__device__ inline void Rotate(const RopeTable& table, int64_t token, int column, void* x,
                              int64_t at, float (&halves)[2][kN]) {
  LoadRotated<kType>(table, token, column, x, at, halves);
  Store<kType>(x, at, halves[0]);
  Store<kType>(x, at + table.rotary_dim / 2, halves[1]);
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
  float halves[2][kN];
  Rotate<kType>(table, token, column, x, token * x_stride + int64_t{head} * head_dim + column,
                halves);
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

// One item, as a lone sequence has, needs few parameters; many are those of sequences whose heads
// have pages of their own.
template <int kItems>
struct RopeStoreItems {
  RopeStoreItem items[kItems];
};
constexpr int kItemsMany =
    static_cast<int>((kParametersMax - sizeof(PageFormat) - 16) / sizeof(RopeStoreItem));

// The work of a token: pairs of groups of q and of k that rotate, groups of k that do not, v. Where
// all of it lies is known before it is there.
template <DType kType, DType kPage, int kItems>
__global__ void __launch_bounds__(kRopeThreads)
    RopeStoreKvKernel(PageFormat format, const __grid_constant__ RopeStoreItems<kItems> list) {
  LetNextStart();
  constexpr int kN = 8;
  const RopeStoreItem& whole = list.items[blockIdx.z];
  const RopeTable& table = whole.table;
  const StoreKvItem& item = whole.kv;
  const int q_heads = whole.query_heads;
  const int64_t token = blockIdx.x;
  if (token >= item.to.count) return;
  const int head_dim = format.head_dim;
  const int pairs = table.rotary_dim / 2 / kN;
  const int plain = head_dim / kN - 2 * pairs;
  int unit = static_cast<int>(blockIdx.y * kRopeThreads + threadIdx.x);
  float halves[2][kN];
  if (unit < q_heads * pairs) {
    const int head = unit / pairs;
    const int column = (unit - head * pairs) * kN;
    const int64_t at = token * whole.q_stride + int64_t{head} * head_dim + column;
    WaitForPrevious();
    Rotate<kType>(table, token, column, whole.q, at, halves);
    return;
  }
  unit -= q_heads * pairs;
  const int64_t start = token * item.kv_stride;
  if (unit < item.heads * pairs) {
    const int head = unit / pairs;
    const int column = (unit - head * pairs) * kN;
    const int64_t at = start + int64_t{head} * head_dim + column;
    std::byte* row = item.to.k + RowOffset<kPage>(format, item.to, token, head);
    WaitForPrevious();
    Rotate<kType>(table, token, column, const_cast<void*>(item.k), at, halves);
    StorePage<kType, kPage>(row, column, halves[0]);
    StorePage<kType, kPage>(row, column + pairs * kN, halves[1]);
    return;
  }
  unit -= item.heads * pairs;
  const bool is_v = unit >= item.heads * plain;
  if (is_v) unit -= item.heads * plain;
  const int groups = is_v ? head_dim / kN : plain;
  if (groups == 0 || unit >= item.heads * groups) return;
  const int head = unit / groups;
  const int column = (unit - head * groups) * kN + (is_v ? 0 : table.rotary_dim);
  std::byte* row = (is_v ? item.to.v : item.to.k) + RowOffset<kPage>(format, item.to, token, head);
  WaitForPrevious();
  Load<kType>(is_v ? item.v : item.k, start + int64_t{head} * head_dim + column, halves[0]);
  Store<kPage>(row, column, halves[0]);
}

template <DType kPage, int kN>
__global__ void __launch_bounds__(kThreads)
    TurnKeysKernel(PageFormat format, const __grid_constant__ TurnKeysItem item) {
  // And lets nothing start before its end: decode attention reads keys of earlier positions ahead
  // of the kernel before it, as those of earlier steps.
  WaitForPrevious();
  const RopeTable& table = item.table;
  const int half = table.rotary_dim / 2;
  const int pairs = half / kN;
  const int units = pairs + (format.head_dim - table.rotary_dim) / kN;
  const int64_t index = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t row = index / units;
  if (row >= item.from.count * item.heads) return;
  const auto head = static_cast<int>(row / item.from.count);
  const int64_t slot = row - head * item.from.count;
  const int64_t offset = RowOffset<kPage>(format, item.from, slot, head);
  const std::byte* from = item.from.k + offset;
  std::byte* to = item.to + offset;
  const auto unit = static_cast<int>(index - row * units);
  if (unit >= pairs) {
    const int column = table.rotary_dim + (unit - pairs) * kN;
    float rest[kN];
    Load<kPage>(from, column, rest);
    Store<kPage>(to, column, rest);
    return;
  }
  const int column = unit * kN;
  float halves[2][kN];
  LoadRotated<kPage>(table, slot, column, from, column, halves);
  Store<kPage>(to, column, halves[0]);
  Store<kPage>(to, column + half, halves[1]);
}

bool RopeAligned(const RopeTable& table, const HeadRows& rows, DType dtype) {
  return table.rotary_dim % 16 == 0 && rows.head_dim % 8 == 0 && Aligned(table.cos) &&
         Aligned(table.sin) && RowsAligned(rows.x, rows.stride, dtype);
}

bool StoreAligned(DType activation, const PageFormat& format, const StoreKvItem& item) {
  return format.head_dim % 8 == 0 && RowsAligned(item.k, item.kv_stride, activation) &&
         RowsAligned(item.v, item.kv_stride, activation) && Aligned(item.to.k) &&
         Aligned(item.to.v) && item.to.page_stride % 16 == 0 && item.to.head_stride % 16 == 0;
}

// What cannot be read 16 bytes at a time.
cudaError_t RopeStoreKvApart(cudaStream_t stream, DType activation, const PageFormat& format,
                             const RopeStoreItem& item) {
  cudaError_t error = Rope(stream, activation, item.table, QueryRows(format, item));
  if (error != cudaSuccess) return error;
  error = Rope(stream, activation, item.table, KeyRows(format, item));
  if (error != cudaSuccess) return error;
  return StoreKv(stream, activation, format, {&item.kv, 1});
}

}  // namespace

cudaError_t RopeAngles(cudaStream_t stream, const RopeAnglesItem& item) {
  const int half = item.rotary_dim / 2;
  const int64_t count = static_cast<int64_t>(item.positions.size()) * half;
  if (count == 0) return cudaSuccess;
  const auto kernel = item.product == RopeProduct::kExact ? RopeAnglesKernel<RopeProduct::kExact>
                                                          : RopeAnglesKernel<RopeProduct::kRounded>;
  return LaunchKernel(kernel, Blocks(count, kThreads), kThreads, 0, stream, item.positions.data(),
                      count, item.inv_freq, half, item.scale, item.cos, item.sin);
}

cudaError_t Rope(cudaStream_t stream, DType activation, const RopeTable& table,
                 const HeadRows& rows) {
  const int half = table.rotary_dim / 2;
  if (rows.tokens == 0 || rows.heads == 0 || half == 0) return cudaSuccess;
  return WithDType(activation, [&](auto dtype) {
    constexpr DType kType = decltype(dtype)::kValue;
    const bool wide = RopeAligned(table, rows, activation);
    const dim3 grid(static_cast<unsigned>(rows.tokens),
                    Blocks(int64_t{rows.heads} * half, kRopeThreads * (wide ? 8 : 1)));
    const auto kernel = wide ? RopeKernel<kType, 8> : RopeKernel<kType, 1>;
    return LaunchKernel(kernel, grid, kRopeThreads, 0, stream, table, rows.heads, rows.head_dim,
                        rows.x, rows.stride);
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

cudaError_t TurnKeys(cudaStream_t stream, const PageFormat& format, const TurnKeysItem& item) {
  const RopeTable& table = item.table;
  const int half = table.rotary_dim / 2;
  if (table.rotary_dim < 0 || table.rotary_dim % 2 != 0 || table.rotary_dim > format.head_dim) {
    return cudaErrorInvalidValue;
  }
  if (item.from.count == 0 || item.heads == 0) return cudaSuccess;
  const bool wide = half % 8 == 0 && format.head_dim % 8 == 0 && Aligned(table.cos) &&
                    Aligned(table.sin) && Aligned(item.from.k) && Aligned(item.to) &&
                    item.from.page_stride % 16 == 0 && item.from.head_stride % 16 == 0;
  const int64_t units = item.from.count * item.heads * (format.head_dim - half) / (wide ? 8 : 1);
  return WithDType(format.dtype, [&](auto dtype) {
    constexpr DType kPage = decltype(dtype)::kValue;
    const auto kernel = wide ? TurnKeysKernel<kPage, 8> : TurnKeysKernel<kPage, 1>;
    return LaunchKernel(kernel, Blocks(units, kThreads), kThreads, 0, stream, format, item);
  });
}

namespace {

// Up to kItems in a launch.
template <int kItems>
cudaError_t RopeStoreInBatches(cudaStream_t stream, DType activation, const PageFormat& format,
                               std::span<const RopeStoreItem> items) {
  while (!items.empty()) {
    RopeStoreItems<kItems> list{};
    unsigned count = 0;
    int64_t tokens = 0;  // of the longest item
    int64_t units = 0;   // of a token of the item with the most
    size_t taken = 0;
    while (taken < items.size() && count < kItems) {
      const RopeStoreItem& item = items[taken++];
      if (item.kv.to.count == 0) continue;
      if (!RopeAligned(item.table, QueryRows(format, item), activation) ||
          !StoreAligned(activation, format, item.kv)) {
        const cudaError_t error = RopeStoreKvApart(stream, activation, format, item);
        if (error != cudaSuccess) return error;
        continue;
      }
      list.items[count++] = item;
      const int pairs = item.table.rotary_dim / 16;
      const int groups = format.head_dim / 8;
      tokens = std::max(tokens, item.kv.to.count);
      units = std::max(
          units, int64_t{item.query_heads} * pairs + int64_t{item.kv.heads} * (2 * groups - pairs));
    }
    items = items.subspan(taken);
    if (units == 0) continue;
    const cudaError_t error = WithDType(activation, [&](auto from) {
      return WithDType(format.dtype, [&](auto to) {
        const dim3 grid(static_cast<unsigned>(tokens), Blocks(units, kRopeThreads), count);
        constexpr DType kType = decltype(from)::kValue;
        constexpr DType kPage = decltype(to)::kValue;
        if (count > 1) {
          return LaunchKernel(RopeStoreKvKernel<kType, kPage, kItems>, grid, kRopeThreads, 0,
                              stream, format, list);
        }
        return LaunchKernel(RopeStoreKvKernel<kType, kPage, 1>, grid, kRopeThreads, 0, stream,
                            format, RopeStoreItems<1>{list.items[0]});
      });
    });
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace

cudaError_t RopeStoreKv(cudaStream_t stream, DType activation, const PageFormat& format,
                        std::span<const RopeStoreItem> items) {
  return items.size() > kItemsMax
             ? RopeStoreInBatches<kItemsMany>(stream, activation, format, items)
             : RopeStoreInBatches<kItemsMax>(stream, activation, format, items);
}

}  // namespace headway::cuda
