// The arithmetic of selectors that score blocks by the keys themselves: single rounded operations
// in one order, as in selection_math.h. Compiled without contraction of products and sums.
//
// A key's numbers are those that lie there; of a closed page in an encoding, zero + scale * code,
// rounded once. Its product with a query is summed in 16 lanes: lane i adds the channels i, i + 16,
// ... in their order, and the lanes are added up by halves.
#ifndef HEADWAY_KERNELS_SELECTION_KEY_MATH_H_
#define HEADWAY_KERNELS_SELECTION_KEY_MATH_H_

#include <bit>
#include <cstdint>

#include "kernels/selection.h"
#include "kernels/selection_math.h"

namespace headway::selection {

inline constexpr int kDotLanes = 16;
constexpr float SumOfLanes(const float (&lanes)[kDotLanes]) {
  float sums[kDotLanes] = {};
  for (int i = 0; i < kDotLanes; ++i) sums[i] = lanes[i];
  for (int apart = kDotLanes / 2; apart > 0; apart /= 2) {
    for (int i = 0; i < apart; ++i) sums[i] += sums[i + apart];
  }
  return sums[0];
}

// A key whose logit is not a number of ordinary size has none to speak of, as one that is not
// finite has no summary.
inline constexpr float kLeastLogit = -0x1p100f;
constexpr float LogitOf(float dot, float scale) {
  const float logit = dot * scale;
  return logit > kLeastLogit && logit < -kLeastLogit ? logit : kLeastLogit;
}

// --- Rotation of keys. {cosine, sine} of a product of a position, which is not negative, and a
// frequency: whole quarter turns are left out in doubles, so that the angle is right at any
// position, and the rest, at most an eighth of a turn, is that of the first terms of both series,
// within 3e-7.
inline constexpr double kQuartersOfRadian = 0.63661977236758134;  // 2 / pi
inline constexpr double kRadiansOfQuarter = 1.5707963267948966;
constexpr Pair AngleAt(int64_t position, float inv_freq) {
  const double quarters =
      static_cast<double>(position) * static_cast<double>(inv_freq) * kQuartersOfRadian;
  const auto whole = static_cast<int64_t>(quarters + 0.5);
  const auto x = static_cast<float>((quarters - static_cast<double>(whole)) * kRadiansOfQuarter);
  const float square = x * x;
  const float sin_series =
      -1.0f / 6 + square * (1.0f / 120 + square * (-1.0f / 5040 + square * (1.0f / 362880)));
  const float cos_series =
      -0.5f + square * (1.0f / 24 + square * (-1.0f / 720 + square * (1.0f / 40320)));
  const float sin = x + x * (square * sin_series);
  const float cos = 1.0f + square * cos_series;
  switch (whole & 3) {
    case 0:
      return {cos, sin};
    case 1:
      return {-sin, cos};
    case 2:
      return {-cos, -sin};
    default:
      return {sin, -cos};
  }
}

// --- Pairs: of a block's keys the two that stand for the others are those whose logits for the
// mean of all, with a scale of 1, are largest; of equals the first ones, the larger one in the
// first row. Both rows have the scale of the larger size.

// --- Masses. The logarithm of a sum of ShareWeights, where that of one is 0: of a sum of at least
// 2^31, within 3e-7 of its size and of 1. ln m = 2 (y + y³/3 + y⁵/5 + ...) with y = (m - 1) / (m +
// 1), whose sizes are below 0.172.
constexpr float LogOfShares(uint64_t sum) {
  constexpr float kLn2 = 0x1.62e43p-1f;
  constexpr float kRootOfTwo = 0x1.6a09e6p0f;
  const uint32_t bits = std::bit_cast<uint32_t>(static_cast<float>(sum));
  auto exponent = static_cast<int32_t>(bits >> 23) - 127;
  float m = std::bit_cast<float>((bits & 0x7FFFFFu) | 0x3F800000u);
  if (m > kRootOfTwo) {
    m *= 0.5f;
    ++exponent;
  }
  const float y = (m - 1.0f) / (m + 1.0f);
  const float square = y * y;
  const float series = y * (2.0f + square * (2.0f / 3 + square * (2.0f / 5 + square * (2.0f / 7))));
  return static_cast<float>(exponent - kShareBits) * kLn2 + series;
}
// A block's score: `largest` is that of its keys' logits, `sum` that of their ShareWeights to it.
constexpr float MassScore(float largest, uint64_t sum) { return largest + LogOfShares(sum); }

// --- Stages of chunks (SummaryKind::kStages). A number that is larger for a larger score, and at
// least 1.
constexpr uint32_t OrderOf(float score) {
  // Adding 0 makes one zero of both.
  const uint32_t bits = std::bit_cast<uint32_t>(score + 0.0f);
  return (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
}

// A descent from a run of keys to the one that stands for it: of both halves the keys in their
// middles are compared, and the half of the larger score is taken, the first one if they are equal.
struct KeyRange {
  int64_t begin = 0;
  int64_t end = 0;

  constexpr int64_t Middle() const { return (begin + end) / 2; }
  constexpr KeyRange First() const { return {begin, Middle()}; }
  constexpr KeyRange Second() const { return {Middle(), end}; }
  constexpr int64_t count() const { return end - begin; }
};

// How far before the position 0 a key counts: the first or the second one of a comparison, or the
// only key of a chunk, which is a second one. `chunks_left` are those of the stage that do not lie
// before its own. With its own position that makes one angle, by which the key is turned back.
constexpr int64_t PositionsBack(KeyPositions positions, int64_t chunks_left, bool is_first) {
  switch (positions) {
    case KeyPositions::kOne:
      return 0;
    case KeyPositions::kChunks:
      return chunks_left;
    case KeyPositions::kBranches:
      return is_first ? 1 : 0;
  }
  return 0;
}

}  // namespace headway::selection

#endif  // HEADWAY_KERNELS_SELECTION_KEY_MATH_H_
