// What an encoding makes of a group's numbers, one at a time: shared by host and device, so that
// all devices write the same codes. Compiled without contraction of products and sums everywhere.
#ifndef HEADWAY_KERNELS_PAGE_CODEC_MATH_H_
#define HEADWAY_KERNELS_PAGE_CODEC_MATH_H_

#include <bit>
#include <cfloat>
#include <cstdint>
#include <limits>

#include "base/fp8.h"
#include "base/half.h"
#include "base/types.h"

namespace headway::codec {

// What a group's numbers span. `poison` is NaN where one is not finite, and 0 otherwise.
struct Span {
  float min = std::numeric_limits<float>::infinity();
  float max = -std::numeric_limits<float>::infinity();
  float poison = 0;

  constexpr void Add(float x) {
    min = x < min ? x : min;
    max = max < x ? x : max;
    poison += x * 0.0f;
  }
  // As if the other's numbers had been added here.
  constexpr void Join(const Span& other) {
    min = other.min < min ? other.min : min;
    max = max < other.max ? other.max : max;
    poison += other.poison;
  }
};

// The greatest bf16 that is not above x, and the least that is not below.
constexpr float BF16Down(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t away = x < 0 && (bits & 0xFFFFu) != 0 ? 0x10000u : 0u;
  return std::bit_cast<float>((bits & 0xFFFF0000u) + away);
}
constexpr float BF16Up(float x) { return -BF16Down(-x); }

// A group's parameters, both numbers of bf16, and 1 / scale.
struct Params {
  float scale = 0;
  float zero = 0;
  float inverse = 0;
};

constexpr float Levels(Encoding encoding) { return encoding == Encoding::kInt4 ? 15.0f : 255.0f; }

constexpr Params ParamsOf(const Span& span, Encoding encoding) {
  if (span.poison != 0.0f) return {std::numeric_limits<float>::quiet_NaN(), 0, 0};
  Params params;
  float step = 0;  // that codes must have at least
  // The sum with 0 makes +0 of -0: which of them is the least depends on the order.
  if (encoding == Encoding::kFp8E4M3) {
    params.zero = ToFloat(ToBF16(span.min * 0.5f + span.max * 0.5f)) + 0.0f;
    const float above = span.max - params.zero;
    const float below = params.zero - span.min;
    step = (above < below ? below : above) / kE4M3Max;
  } else {
    params.zero = BF16Down(span.min) + 0.0f;
    step = span.max / Levels(encoding) - params.zero / Levels(encoding);
  }
  // Kernels take numbers below FLT_MIN as 0.
  if (step < FLT_MIN) return params;
  params.scale = BF16Up(step);
  params.inverse = 1.0f / params.scale;
  return params;
}

// The code of x in a group with this zero and 1 / scale.
constexpr uint8_t CodeOf(float x, float zero, float inverse, Encoding encoding) {
  const float exact = (x - zero) * inverse;
  if (encoding == Encoding::kFp8E4M3) return FloatToE4M3(exact);
  // NaN, which the scale tells of already, becomes 0.
  const float levels = Levels(encoding);
  const float above = exact > 0.0f ? exact : 0.0f;
  return static_cast<uint8_t>(static_cast<int32_t>((above < levels ? above : levels) + 0.5f));
}

}  // namespace headway::codec

#endif  // HEADWAY_KERNELS_PAGE_CODEC_MATH_H_
