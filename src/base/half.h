// 16-bit numbers and their conversion to and from float, one at a time; kernels have vector forms
// that must agree bit for bit.
#ifndef HEADWAY_BASE_HALF_H_
#define HEADWAY_BASE_HALF_H_

#include <bit>
#include <cstdint>
#include <cstring>

#include "base/types.h"

namespace headway {

// 1 sign, 8 exponent, 7 fraction bits: the upper half of a float.
struct BF16 {
  uint16_t bits = 0;
};

// IEEE 754 binary16: 1 sign, 5 exponent, 10 fraction bits.
struct F16 {
  uint16_t bits = 0;
};

constexpr float ToFloat(BF16 value) { return std::bit_cast<float>(uint32_t{value.bits} << 16); }

constexpr float ToFloat(F16 value) {
  const uint32_t sign = uint32_t{value.bits & 0x8000u} << 16;
  const uint32_t exponent = (value.bits >> 10) & 0x1Fu;
  const uint32_t fraction = value.bits & 0x3FFu;
  if (exponent == 0) {
    // Zero or subnormal: fraction * 2^-24, exact in a float.
    const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
  }
  // 31 is infinity and NaN in 5 bits, 255 in 8; otherwise the biases differ by 127 - 15.
  const uint32_t wide = exponent == 0x1F ? 0xFFu : exponent + 112;
  return std::bit_cast<float>(sign | (wide << 23) | (fraction << 13));
}

// Rounds to nearest, ties to even. A NaN keeps its sign and upper payload and becomes quiet.
constexpr BF16 ToBF16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return {static_cast<uint16_t>((bits >> 16) | 0x40u)};
  return {static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16)};
}

inline F16 ToF16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) {
    return {static_cast<uint16_t>(sign | 0x7E00u | ((magnitude >> 13) & 0x3FFu))};
  }
  // From 65520 on, half way between the largest finite number and 2^16, all round to infinity.
  if (magnitude >= 0x477FF000u) return {static_cast<uint16_t>(sign | 0x7C00u)};
  if (magnitude < 0x38800000u) {
    // Below 2^-14 the result is a multiple of 2^-24, and so is what adding 0.5 leaves in the low
    // bits of the sum: a float in [0.5, 1) has steps of 2^-24, and the addition rounds to even.
    const float sum = std::bit_cast<float>(magnitude) + 0.5f;
    return {static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(sum) - 0x3F000000u))};
  }
  const uint32_t rounded = magnitude + 0xFFFu + ((magnitude >> 13) & 1u);
  return {static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13))};
}

// Element `index` of an array of `dtype`; the array needs no alignment.
inline float LoadAsFloat(const void* data, int64_t index, DType dtype) {
  const auto* at = static_cast<const char*>(data) + index * static_cast<int64_t>(DTypeBytes(dtype));
  if (dtype == DType::kF32) {
    float value = 0.0f;
    std::memcpy(&value, at, sizeof(value));
    return value;
  }
  uint16_t bits = 0;
  std::memcpy(&bits, at, sizeof(bits));
  return dtype == DType::kBF16 ? ToFloat(BF16{bits}) : ToFloat(F16{bits});
}

inline void StoreFloat(void* data, int64_t index, DType dtype, float value) {
  auto* at = static_cast<char*>(data) + index * static_cast<int64_t>(DTypeBytes(dtype));
  if (dtype == DType::kF32) {
    std::memcpy(at, &value, sizeof(value));
    return;
  }
  const uint16_t bits = dtype == DType::kBF16 ? ToBF16(value).bits : ToF16(value).bits;
  std::memcpy(at, &bits, sizeof(bits));
}

}  // namespace headway

#endif  // HEADWAY_BASE_HALF_H_
