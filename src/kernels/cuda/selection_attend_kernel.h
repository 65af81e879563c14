// Attention to listed blocks, in f32 throughout: kDim / 8 lanes share a key, each with 8 of its
// channels, for all query heads of a group at once. A warp takes rounds of 8 or 16 listed keys; the
// next round's keys and values are on their way while it computes, into the registers that are free
// by then, so that memory far away is read as fast as it can be.
#ifndef HEADWAY_KERNELS_CUDA_SELECTION_ATTEND_KERNEL_H_
#define HEADWAY_KERNELS_CUDA_SELECTION_ATTEND_KERNEL_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "base/bytes.h"
#include "kernels/cuda/attention_decode_block.h"
#include "kernels/cuda/elements.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/selection_attend_lines.h"
#include "kernels/cuda/selection_attend_move.h"
#include "kernels/cuda/selection_attend_parts.h"
#include "kernels/cuda/selection_attend_rest.h"
#include "kernels/cuda/selection_attend_rows.h"
#include "kernels/cuda/selection_attend_states.h"
#include "kernels/cuda/tensor_core.h"
#include "kernels/cuda/warp.h"
#include "kernels/cuda/workspace.h"
#include "kernels/page_codec.h"

namespace headway::cuda {

// What a kernel has in hand at once.
template <Rows kRows, int kDim, int kGroup>
struct AttendShape {
  static constexpr int kWarps = kGroup > 4 ? 4 : 8;
  static constexpr int kLanes = kDim / 8;         // that share a key
  static constexpr int kAtOnce = kWarp / kLanes;  // keys
  static constexpr int kStrips = kGroup > 4 || kDim > 128 || kRows == Rows::kF32 ? 1 : 2;
  static constexpr int kSteps = 8 / kAtOnce;                 // of a strip of 8 keys
  static constexpr int kKeys = 8 * kStrips;                  // of a round
  static constexpr int kLogits = kKeys * kGroup;             // of a round
  static constexpr int kOfLane = kStrips * kSteps * kGroup;  // products of a lane
};

// Adds up kCount sums over groups of kLanes lanes, dealing them out: a lane is left with sums
// first .. of the result, as many as kCount / kLanes, or one that others have, too.
template <int kCount, int kLanes>
__device__ int DealSums(float (&sums)[kCount]) {
  int first = 0;
  int count = kCount;
#pragma unroll
  for (int apart = kLanes / 2; apart > 0; apart /= 2) {
    const bool upper = (threadIdx.x & static_cast<unsigned>(apart)) != 0;
    if (count > 1) {
      count /= 2;
#pragma unroll
      for (int i = 0; i < kCount / 2; ++i) {
        if (i >= count) break;
        const float given = upper ? sums[i] : sums[i + count];
        const float kept = upper ? sums[i + count] : sums[i];
        sums[i] = kept + __shfl_xor_sync(kAllLanes, given, apart);
      }
      if (upper) first += count;
    } else {
      sums[0] += __shfl_xor_sync(kAllLanes, sums[0], apart);
    }
  }
  return first;
}

// Keys, values and parameters of a round.
template <Rows kRows, int kDim, int kGroup>
struct Round {
  using Shape = AttendShape<kRows, kDim, kGroup>;
  Eight<kRows> k[Shape::kStrips][Shape::kSteps];
  Eight<kRows> v[Shape::kStrips][Shape::kSteps];
  static constexpr bool kLossless = kRows == Rows::kLossless;
  std::conditional_t<kLossless, StripParams, KeyParams> key_params[Shape::kStrips];
  std::conditional_t<kLossless, StripParams, ValueParams> value_params[Shape::kStrips];
  bool one_page;  // the second strip's parameters of K are the first's, and were not read again

  // `strips` are the round's; `sub` is which of a key's channels the lane has, `key` which key.
  // Nothing is loaded on a condition: a register that may be 0 instead is copied behind the load,
  // which waits for it.
  __device__ void LoadKeys(const AttendWork& work, const Strip (&strips)[Shape::kStrips], int sub,
                           int key) {
    one_page = Shape::kStrips > 1 && strips[Shape::kStrips - 1].params == strips[0].params;
#pragma unroll
    for (int i = 0; i < Shape::kStrips; ++i) LoadStripKeys(work, strips[i], i, sub, key);
  }
  __device__ void LoadStripKeys(const AttendWork& work, const Strip& strip, int i, int sub,
                                int key) {
    const int row_bytes = work.head_dim / 8 * BytesOfEight(kRows);
#pragma unroll
    for (int step = 0; step < Shape::kSteps; ++step) {
      k[i][step].Load(strip.k + (step * Shape::kAtOnce + key) * row_bytes, sub, work.head_dim);
    }
    if constexpr (kLossless) {
      key_params[i].Load(LosslessHalf::Of(strip.params, true, work.page_slots, work.head_dim),
                         strip.slot, work.head_dim);
    } else if constexpr (IsEncoded(kRows)) {
      if (i > 0 && one_page) return;
      key_params[i].Load(strip.params + sub * 16, work.head_dim, work.params_aligned != 0);
    }
  }
  __device__ void LoadValues(const AttendWork& work, const Strip& strip, int i, int sub, int key) {
    const int row_bytes = work.head_dim / 8 * BytesOfEight(kRows);
#pragma unroll
    for (int step = 0; step < Shape::kSteps; ++step) {
      const int row = step * Shape::kAtOnce + key;
      v[i][step].Load(strip.V() + row * row_bytes, sub, work.head_dim);
    }
    if constexpr (kLossless) {
      value_params[i].Load(LosslessHalf::Of(strip.params, false, work.page_slots, work.head_dim),
                           strip.slot, work.head_dim);
    } else if constexpr (IsEncoded(kRows)) {
      constexpr int kGroupLanes = static_cast<int>(kValueGroup) / 8;
      const int groups =
          (work.head_dim + static_cast<int>(kValueGroup) - 1) / static_cast<int>(kValueGroup);
      const int index = sub / kGroupLanes * work.page_slots + strip.slot;
      value_params[i].Load(strip.params + 4 * work.head_dim + index * 2,
                           groups * work.page_slots * 2, work.params_aligned != 0);
    }
  }
  // Calls use(step, numbers) for the lane's part of its keys of a strip.
  template <typename Use>
  __device__ void EachKey(const LaneKeys& lane, int i, const Use& use) const {
    [[maybe_unused]] KeyParams params;
    if constexpr (IsEncoded(kRows) && !kLossless) {
      params = i > 0 && one_page ? key_params[0] : key_params[i];
    }
    [[maybe_unused]] uint32_t escapes = 0;
    if constexpr (kLossless) escapes = key_params[i].Escapes(lane.head_dim);
#pragma unroll
    for (int step = 0; step < Shape::kSteps; ++step) {
      float x[8];
      if constexpr (kLossless) {
        key_params[i].Widen(k[i][step], step * Shape::kAtOnce + lane.key, lane.sub, lane.head_dim,
                            escapes, x);
      } else {
        k[i][step].Widen(x);
        if constexpr (IsEncoded(kRows)) params.Decode(x);
      }
      use(step, x);
    }
  }
  // The lane's products of queries and keys, [strip][step][query].
  __device__ void Products(const LaneKeys& lane, const float (&q)[kGroup][8],
                           float (&sums)[Shape::kOfLane]) const {
#pragma unroll
    for (int i = 0; i < Shape::kStrips; ++i) {
      EachKey(lane, i, [&](int step, const float(&x)[8]) {
#pragma unroll
        for (int query = 0; query < kGroup; ++query) {
          float sum = q[query][0] * x[0];
#pragma unroll
          for (int j = 1; j < 8; ++j) sum = fmaf(q[query][j], x[j], sum);
          sums[(i * Shape::kSteps + step) * kGroup + query] = sum;
        }
      });
    }
  }
  // Adds the values times their weights, [key of the round][query].
  __device__ void AddValues(const float* weights, const LaneKeys& lane,
                            float (&o)[kGroup][8]) const {
#pragma unroll
    for (int i = 0; i < Shape::kStrips; ++i) {
      [[maybe_unused]] uint32_t escapes = 0;
      if constexpr (kLossless) escapes = value_params[i].Escapes(lane.head_dim);
#pragma unroll
      for (int step = 0; step < Shape::kSteps; ++step) {
        float x[8];
        if constexpr (kLossless) {
          value_params[i].Widen(v[i][step], step * Shape::kAtOnce + lane.key, lane.sub,
                                lane.head_dim, escapes, x);
        } else {
          v[i][step].Widen(x);
          if constexpr (IsEncoded(kRows)) {
            value_params[i].template Decode<Shape::kAtOnce>(step, lane.key, x);
          }
        }
        const float* of_key = weights + (i * 8 + step * Shape::kAtOnce + lane.key) * kGroup;
        float weight[kGroup];
        if constexpr (kGroup % 4 == 0) {
#pragma unroll
          for (int query = 0; query < kGroup; query += 4) {
            const float4 some = *reinterpret_cast<const float4*>(of_key + query);
            weight[query] = some.x;
            weight[query + 1] = some.y;
            weight[query + 2] = some.z;
            weight[query + 3] = some.w;
          }
        } else {
#pragma unroll
          for (int query = 0; query < kGroup; ++query) weight[query] = of_key[query];
        }
#pragma unroll
        for (int query = 0; query < kGroup; ++query) {
#pragma unroll
          for (int j = 0; j < 8; ++j) o[query][j] = fmaf(weight[query], x[j], o[query][j]);
        }
      }
    }
  }
};

// Whether listed blocks are moved.
enum class Listed : uint8_t { kStay, kMove };

// Blocks of threads take parts in turn; blockIdx.y says which query heads of the groups.
template <Rows kRows, int kDim, int kGroup, Listed kListed>
__global__ void __launch_bounds__(AttendShape<kRows, kDim, kGroup>::kWarps* kWarp, 1)
    Attend(const __grid_constant__ AttendWork work) {
  using Shape = AttendShape<kRows, kDim, kGroup>;
  __shared__ PartStates<kDim, Shape::kWarps, kGroup> states;
  __shared__ alignas(16) float logits[Shape::kWarps][Shape::kLogits];
  __shared__ alignas(16) float factors[Shape::kWarps][kGroup];
  __shared__ PartLines lines;
  LetNextStart();
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  // Lanes behind a head's channels have its last ones, too, and queries of 0.
  const int own = lane % Shape::kLanes;
  const int sub = min(own, work.head_dim / 8 - 1);
  const int key = lane / Shape::kLanes;
  const LaneKeys of_lane = {key, sub, work.head_dim};
  const int first_query = static_cast<int>(blockIdx.y) * kGroup;
  const int queries = min(kGroup, work.group - first_query);
  constexpr int kRoundsAhead = kWarp / Shape::kStrips;  // whose strips the lanes find at once
  static_assert(offsetof(AttendWork, table) + sizeof(BlockTable) == sizeof(AttendWork));
  BringParameters<sizeof(work) - BlockTable::kPlacesBytes>(work);
  WaitForPrevious();

  for (int unit = static_cast<int>(blockIdx.x);; unit += static_cast<int>(gridDim.x)) {
    const PartOf part = FindPart(work, unit);
    if (part.head < 0) break;
    if (part.IsOpen()) {
      AttendOpenPage<kRows>(work, part.head, states);
    } else {
      const int part_blocks = BlocksOf(work, part);
      const int strips = part_blocks * work.block_strips.Size();
      const int rounds = (strips + Shape::kStrips - 1) / Shape::kStrips;
      const int64_t query_head = int64_t{part.head} * work.group + first_query;
      const bool cached = work.cache.lines != nullptr;
      if (cached && work.line_of != nullptr) {
        lines.Load<Shape::kWarps>(work, part, part_blocks);
      } else if (cached) {
        lines.Bring<kRows, Shape::kWarps>(work, part, part_blocks);
      }

      // Round r of the warp is round r * kWarps + warp of the part.
      Strip found;
      int32_t found_shift = 0;
      const auto find = [&](int round) {
        const int of_part = (round + lane / Shape::kStrips) * Shape::kWarps + warp;
        // Behind the part's last strip its keys are there again, and count for nothing.
        const int index = min(of_part * Shape::kStrips + lane % Shape::kStrips, strips - 1);
        found = FindStrip<kRows>(work, part, index, cached ? lines.of : nullptr);
        if constexpr (kListed == Listed::kMove) found_shift = ShiftOf(work, part, index);
      };
      Round<kRows, kDim, kGroup> now;
      Strip strip[Shape::kStrips];
      [[maybe_unused]] int32_t shift[Shape::kStrips];
      const auto take = [&](int round) {
#pragma unroll
        for (int i = 0; i < Shape::kStrips; ++i) {
          const int at = round % kRoundsAhead * Shape::kStrips + i;
          strip[i] = found.From(at);
          if constexpr (kListed == Listed::kMove) {
            shift[i] = __shfl_sync(kAllLanes, found_shift, at);
          }
        }
      };
      float q[kGroup][8];
      LoadQueries<kGroup>(work, query_head * work.head_dim, queries, own, q);
      if (warp < rounds) {
        find(0);
        take(0);
        now.LoadKeys(work, strip, sub, key);
#pragma unroll
        for (int i = 0; i < Shape::kStrips; ++i) now.LoadValues(work, strip[i], i, sub, key);
      }
      float o[kGroup][8] = {};
      RunningSoftmax<kGroup, Shape::kLogits> softmax;

      for (int round = 0; round * Shape::kWarps + warp < rounds; ++round) {
        float sums[Shape::kOfLane];
        if constexpr (kListed == Listed::kMove) {
          const MovedQueries moved = {of_lane, own, queries, query_head * work.head_dim};
          MovedProducts(work, now, shift, moved, q, sums);
        } else {
          now.Products(of_lane, q, sums);
        }
        const int strips_there = strips - (round * Shape::kWarps + warp) * Shape::kStrips;
        const bool more = (round + 1) * Shape::kWarps + warp < rounds;
        if (more) {
          if ((round + 1) % kRoundsAhead == 0) find(round + 1);
          take(round + 1);
          now.LoadKeys(work, strip, sub, key);
        }
        const int first = DealSums<Shape::kOfLane, Shape::kLanes>(sums);
        constexpr int kLeft = std::max(1, Shape::kOfLane / Shape::kLanes);
        __syncwarp();
#pragma unroll
        for (int i = 0; i < kLeft; ++i) {
          const int query = (first + i) % kGroup;
          const int step = (first + i) / kGroup % Shape::kSteps;
          const int of = (first + i) / kGroup / Shape::kSteps;
          logits[warp][(of * 8 + step * Shape::kAtOnce + key) * kGroup + query] =
              of < strips_there ? sums[i] : kNoKeys;
        }
        __syncwarp();
        softmax.Take(logits[warp], factors[warp]);
        __syncwarp();
#pragma unroll
        for (int query = 0; query < kGroup; ++query) {
          const float factor = factors[warp][query];
#pragma unroll
          for (int i = 0; i < 8; ++i) o[query][i] *= factor;
        }
        now.AddValues(logits[warp], of_lane, o);
        if (!more) break;
#pragma unroll
        for (int i = 0; i < Shape::kStrips; ++i) now.LoadValues(work, strip[i], i, sub, key);
      }
      states.Take(o, softmax, warp, lane);
    }
    FinishPart(work, part, states);
  }
  if (blockIdx.y == 0 && work.result == nullptr) ClearEmptyParts(work);
}

template <Rows kRows, int kDim, int kGroup>
cudaError_t LaunchAttendKernel(cudaStream_t stream, const AttendWork& work) {
  using Shape = AttendShape<kRows, kDim, kGroup>;
  constexpr int64_t kOfMultiprocessor = Shape::kWarps > 4 ? 1 : 2;  // as registers allow
  const int64_t parts = int64_t{work.heads} * (work.parts + (work.result == nullptr ? 0 : 1));
  const dim3 grid(static_cast<unsigned>(std::min(parts, kOfMultiprocessor * Multiprocessors())),
                  static_cast<unsigned>(CeilDiv(work.group, kGroup)));
  const auto kernel = work.inv_freq == nullptr ? Attend<kRows, kDim, kGroup, Listed::kStay>
                                               : Attend<kRows, kDim, kGroup, Listed::kMove>;
  return LaunchKernel(kernel, grid, Shape::kWarps * kWarp, 0, stream, work);
}

template <Rows kRows, int kDim>
cudaError_t LaunchAttendDim(cudaStream_t stream, const AttendWork& work) {
  if (work.group == 1) return LaunchAttendKernel<kRows, kDim, 1>(stream, work);
  // Registers hold no more.
  if constexpr (AttendGroupMax(kRows == Rows::kF32, kDim) == 8) {
    if (work.group > 4) return LaunchAttendKernel<kRows, kDim, 8>(stream, work);
  }
  return LaunchAttendKernel<kRows, kDim, 4>(stream, work);
}

template <Rows kRows>
cudaError_t LaunchAttend(cudaStream_t stream, const AttendWork& work) {
  if (work.head_dim <= 64) return LaunchAttendDim<kRows, 64>(stream, work);
  if (work.head_dim <= 128) return LaunchAttendDim<kRows, 128>(stream, work);
  return LaunchAttendDim<kRows, 256>(stream, work);
}

}  // namespace headway::cuda

#endif  // HEADWAY_KERNELS_CUDA_SELECTION_ATTEND_KERNEL_H_
