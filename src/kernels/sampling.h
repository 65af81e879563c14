// The arithmetic of sampling, which every implementation of Kernels::Sample shares: probabilities
// are integers, so that sums come out the same in any order, and one draw means one token on every
// device.
#ifndef HEADWAY_KERNELS_SAMPLING_H_
#define HEADWAY_KERNELS_SAMPLING_H_

#include <algorithm>
#include <cstdint>
#include <limits>

namespace headway {

// The weight of the likeliest token. Sums over 2^24 tokens fit 64 bits.
inline constexpr int kWeightBits = 40;
inline constexpr uint64_t kWeightOne = uint64_t{1} << kWeightBits;

// Steps of the exponent in which weights are computed: 2^-26 of a power of two.
inline constexpr int kExponentBits = 26;

// SampleWeight's `scale` at a temperature > 0: finite, so that 0 times it is 0.
inline float WeightScale(float temperature) {
  constexpr double kLog2E = 1.4426950408889634;
  const double scale = kLog2E * (1 << kExponentBits) / static_cast<double>(temperature);
  return static_cast<float>(std::min(scale, double{std::numeric_limits<float>::max()}));
}

// 2^-y is 1 - y (kPower1 - y (kPower2 - ... y kPower6)) for y in [0, 1), all in 2^-32: a polynomial
// through the zeros of the Chebyshev polynomial of degree 7.
inline constexpr uint64_t kPower1 = 0xB17215B2;
inline constexpr uint64_t kPower2 = 0x3D7F577E;
inline constexpr uint64_t kPower3 = 0xE34A75B;
inline constexpr uint64_t kPower4 = 0x273D361;
inline constexpr uint64_t kPower5 = 0x539803;
inline constexpr uint64_t kPower6 = 0x72A3C;

// kWeightOne * 2^-(whole + y / 2^32) for y below 2^32, rounded down, within 6e-9 of its size but
// for that; 0 for a `whole` of more than kWeightBits.
constexpr uint64_t PowerWeight(uint32_t whole, uint64_t y) {
  uint64_t p = kPower6;
  p = kPower5 - (p * y >> 32);
  p = kPower4 - (p * y >> 32);
  p = kPower3 - (p * y >> 32);
  p = kPower2 - (p * y >> 32);
  p = kPower1 - (p * y >> 32);
  const uint64_t power = (uint64_t{1} << 32) - (p * y >> 32);
  return power << (kWeightBits - 32) >> whole;
}

// kWeightOne * exp(-below / temperature), rounded down, within 6e-9 of its size but for what
// rounding and the steps of the exponent do; 0 for less than one. `below` >= 0 is the largest logit
// minus the token's.
constexpr uint64_t SampleWeight(float below, float scale) {
  const float steps = below * scale;
  constexpr float kEnd = static_cast<float>(kWeightBits + 1) * (1 << kExponentBits);
  if (!(steps < kEnd)) return 0;
  const auto exponent = static_cast<uint32_t>(steps);
  return PowerWeight(exponent >> kExponentBits,
                     uint64_t{exponent & ((1u << kExponentBits) - 1)} << (32 - kExponentBits));
}

// Tokens of less weight are dropped by min_p.
constexpr uint64_t LeastWeight(float min_p) {
  return static_cast<uint64_t>(min_p * static_cast<float>(kWeightOne));
}

// The weight that top_p keeps at least, of `total` > 0 in all: in [1, total].
constexpr uint64_t WantedWeight(float top_p, uint64_t total) {
  const double wanted = static_cast<double>(top_p) * static_cast<double>(total);
  const auto whole = static_cast<uint64_t>(wanted);
  const uint64_t up = static_cast<double>(whole) < wanted ? whole + 1 : whole;
  return up < 1 ? 1 : up > total ? total : up;
}

}  // namespace headway

#endif  // HEADWAY_KERNELS_SAMPLING_H_
