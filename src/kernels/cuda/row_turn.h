// Rows that are rotated by the angles of a table as they are read, by the definition's arithmetic:
// included where products and sums are not contracted.
#ifndef HEADWAY_KERNELS_CUDA_ROW_TURN_H_
#define HEADWAY_KERNELS_CUDA_ROW_TURN_H_

#include <cstdint>

#include "kernels/elementwise.h"
#include "kernels/selection_math.h"

namespace headway::cuda {

// A RopeTable as kernels have it; a rotary_dim of 0 turns nothing.
struct RowTurn {
  const float* cos;
  const float* sin;
  int32_t rotary_dim;
  float way;  // 1: on, -1: back

  static RowTurn On(const RopeTable& table) { return {table.cos, table.sin, table.rotary_dim, 1}; }
  static RowTurn Back(const RopeTable& table) {
    return {table.cos, table.sin, table.rotary_dim, -1};
  }
  static bool Takes(const RopeTable& table, int head_dim) {
    return table.rotary_dim >= 0 && table.rotary_dim <= head_dim && table.rotary_dim % 2 == 0;
  }
  // The table from row `row` on.
  RowTurn From(int64_t row) const {
    if (rotary_dim == 0) return *this;
    return {cos + row * (rotary_dim / 2), sin + row * (rotary_dim / 2), rotary_dim, way};
  }

  // Channel `channel` of row `row`, whose channels are load(channel).
  template <typename Load>
  __device__ float At(int64_t row, int channel, const Load& load) const {
    const float own = load(channel);
    if (channel >= rotary_dim) return own;
    const int half = rotary_dim / 2;
    const bool low = channel < half;
    const int pair = low ? channel : channel - half;
    const float other = load(low ? channel + half : pair);
    const selection::Pair turned =
        selection::Rotated(low ? selection::Pair{own, other} : selection::Pair{other, own},
                           __ldcg(cos + row * half + pair), way * __ldcg(sin + row * half + pair));
    return low ? turned.x : turned.y;
  }
};

}  // namespace headway::cuda

#endif  // HEADWAY_KERNELS_CUDA_ROW_TURN_H_
