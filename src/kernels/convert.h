// Scalar conversions between f32 and the 16-bit formats, bit-exact with the instructions that the
// fast kernels use: rounding to nearest, ties to even; subnormals kept; NaN stays NaN.
#ifndef HEADWAY_KERNELS_CONVERT_H_
#define HEADWAY_KERNELS_CONVERT_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/types.h"

namespace headway {

inline float Bf16ToF32(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

inline uint16_t F32ToBf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) {
    return static_cast<uint16_t>((bits >> 16) | 0x40u);  // quiet, so that it cannot become infinity
  }
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

inline float F16ToF32(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t magnitude = bits & 0x7fffu;
  if (magnitude >= 0x7c00u) {  // infinity, NaN
    return std::bit_cast<float>(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13));
  }
  if (magnitude < 0x400u) {  // zero, subnormal: magnitude * 2^-24, exact in f32
    const float value = static_cast<float>(magnitude) * 0x1p-24f;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(value));
  }
  return std::bit_cast<float>(sign | ((magnitude << 13) + ((127u - 15u) << 23)));
}

inline uint16_t F32ToF16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {
    return static_cast<uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
  }
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // >= 65520: infinity
  if (magnitude < 0x38800000u) {  // below 2^-14: the sum's last bit is worth 2^-24
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u));
  }
  const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return static_cast<uint16_t>(sign | ((rounded - ((127u - 15u) << 23)) >> 13));
}

// Element `index` of an array of `dtype` that need not be aligned.
inline float LoadElement(const std::byte* data, DType dtype, int64_t index) {
  const std::byte* from = data + index * static_cast<int64_t>(DTypeBytes(dtype));
  if (dtype == DType::kF32) {
    float value;
    std::memcpy(&value, from, sizeof(value));
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, from, sizeof(bits));
  return dtype == DType::kBF16 ? Bf16ToF32(bits) : F16ToF32(bits);
}

inline void StoreElement(std::byte* data, DType dtype, int64_t index, float value) {
  std::byte* to = data + index * static_cast<int64_t>(DTypeBytes(dtype));
  if (dtype == DType::kF32) {
    std::memcpy(to, &value, sizeof(value));
    return;
  }
  const uint16_t bits = dtype == DType::kBF16 ? F32ToBf16(value) : F32ToF16(value);
  std::memcpy(to, &bits, sizeof(bits));
}

}  // namespace headway

#endif  // HEADWAY_KERNELS_CONVERT_H_
