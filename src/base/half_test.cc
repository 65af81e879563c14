#include "base/half.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "base/random.h"

namespace headway {
namespace {

constexpr uint64_t kSeed = 20260101;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// The format's number nearest to `value`, ties to even, by arithmetic in double: numbers between
// 2^e and 2^(e+1) are multiples of 2^(e-fraction_bits), and below 2^min_exponent of the step there.
double Nearest(double value, int fraction_bits, int min_exponent, double largest) {
  if (value == 0.0 || !std::isfinite(value)) return value;
  const int exponent = std::max(std::ilogb(value), min_exponent);
  const double step = std::ldexp(1.0, exponent - fraction_bits);
  const double rounded = std::nearbyint(value / step) * step;
  return std::abs(rounded) > largest ? std::copysign(HUGE_VAL, value) : rounded;
}

double NearestBF16(double value) { return Nearest(value, 7, -126, 0x1.FEp127); }
double NearestF16(double value) { return Nearest(value, 10, -14, 65504.0); }

uint32_t Bits(float value) { return std::bit_cast<uint32_t>(value); }

void ExpectBothAgree(float value) {
  EXPECT_EQ(Bits(ToFloat(ToBF16(value))), Bits(static_cast<float>(NearestBF16(value)))) << value;
  EXPECT_EQ(Bits(ToFloat(ToF16(value))), Bits(static_cast<float>(NearestF16(value)))) << value;
}

TEST(Half, KnownValues) {
  EXPECT_EQ(ToBF16(1.0f).bits, 0x3F80);
  EXPECT_EQ(ToBF16(-2.5f).bits, 0xC020);
  EXPECT_EQ(ToF16(1.0f).bits, 0x3C00);
  EXPECT_EQ(ToF16(-2.5f).bits, 0xC100);
  EXPECT_EQ(ToF16(65504.0f).bits, 0x7BFF);
  EXPECT_EQ(ToF16(65519.996f).bits, 0x7BFF);
  EXPECT_EQ(ToF16(65520.0f).bits, 0x7C00);
  EXPECT_EQ(ToF16(0x1p-24f).bits, 0x0001);
  EXPECT_EQ(ToF16(0x1p-25f).bits, 0x0000);  // a tie, to even
  EXPECT_EQ(ToF16(0x1.8p-24f).bits, 0x0002);
  EXPECT_EQ(ToF16(-0.0f).bits, 0x8000);
  EXPECT_EQ(ToFloat(F16{0x03FF}), 1023 * 0x1p-24f);
  EXPECT_EQ(ToFloat(F16{0xFC00}), -kInfinity);
}

TEST(Half, EveryPatternRoundTrips) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto pattern = static_cast<uint16_t>(bits);
    const float bf16 = ToFloat(BF16{pattern});
    const bool bf16_nan = (bits & 0x7FFF) > 0x7F80;
    ASSERT_EQ(std::isnan(bf16), bf16_nan) << bits;
    // A signalling NaN comes back quiet, all else as it was.
    ASSERT_EQ(ToBF16(bf16).bits, bf16_nan ? bits | 0x40 : bits) << bits;

    const float f16 = ToFloat(F16{pattern});
    const bool f16_nan = (bits & 0x7FFF) > 0x7C00;
    ASSERT_EQ(std::isnan(f16), f16_nan) << bits;
    ASSERT_EQ(ToF16(f16).bits, f16_nan ? bits | 0x200 : bits) << bits;
  }
}

TEST(Half, EveryTieAndItsNeighboursRoundAsInDouble) {
  for (uint32_t bits = 0; bits < 0x7F80; ++bits) {
    const float low = ToFloat(BF16{static_cast<uint16_t>(bits)});
    const float tie = std::bit_cast<float>((bits << 16) | 0x8000u);
    for (const float value :
         {low, tie, std::nextafter(tie, 0.0f), std::nextafter(tie, kInfinity)}) {
      ExpectBothAgree(value);
      ExpectBothAgree(-value);
    }
  }
  for (uint32_t bits = 0; bits < 0x7C00; ++bits) {
    const float low = ToFloat(F16{static_cast<uint16_t>(bits)});
    const float high = bits == 0x7BFF ? 65536.0f : ToFloat(F16{static_cast<uint16_t>(bits + 1)});
    const float tie = (low + high) / 2;
    for (const float value : {tie, std::nextafter(tie, 0.0f), std::nextafter(tie, kInfinity)}) {
      ExpectBothAgree(value);
      ExpectBothAgree(-value);
    }
  }
}

TEST(Half, RandomFloatsRoundAsInDouble) {
  SCOPED_TRACE(kSeed);
  Random random(kSeed);
  for (int i = 0; i < 500'000; ++i) {
    const float any = std::bit_cast<float>(static_cast<uint32_t>(random.Next()));
    if (!std::isnan(any)) ExpectBothAgree(any);
    ExpectBothAgree(std::ldexp(random.Normal(), static_cast<int>(random.Below(50)) - 32));
  }
}

TEST(Half, NanStaysNan) {
  for (const uint32_t bits : {0x7F800001u, 0x7FC00000u, 0xFFFFFFFFu, 0xFF800001u, 0x7F80FFFFu}) {
    const float nan = std::bit_cast<float>(bits);
    EXPECT_TRUE(std::isnan(ToFloat(ToBF16(nan)))) << bits;
    EXPECT_TRUE(std::isnan(ToFloat(ToF16(nan)))) << bits;
    EXPECT_EQ(ToBF16(nan).bits >> 15, bits >> 31);
    EXPECT_EQ(ToF16(nan).bits >> 15, bits >> 31);
  }
}

TEST(Half, LoadsAndStoresByType) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    const size_t width = DTypeBytes(dtype);
    // One byte in: no alignment is needed, and the neighbours stay as they were.
    std::vector<unsigned char> buffer(1 + 5 * width, 0xA5);
    unsigned char* array = buffer.data() + 1;
    for (int i = 1; i < 4; ++i) StoreFloat(array, i, dtype, 1.5f * static_cast<float>(i));
    for (int i = 1; i < 4; ++i) {
      EXPECT_EQ(LoadAsFloat(array, i, dtype), 1.5f * static_cast<float>(i)) << DTypeName(dtype);
    }
    for (size_t i = 0; i < width; ++i) {
      EXPECT_EQ(array[i], 0xA5);
      EXPECT_EQ(array[4 * width + i], 0xA5);
    }
  }
}

}  // namespace
}  // namespace headway
