// The arithmetic of scoring, which every implementation of Kernels::Score shares: weights are
// integers, so that sums come out the same in any order, on every device.
#ifndef HEADWAY_KERNELS_SCORING_H_
#define HEADWAY_KERNELS_SCORING_H_

#include <bit>
#include <cstdint>

#include "headway/status.h"
#include "kernels/logits.h"
#include "kernels/sampling.h"

namespace headway {

// Weights are computed at multiples of 2^-26. Added to 2^26, a double keeps so many bits behind the
// point, and its low ones are the multiple, rounded to the nearest.
inline constexpr double kScoreRounder = 0x1p26;
// exp(-kScoreEnd) is less than half of 1 / kWeightOne.
inline constexpr double kScoreEnd = 28.5;
// log2(e) * 2^31, rounded.
inline constexpr uint64_t kScoreLog2E = 3098164009;
// Bits behind the point of a multiple's product with it.
inline constexpr int kScoreProductBits = 26 + 31;

// kWeightOne * exp(-below), rounded down, within 1.5e-8 of its size but for that: half a step of
// the exponent and the power's own error. `below` >= 0 is the largest logit minus the token's, as
// doubles, infinity included.
constexpr uint64_t ScoreWeight(double below) {
  const double rounded = (below < kScoreEnd ? below : kScoreEnd) + kScoreRounder;
  const uint64_t steps = std::bit_cast<uint64_t>(rounded) & 0xFFFFFFFFu;
  const uint64_t exponent = steps * kScoreLog2E;
  return PowerWeight(static_cast<uint32_t>(exponent >> kScoreProductBits),
                     exponent >> (kScoreProductBits - 32) & 0xFFFFFFFFu);
}

// -ln p of the target: largest - target + ln(sum), within 1.5e-8 + tokens * 2^-40 nats. kCorrupt
// where that is not finite.
Result<double> NegativeLogLikelihood(const Scored& scored);

}  // namespace headway

#endif  // HEADWAY_KERNELS_SCORING_H_
