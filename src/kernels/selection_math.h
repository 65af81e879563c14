// The arithmetic of selection, shared by host and device: integers, sums of integers, and single
// rounded operations in a fixed order, so that every implementation lists the same blocks. Compiled
// without contraction of products and sums everywhere.
//
// A block's score for a query head is an estimate of the logarithm of its mean exponential. Each
// query head makes shares of its scores, a softmax over all blocks of the cache; the shares of a
// group of query heads add up to the worth of the block for their KV head. Worth is compared by a
// code of 11 bits, 32 steps to a power of two; equal codes are taken by head, then by position.
//
// A second look ranks what the first one lists, near blocks among it: by the masses of their keys
// as their sketches have them, or where there are none by their scores. A block's mass for a query
// head is a sum of exponentials of logits. Shares are those of all that the first look lists, and
// worth, codes and their order are as before.
#ifndef HEADWAY_KERNELS_SELECTION_MATH_H_
#define HEADWAY_KERNELS_SELECTION_MATH_H_

#include <bit>
#include <cstdint>

#include "kernels/sampling.h"
#include "kernels/scoring.h"

namespace headway::selection {

// --- Rounding to the nearest, ties to even, of |x| < 2^22, in float arithmetic that has one
// result everywhere.
constexpr int32_t Nearest(float x) {
  constexpr float kRounder = 0x1.8p23f;
  return static_cast<int32_t>(std::bit_cast<uint32_t>(x + kRounder) -
                              std::bit_cast<uint32_t>(kRounder));
}

// --- Rows of codes. A row's scale is its largest size over the largest code; codes are
// Nearest(x * inverse). A row of zeros, or one whose scale would be denormal, has scale 0 and codes
// 0; one that holds NaN or infinity has scale 0 too: no summary is NaN.
struct RowScale {
  float scale = 0;
  float inverse = 0;
};
constexpr RowScale ScaleOf(float largest, float levels) {
  // Not for infinity and NaN, and not where 1 / scale would be infinite.
  if (!(largest > 0x1p-100f && largest < 0x1p100f)) return {};
  return {largest / levels, levels / largest};
}
// The largest size of a row is that of the largest bits: NaN's are above infinity's, and those
// above all others', so that one that is not finite shows.
constexpr uint32_t SizeBits(float x) { return std::bit_cast<uint32_t>(x) & 0x7FFFFFFFu; }
inline constexpr float kSignedLevels = 127.0f;    // means, least and greatest keys
inline constexpr float kVarianceLevels = 255.0f;  // variances
inline constexpr float kQueryLevels = 32767.0f;   // queries, and their squares

// --- Queries: codes of q and of its squares, 16 bits each, with the factors that make scores of
// products of codes. Of neighbouring rows that are pooled, these are the sums over the rows in
// their order, times 1.0f / rows, of q and of its squares.
struct QueryFactors {
  float first = 0;   // times a block's first scale and the sum of products with its first row
  float second = 0;  // the same of the second row
};
constexpr QueryFactors MomentFactors(float q_scale, float square_scale, float scale) {
  return {q_scale * scale, square_scale * (0.5f * scale * scale)};
}

// --- Rotation of a pair of channels, each of the four products and both sums rounded.
struct Pair {
  float x = 0;
  float y = 0;
};
constexpr Pair Rotated(const Pair& pair, float cos, float sin) {
  return {pair.x * cos - pair.y * sin, pair.y * cos + pair.x * sin};
}

// --- A block's score for a query head. `first` and `second` are sums of products of codes.
constexpr float MomentScore(const QueryFactors& factors, float scale0, int32_t first, float scale1,
                            int32_t second) {
  const float mean = factors.first * (scale0 * static_cast<float>(first));
  const float spread = factors.second * (scale1 * static_cast<float>(second));
  return mean + spread;
}
// `sum` is Σ max(q·least, q·greatest) of codes; both rows have scale0.
constexpr float BoxScore(const QueryFactors& factors, float scale0, int32_t sum) {
  return factors.first * (scale0 * static_cast<float>(sum));
}
// `sum` is that of q's products with both keys; both rows have scale0. A half is exact wherever it
// is multiplied.
constexpr float PairScore(const QueryFactors& factors, float scale0, int32_t sum) {
  return 0.5f * BoxScore(factors, scale0, sum);
}

// --- Sketches: of each key and channel one of four numbers, the block's mean and a distance from
// it, which is near or far, on either side. Distances are codes of a byte for each channel, made of
// its variance's code, times one step for all: those of least squared error for numbers that are
// normally distributed (Max, 1960). No distance is 0, so that a byte is negated without a carry.
inline constexpr float kSketchNear = 0.4528f;  // standard deviations
inline constexpr float kSketchFar = 1.5104f;
inline constexpr float kSketchLevels = 127.0f;       // of the channel that varies most
inline constexpr float kVarianceRoot = 15.9687195f;  // of kVarianceLevels
struct SketchSizes {
  int32_t near = 1;
  int32_t far = 1;
};
// `root` is the square root of a variance's code.
constexpr SketchSizes SizesOf(float root) {
  constexpr float kFar = kSketchLevels / kVarianceRoot;
  constexpr float kNear = kFar * (kSketchNear / kSketchFar);
  const int32_t near = Nearest(root * kNear);
  const int32_t far = Nearest(root * kFar);
  return {near < 1 ? 1 : near, far < 1 ? 1 : far};
}
// What the largest variance of a block may be, and the step by its square root.
constexpr float LargestVariance(float scale1) { return scale1 * kVarianceLevels; }
constexpr float SketchStep(float root) { return root * (kSketchFar / kSketchLevels); }
// Signs and sizes are bits: whether a key is below the mean, and whether it is farther from it than
// half of both distances.
constexpr float SketchMean(float scale0, int32_t code) { return scale0 * static_cast<float>(code); }
constexpr float SketchMiddle(const SketchSizes& sizes, float step) {
  return static_cast<float>(sizes.near + sizes.far) * (0.5f * step);
}
constexpr bool SketchSign(float key, float mean) { return key - mean < 0.0f; }
constexpr bool SketchIsFar(float key, float mean, float middle) {
  const float off = key - mean;
  return (off < 0.0f ? -off : off) > middle;
}
// A slot's logit: `first` and `sum` are sums of products of a query's codes, with those of the
// means, and with the slot's distances.
constexpr float SketchLogit(const QueryFactors& factors, float scale0, int32_t first, float step,
                            int32_t sum) {
  const float mean = factors.first * (scale0 * static_cast<float>(first));
  const float off = factors.first * (step * static_cast<float>(sum));
  return mean + off;
}
// The mass of a block is that of its largest logit times the sum of ShareWeight(largest logit,
// logit) over its slots, of which so many bits are left out.
inline constexpr int kMassBits = 6;
constexpr uint32_t MassOf(uint64_t sum) { return static_cast<uint32_t>(sum >> kMassBits); }
// The weight of a block: `weight` is ShareWeight(largest of all candidates, the block's largest).
constexpr uint32_t MassWeight(uint32_t mass, uint32_t weight) {
  return static_cast<uint32_t>(uint64_t{mass} * weight >> 31);
}

// --- Shares. The weight of a block is 2^31 * exp(score - largest), rounded down; `sum` is that of
// all blocks, at least 2^31.
inline constexpr int kShareBits = 31;
constexpr uint32_t ShareWeight(float largest, float score) {
  const double below = static_cast<double>(largest - score);
  return static_cast<uint32_t>(ScoreWeight(below) >> (kWeightBits - kShareBits));
}
constexpr float ShareOf(uint32_t weight, uint64_t sum) {
  return static_cast<float>(weight) / static_cast<float>(sum);
}

// --- Worth: the sum of a group's shares, added from its first query head on, in [0, 64].
inline constexpr int kWorthCodes = 2048;
inline constexpr int kWorthSteps = 5;  // bits behind the exponent
inline constexpr uint32_t kLeastWorth = (127 - 57)
                                        << kWorthSteps;  // of 2^-57: 64 powers of two fit
constexpr uint32_t WorthCode(float worth) {
  const uint32_t code = std::bit_cast<uint32_t>(worth) >> (23 - kWorthSteps);
  if (code <= kLeastWorth) return 0;
  return code - kLeastWorth < kWorthCodes ? code - kLeastWorth : kWorthCodes - 1;
}

// --- Budgets that are a share of all worth. That of a code is the least worth that has it, in
// 2^-kCodeWorthBits, rounded down: its sum over all blocks is below 2^63, since the shares of a
// query head add up to 1, or to kSelectRows / kPoolRows where rows are pooled.
inline constexpr int kCodeWorthBits = 40;
constexpr uint64_t CodeWorth(uint32_t code) {
  if (code == 0) return 0;
  const uint32_t bits = code + kLeastWorth;
  const uint64_t steps = (1u << kWorthSteps) + (bits & ((1u << kWorthSteps) - 1));
  const int shift = static_cast<int>(bits >> kWorthSteps) - 127 - kWorthSteps + kCodeWorthBits;
  return shift >= 0 ? steps << shift : steps >> -shift;
}
// `top_p` of `all`, rounded down, where the share is a number of 2^-share_bits of at most 1.
constexpr uint64_t WorthWanted(uint64_t all, uint32_t top_p, int share_bits) {
  const uint64_t low = all & ((uint64_t{1} << share_bits) - 1);
  return (all >> share_bits) * top_p + (low * top_p >> share_bits);
}

}  // namespace headway::selection

#endif  // HEADWAY_KERNELS_SELECTION_MATH_H_
