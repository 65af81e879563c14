// Decode with listed blocks that are moved: where a block's keys are to be rotated on, a query that
// is rotated back has the same products with the keys as they lie.
#ifndef HEADWAY_KERNELS_CUDA_SELECTION_ATTEND_MOVE_H_
#define HEADWAY_KERNELS_CUDA_SELECTION_ATTEND_MOVE_H_

#include <cstdint>

#include "kernels/cuda/elements.h"
#include "kernels/cuda/exact_angle.h"
#include "kernels/cuda/selection_attend.h"
#include "kernels/cuda/selection_attend_parts.h"
#include "kernels/cuda/selection_attend_rows.h"

namespace headway::cuda {

// The positions by which the block of a part's strip is rotated on.
__device__ inline int32_t ShiftOf(const AttendWork& work, const PartOf& part, int index) {
  if (work.inv_freq == nullptr) return 0;
  const int at = part.part * work.split_blocks + work.block_strips.Divide(index);
  if (at >= part.blocks) return 0;
  int block = __ldcg(work.listed + part.head * work.capacity + at);
  const PlacedSegment& place = work.segments[work.table.Index(part.head, block)];
  return MoveShift(work.to, part.blocks - at, place.position, block, work.block_slots);
}

// How the lane's eight channels of a query are rotated back.
struct QueryMove {
  float cos[8];
  float sin[8];  // of the channel that each is rotated with
  int other[8];  // that channel

  __device__ QueryMove(const AttendWork& work, int32_t shift, int sub) {
    const int half = work.rotary_dim / 2;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int channel = sub * 8 + i;
      const bool low = channel < half;
      cos[i] = 1.0f;
      sin[i] = 0.0f;
      other[i] = 0;
      if (channel >= work.rotary_dim) continue;
      other[i] = low ? channel + half : channel - half;
      const float2 angle = ExactAngle(shift, __ldg(work.inv_freq + (low ? channel : other[i])));
      cos[i] = angle.x;
      sin[i] = low ? angle.y : -angle.y;
    }
  }

  // `q` are the lane's channels of a query whose first channel, without the scale, is `first`.
  template <DType kDType>
  __device__ void Rotate(const AttendWork& work, int64_t first, const float (&q)[8],
                         float (&moved)[8]) const {
    const auto* from = static_cast<const typename ElementOf<kDType>::Type*>(work.q) + first;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      moved[i] = fmaf(AsFloat(from[other[i]]) * work.q_scale, sin[i], q[i] * cos[i]);
    }
  }
  __device__ void Rotate(const AttendWork& work, int64_t first, const float (&q)[8],
                         float (&moved)[8]) const {
    switch (static_cast<DType>(work.q_dtype)) {
      case DType::kBF16:
        return Rotate<DType::kBF16>(work, first, q, moved);
      case DType::kF16:
        return Rotate<DType::kF16>(work, first, q, moved);
      case DType::kF32:
        break;
    }
    Rotate<DType::kF32>(work, first, q, moved);
  }
};

// Queries of a group whose products a warp makes.
struct MovedQueries {
  LaneKeys lane;
  int sub;        // which of the queries' channels the lane has; they may be none
  int count;      // there are so many
  int64_t first;  // channel of the first
};

// Round::Products of keys whose strips are moved by `shifts`.
template <typename Round, int kStrips, int kGroup, int kOfLane>
__device__ void MovedProducts(const AttendWork& work, const Round& round,
                              const int32_t (&shifts)[kStrips], const MovedQueries& queries,
                              const float (&q)[kGroup][8], float (&sums)[kOfLane]) {
  constexpr int kSteps = kOfLane / (kStrips * kGroup);
#pragma unroll
  for (int i = 0; i < kStrips; ++i) {
    const QueryMove move(work, shifts[i], queries.sub);
#pragma unroll
    for (int query = 0; query < kGroup; ++query) {
      float moved[8];
      // One that is not there is rotated with channels of the last one; it is not used.
      move.Rotate(work, queries.first + min(query, queries.count - 1) * work.head_dim, q[query],
                  moved);
      round.EachKey(queries.lane, i, [&](int step, const float(&x)[8]) {
        float sum = moved[0] * x[0];
#pragma unroll
        for (int j = 1; j < 8; ++j) sum = fmaf(moved[j], x[j], sum);
        sums[(i * kSteps + step) * kGroup + query] = sum;
      });
    }
  }
}

}  // namespace headway::cuda

#endif  // HEADWAY_KERNELS_CUDA_SELECTION_ATTEND_MOVE_H_
