// Attention of blocks of rows to what they list, in f32: for queries and pages that tensor cores do
// not take together. A warp has some rows; a tile of keys lies in shared memory as numbers, a lane
// makes the logits of one of them, and has some channels of the output.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "base/bytes.h"
#include "kernels/cuda/attention_tile.h"
#include "kernels/cuda/elements.h"
#include "kernels/cuda/exact_angle.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/selection_attend_rows.h"
#include "kernels/cuda/selection_prefill.h"
#include "kernels/cuda/workspace.h"
#include "kernels/page_codec.h"
#include "kernels/selection.h"

namespace headway::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kRowsOfWarp = 4;
constexpr int kBlockRows = kWarps * kRowsOfWarp;
constexpr int kKeys = kWarp;  // of a tile
constexpr int kStrips = kKeys / 8;
constexpr int kOfLane = kHeadDimMax / kWarp;  // channels of the output

// Floats in shared memory: queries, keys and values. Keys lie an odd number of words apart, so that
// lanes that read one channel of all of them meet in no bank.
struct Numbers {
  float* q;
  float* k;
  float* v;
  int k_stride;

  __device__ Numbers(float* memory, int head_dim)
      : q(memory),
        k(q + kBlockRows * head_dim),
        v(k + kKeys * (head_dim | 1)),
        k_stride(head_dim | 1) {}
  static int64_t Bytes(int head_dim) {
    return (int64_t{kBlockRows} * head_dim + kKeys * (int64_t{head_dim} | 1) +
            int64_t{kKeys} * head_dim) *
           static_cast<int64_t>(sizeof(float));
  }
};

__device__ float LoadQuery(const ListedWork& work, int64_t index) {
  switch (static_cast<DType>(work.q_dtype)) {
    case DType::kBF16:
      return AsFloat(static_cast<const __nv_bfloat16*>(work.q)[index]);
    case DType::kF16:
      return AsFloat(static_cast<const __half*>(work.q)[index]);
    case DType::kF32:
      break;
  }
  return static_cast<const float*>(work.q)[index];
}

// Of row `at` of all rows of a KV head: its token and query head.
struct RowPlace {
  int64_t token;
  int64_t query_head;

  __device__ RowPlace(const ListedWork& work, int head, int at)
      : token(at / work.group), query_head(int64_t{head} * work.group + at % work.group) {}
};

// Queries times the scale of logits in powers of two; zeros behind the last row.
__device__ void LoadQueries(const ListedWork& work, int head, int first_row, int end_row,
                            float* q) {
  for (int row = 0; row < kBlockRows; ++row) {
    const RowPlace place(work, head, first_row + row);
    for (int i = static_cast<int>(threadIdx.x); i < work.head_dim; i += kWarps * kWarp) {
      const int64_t at = place.token * work.q_stride + place.query_head * work.head_dim + i;
      q[row * work.head_dim + i] =
          first_row + row < end_row ? LoadQuery(work, at) * (work.scale * kLog2E) : 0.0f;
    }
  }
}

// Eight channels of a key and a value of a strip, as numbers.
template <Rows kRows>
__device__ void LoadEight(const ListedWork& work, const ListedStrip& strip, int slot, int channel,
                          float (&k)[8], float (&v)[8]) {
  const int at = slot * (work.head_dim / 8) * BytesOfEight(kRows);
  const int index = channel / 8;
  Eight<kRows> of_key, of_value;
  of_key.Load(strip.k + at, index, work.head_dim);
  of_value.Load(strip.V() + at, index, work.head_dim);
  if constexpr (kRows == Rows::kLossless) {
    for (const bool of_keys : {true, false}) {
      const auto half = LosslessHalf::Of(strip.params, of_keys, work.page_slots, work.head_dim);
      const int position = (strip.slot + slot) * work.head_dim + channel;
      WidenBits(LosslessNumbers((of_keys ? of_key : of_value).piece,
                                InFourBytes(half.Floor(strip.slot + slot)), half, position),
                of_keys ? k : v);
    }
  } else {
    of_key.Widen(k);
    of_value.Widen(v);
  }
  if constexpr (IsEncoded(kRows) && kRows != Rows::kLossless) {
    KeyParams params;
    params.Load(strip.params + channel * 2, work.head_dim, work.params_aligned != 0);
    params.Decode(k);
    const int groups = (work.head_dim + int{kValueGroup} - 1) / int{kValueGroup};
    const auto* of_values = reinterpret_cast<const uint16_t*>(strip.params + 4 * work.head_dim) +
                            channel / int{kValueGroup} * work.page_slots + strip.slot + slot;
    const float by = WidenBF16(of_values[0]);
    const float from = WidenBF16(of_values[groups * work.page_slots]);
#pragma unroll
    for (float& x : v) x = fmaf(by, x, from);
  }
}

// A tile's keys and values; zeros where strips are not there.
template <Rows kRows>
__device__ void LoadTile(const ListedWork& work, const ListedStrip (&strips)[kStrips],
                         const Numbers& numbers) {
  const int chunks = work.head_dim / 8;
  for (int i = static_cast<int>(threadIdx.x); i < kKeys * chunks; i += kWarps * kWarp) {
    const int key = i / chunks;
    const int channel = (i - key * chunks) * 8;
    float k[8] = {};
    float v[8] = {};
    const ListedStrip& strip = strips[key / 8];
    if (strip.k != nullptr) LoadEight<kRows>(work, strip, key % 8, channel, k, v);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      numbers.k[key * numbers.k_stride + channel + j] = k[j];
      numbers.v[key * work.head_dim + channel + j] = v[j];
    }
  }
}

// Rotates the keys of blocks that move: a thread takes a pair of channels of a strip.
__device__ void RotateKeys(const ListedWork& work, const ListedStrip (&strips)[kStrips],
                           const Numbers& numbers) {
  const int half = work.rotary_dim / 2;
  for (int i = static_cast<int>(threadIdx.x); i < kStrips * half; i += kWarps * kWarp) {
    const int strip = i / half;
    const int channel = i - strip * half;
    if (strips[strip].shift == 0) continue;
    const float2 angle = ExactAngle(strips[strip].shift, __ldg(work.inv_freq + channel));
    for (int slot = 0; slot < 8; ++slot) {
      float* const key = numbers.k + (strip * 8 + slot) * numbers.k_stride + channel;
      const float x = key[0];
      const float y = key[half];
      key[0] = x * angle.x - y * angle.y;
      key[half] = y * angle.x + x * angle.y;
    }
  }
}

// The running softmax of a warp's rows, whose logits are powers of two.
struct WarpRows {
  float top[kRowsOfWarp];
  float total[kRowsOfWarp];  // of the lane's keys
  float o[kRowsOfWarp][kOfLane];

  __device__ WarpRows() {
#pragma unroll
    for (int row = 0; row < kRowsOfWarp; ++row) {
      top[row] = kNoKeys;
      total[row] = 0.0f;
#pragma unroll
      for (float& value : o[row]) value = 0.0f;
    }
  }

  // `q` is the warp's first row; the tile has `keys` keys.
  __device__ void Take(const ListedWork& work, const Numbers& numbers, const float* q, int keys) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    float logits[kRowsOfWarp] = {};
    for (int i = 0; i < work.head_dim; ++i) {
      const float k = numbers.k[lane * numbers.k_stride + i];
#pragma unroll
      for (int row = 0; row < kRowsOfWarp; ++row) {
        logits[row] = fmaf(q[row * work.head_dim + i], k, logits[row]);
      }
    }
#pragma unroll
    for (int row = 0; row < kRowsOfWarp; ++row) {
      const float logit = lane < keys ? logits[row] : kNoKeys;
      float best = fmaxf(top[row], logit);
#pragma unroll
      for (int apart = kWarp / 2; apart > 0; apart /= 2) {
        best = fmaxf(best, __shfl_xor_sync(kAllLanes, best, apart));
      }
      const float base = best == kNoKeys ? 0.0f : best;
      const float keep = Exp2(top[row] - base);
      top[row] = best;
      logits[row] = Exp2(logit - base);
      total[row] = fmaf(total[row], keep, logits[row]);
#pragma unroll
      for (float& value : o[row]) value *= keep;
    }
    for (int key = 0; key < keys; ++key) {
      float weights[kRowsOfWarp];
#pragma unroll
      for (int row = 0; row < kRowsOfWarp; ++row) {
        weights[row] = __shfl_sync(kAllLanes, logits[row], key);
      }
#pragma unroll
      for (int i = 0; i < kOfLane; ++i) {
        const int channel = lane + i * kWarp;
        if (channel >= work.head_dim) break;
        const float v = numbers.v[key * work.head_dim + channel];
#pragma unroll
        for (int row = 0; row < kRowsOfWarp; ++row) {
          o[row][i] = fmaf(weights[row], v, o[row][i]);
        }
      }
    }
  }

  // Writes or merges the states of rows [first_row, end_row).
  __device__ void Finish(const ListedWork& work, int head, int first_row, int end_row) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
    for (int row = 0; row < kRowsOfWarp; ++row) {
      const float all = WarpSum(total[row]);
      if (first_row + row >= end_row) continue;
      const RowPlace place(work, head, first_row + row);
      float* const lse = work.lse + place.token * work.lse_stride + place.query_head;
      float* const to = work.o + place.token * work.o_stride + place.query_head * work.head_dim;
      const float theirs = all == 0.0f ? kNoKeys : fmaf(top[row], kLn2, logf(all));
      const float ours = work.merge ? *lse : kNoKeys;
      const MergedRow merged = MergeRow(ours, theirs, all);
      __syncwarp();  // every lane has read it
      if (lane == 0) *lse = merged.lse;
#pragma unroll
      for (int i = 0; i < kOfLane; ++i) {
        const int channel = lane + i * kWarp;
        if (channel >= work.head_dim) break;
        float value = o[row][i] * merged.their_share;
        if (ours != kNoKeys) value = fmaf(to[channel], merged.our_share, value);
        to[channel] = value;
      }
    }
  }
};

// Grid: rows of a block of rows, heads, blocks of rows.
template <Rows kRows>
__global__ void __launch_bounds__(kWarps* kWarp)
    AttendListedRows(const __grid_constant__ ListedWork work) {
  FollowPrevious();
  extern __shared__ float memory[];
  __shared__ ListedStrip strips[kStrips];
  const Numbers numbers(memory, work.head_dim);
  const int thread = static_cast<int>(threadIdx.x);
  const int head = static_cast<int>(blockIdx.y);
  const int row_block = static_cast<int>(blockIdx.z);
  constexpr int kSelect = static_cast<int>(kSelectRows);
  const int end_row = min(work.rows, (row_block + 1) * kSelect * work.group);
  const int first_row =
      row_block * kSelect * work.group + static_cast<int>(blockIdx.x) * kBlockRows;
  if (first_row >= end_row) return;
  const RowList list = RowList::Of(work, row_block, head);
  const int keys = list.count * work.block_slots;
  const int of_warp = thread / kWarp * kRowsOfWarp;
  LoadQueries(work, head, first_row, end_row, numbers.q);
  WarpRows rows;
  for (int first = 0; first < keys; first += kKeys) {
    if (thread < kStrips) {
      strips[thread] = FindListedStrip<kRows>(work, list, head, first / 8 + thread);
    }
    __syncthreads();
    LoadTile<kRows>(work, strips, numbers);
    __syncthreads();
    if (work.inv_freq != nullptr) {
      RotateKeys(work, strips, numbers);
      __syncthreads();
    }
    rows.Take(work, numbers, numbers.q + of_warp * work.head_dim, min(kKeys, keys - first));
    __syncthreads();
  }
  rows.Finish(work, head, first_row + of_warp, end_row);
}

template <Rows kRows>
cudaError_t Launch(cudaStream_t stream, const ListedWork& work) {
  const int64_t bytes = Numbers::Bytes(work.head_dim);
  const cudaError_t error =
      cudaFuncSetAttribute(AttendListedRows<kRows>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           static_cast<int>(Numbers::Bytes(kHeadDimMax)));
  if (error != cudaSuccess) return error;
  const int64_t block_rows = kSelectRows * work.group;
  const dim3 grid(
      static_cast<unsigned>(CeilDiv(std::min<int64_t>(block_rows, work.rows), int64_t{kBlockRows})),
      static_cast<unsigned>(work.heads), static_cast<unsigned>(CeilDiv(work.rows, block_rows)));
  return LaunchKernel(AttendListedRows<kRows>, grid, kWarps * kWarp, static_cast<size_t>(bytes),
                      stream, work);
}

}  // namespace

cudaError_t LaunchListedRows(cudaStream_t stream, Rows rows, const ListedWork& work) {
  return ForRows(rows, [&](auto tag) { return Launch<decltype(tag)::kRows>(stream, work); });
}

}  // namespace headway::cuda
