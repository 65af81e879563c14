// selection::ShareWeight in integers of 32 bits and one addition of floats: many GPUs are slow at
// doubles, and all of them at products of 64 bits. The results are the same for all floats.
#ifndef HEADWAY_KERNELS_CUDA_SELECTION_WEIGHT_H_
#define HEADWAY_KERNELS_CUDA_SELECTION_WEIGHT_H_

#include <bit>
#include <cstdint>

#include "kernels/sampling.h"
#include "kernels/scoring.h"
#include "kernels/selection_math.h"

namespace headway::cuda {

// The high half of a product.
constexpr uint32_t HighProduct(uint32_t a, uint32_t b) {
  return static_cast<uint32_t>(uint64_t{a} * b >> 32);
}

// Multiples of 2^-26 nearest to `below`, ties to even, as ScoreWeight has them: a product with a
// power of two is exact, and from 2^23 on floats are whole numbers.
constexpr uint32_t ScoreSteps(float below) {
  constexpr float kEnd = static_cast<float>(kScoreEnd);
  static_assert(double{kEnd} == kScoreEnd);
  const float steps = (below < kEnd ? below : kEnd) * 0x1p26f;
  const uint32_t rounded =
      std::bit_cast<uint32_t>(steps + 0x1p23f) - std::bit_cast<uint32_t>(0x1p23f);
  return steps < 0x1p23f ? rounded : static_cast<uint32_t>(steps);
}

constexpr uint32_t ShareWeightOf(float largest, float score) {
  const uint64_t exponent = uint64_t{ScoreSteps(largest - score)} * kScoreLog2E;
  const auto whole = static_cast<uint32_t>(exponent >> kScoreProductBits);
  const auto y = static_cast<uint32_t>(exponent >> (kScoreProductBits - 32));
  // PowerWeight's polynomial: no step of it leaves [0, 2^32).
  uint32_t p = kPower6;
  p = kPower5 - HighProduct(p, y);
  p = kPower4 - HighProduct(p, y);
  p = kPower3 - HighProduct(p, y);
  p = kPower2 - HighProduct(p, y);
  p = kPower1 - HighProduct(p, y);
  // Half of 2^32 - the product, rounded down. 2^31 of it is a weight of one.
  static_assert(selection::kShareBits == 31);
  const uint32_t half = 0x80000000u - ((HighProduct(p, y) + 1) >> 1);
  return whole < 32 ? half >> whole : 0;
}

}  // namespace headway::cuda

#endif  // HEADWAY_KERNELS_CUDA_SELECTION_WEIGHT_H_
