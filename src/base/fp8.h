// The 8-bit float E4M3 without infinities (Micikevicius et al., "FP8 formats for deep learning",
// 2022): 1 sign, 4 exponent (bias 7), 3 fraction bits; 0x7F and 0xFF are NaN, 448 is the largest.
#ifndef HEADWAY_BASE_FP8_H_
#define HEADWAY_BASE_FP8_H_

#include <bit>
#include <cstdint>

#include "base/half.h"

namespace headway {

inline constexpr float kE4M3Max = 448.0f;

// As f16 its bits are those shifted to the left, the sign moved up: 2^-8 of its value, the
// difference of the exponents' biases, subnormal numbers included. For codes that are not NaN.
inline constexpr float kE4M3OverF16 = 256.0f;

constexpr float E4M3ToFloat(uint8_t code) {
  const F16 half = {static_cast<uint16_t>((code & 0x80) << 8 | (code & 0x7F) << 7)};
  return ToFloat(half) * kE4M3OverF16;
}

// Rounds to nearest, ties to even; what is beyond the largest number becomes it, NaN becomes 0.
constexpr uint8_t FloatToE4M3(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 24) & 0x80u;
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return 0;
  // 448, all that rounds to it and all beyond.
  if (magnitude >= 0x43E00000u) return static_cast<uint8_t>(sign | 0x7Eu);
  if (magnitude < 0x3C800000u) {
    // Below 2^-6 the result is a multiple of 2^-9: so is a float in [2^14, 2^15).
    const float sum = std::bit_cast<float>(magnitude) + 16384.0f;
    return static_cast<uint8_t>(sign | (std::bit_cast<uint32_t>(sum) - 0x46800000u));
  }
  const uint32_t rounded = magnitude + 0x7FFFFu + ((magnitude >> 20) & 1u);
  return static_cast<uint8_t>(sign | ((rounded - 0x3C000000u) >> 20));
}

}  // namespace headway

#endif  // HEADWAY_BASE_FP8_H_
