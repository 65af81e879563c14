#include "kernels/page_codec.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "base/fp8.h"
#include "base/half.h"
#include "base/random.h"

namespace headway {
namespace {

constexpr Encoding kEncodings[] = {Encoding::kInt8, Encoding::kFp8E4M3, Encoding::kInt4};

TEST(Fp8, EveryNumberComesBack) {
  for (int code = 0; code < 256; ++code) {
    if ((code & 0x7F) == 0x7F) continue;  // NaN
    const float value = E4M3ToFloat(static_cast<uint8_t>(code));
    EXPECT_EQ(code, FloatToE4M3(value)) << value;
  }
  EXPECT_EQ(kE4M3Max, E4M3ToFloat(0x7E));
  EXPECT_EQ(0x1p-9f, E4M3ToFloat(0x01));
}

TEST(Fp8, RoundsToTheNearestAndTiesToEven) {
  for (int code = 0; code + 1 < 0x7F; ++code) {
    const float low = E4M3ToFloat(static_cast<uint8_t>(code));
    const float high = E4M3ToFloat(static_cast<uint8_t>(code + 1));
    const float middle = (low + high) / 2;
    const int even = code + code % 2;
    for (float sign : {1.0f, -1.0f}) {
      const int bit = sign < 0 ? 0x80 : 0;
      EXPECT_EQ(bit | even, FloatToE4M3(sign * middle));
      EXPECT_EQ(bit | code, FloatToE4M3(sign * std::nextafter(middle, low)));
      EXPECT_EQ(bit | (code + 1), FloatToE4M3(sign * std::nextafter(middle, high)));
    }
  }
  EXPECT_EQ(0x7E, FloatToE4M3(1e30f));
  EXPECT_EQ(0xFE, FloatToE4M3(-std::numeric_limits<float>::infinity()));
  EXPECT_EQ(0, FloatToE4M3(std::numeric_limits<float>::quiet_NaN()));
}

// A page of K and V in memory, and what it decodes to.
struct Page {
  explicit Page(const PageFormat& page_format)
      : format(page_format),
        elements(static_cast<size_t>(format.page_slots * format.head_dim)),
        k(format.bytes()),
        v(format.bytes()),
        k_codes(format.closed_bytes() + 1, std::byte{0xA5}),
        v_codes(format.closed_bytes() + 1, std::byte{0xA5}),
        params(static_cast<size_t>(ParamBytes(format)) + 1, std::byte{0xA5}) {}

  void Encode() {
    EncodePage(format, k.data(), v.data(), k_codes.data(), v_codes.data(), params.data());
    // Nothing behind is touched.
    EXPECT_EQ(std::byte{0xA5}, k_codes.back());
    EXPECT_EQ(std::byte{0xA5}, v_codes.back());
    EXPECT_EQ(std::byte{0xA5}, params.back());
  }
  std::vector<double> Decoded(bool keys) const {
    std::vector<double> all(elements);
    for (int64_t slot = 0; slot < format.page_slots; ++slot) {
      double* row = all.data() + slot * format.head_dim;
      if (keys) {
        DecodeKeyRow(format, k_codes.data(), params.data(), slot, row);
      } else {
        DecodeValueRow(format, v_codes.data(), params.data(), slot, row);
      }
    }
    return all;
  }
  double Original(bool keys, size_t i) const {
    return LoadAsFloat(keys ? k.data() : v.data(), static_cast<int64_t>(i), format.dtype);
  }
  // Elements of one group have the same.
  int64_t GroupOf(bool keys, size_t i) const {
    const auto channel = static_cast<int64_t>(i) % format.head_dim;
    const auto slot = static_cast<int64_t>(i) / format.head_dim;
    return keys ? channel : slot * ValueGroups(format) + channel / kValueGroup;
  }

  PageFormat format;
  size_t elements;
  std::vector<std::byte> k, v, k_codes, v_codes, params;
};

// How far a number may come back from where it was. With bf16's steps of 2^-7 the zero lies up to
// 2^-7 |min| below the least number and the scale is up to 1 + 2^-7 too large; a code is off by
// half a step, or by 2^-4 of itself and, where subnormal, 2^-10. f32 arithmetic adds a few units
// of 2^-24 of what it works on, and what is below FLT_MIN times a code counts as 0.
double Bound(Encoding encoding, double min, double max, double x) {
  const double reach = std::max(std::abs(min), std::abs(max));
  const double rounding = 16 * 0x1p-24 * (reach + max - min) + 1e-35;
  if (encoding == Encoding::kFp8E4M3) {
    const double off = 0x1p-8 * std::abs(min / 2 + max / 2);  // of the middle
    const double scale = (1 + 0x1p-7) * ((max - min) / 2 + off) / kE4M3Max;
    return 0x1p-4 * (std::abs(x - min / 2 - max / 2) + off) + 0x1p-10 * scale + rounding;
  }
  const double levels = encoding == Encoding::kInt4 ? 15 : 255;
  return (1 + 0x1p-7) * (max - min + 0x1p-7 * std::abs(min)) / levels / 2 + rounding;
}

void ExpectWithinBounds(const Page& page, const std::string& what) {
  for (const bool keys : {true, false}) {
    const std::vector<double> decoded = page.Decoded(keys);
    const int64_t groups = page.GroupOf(keys, page.elements - 1) + 1;
    std::vector<double> min(static_cast<size_t>(groups), 1e300);
    std::vector<double> max(static_cast<size_t>(groups), -1e300);
    for (size_t i = 0; i < page.elements; ++i) {
      const auto group = static_cast<size_t>(page.GroupOf(keys, i));
      min[group] = std::min(min[group], page.Original(keys, i));
      max[group] = std::max(max[group], page.Original(keys, i));
    }
    for (size_t i = 0; i < page.elements; ++i) {
      const auto group = static_cast<size_t>(page.GroupOf(keys, i));
      const double x = page.Original(keys, i);
      ASSERT_NEAR(x, decoded[i], Bound(page.format.encoding, min[group], max[group], x))
          << what << (keys ? " key " : " value ") << i;
    }
  }
}

// Fills K and V from `next(slot, channel)` and checks that they come back.
template <typename Next>
void CheckPage(const PageFormat& format, const std::string& what, Next&& next) {
  Page page(format);
  for (size_t i = 0; i < page.elements; ++i) {
    const auto at = static_cast<int64_t>(i);
    StoreFloat(page.k.data(), at, format.dtype, next(at / format.head_dim, at % format.head_dim));
    StoreFloat(page.v.data(), at, format.dtype, next(at / format.head_dim, at % format.head_dim));
  }
  page.Encode();
  ExpectWithinBounds(page, what + " " + EncodingName(format.encoding) + " " +
                               DTypeName(format.dtype) + " dim " + std::to_string(format.head_dim));
}

TEST(PageCodec, NumbersComeBackWithinTheBound) {
  for (const Encoding encoding : kEncodings) {
    for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
      for (const int head_dim : {2, 20, 64, 80, 128, 130}) {
        for (const int slots : {4, 64}) {
          const PageFormat format = {dtype, slots, head_dim, encoding};
          Random random(static_cast<uint64_t>(head_dim + slots));
          CheckPage(format, "normal", [&](int64_t, int64_t) { return random.Normal(); });
          CheckPage(format, "zeros", [&](int64_t, int64_t) { return 0.0f; });
          CheckPage(format, "constant", [&](int64_t, int64_t) { return -3.7f; });
          CheckPage(format, "outlier", [&](int64_t, int64_t channel) {
            return random.Normal() + (channel == 1 ? 300.0f : 0.0f);
          });
          CheckPage(format, "offset", [&](int64_t, int64_t) { return 50 + random.Normal(); });
          CheckPage(format, "small", [&](int64_t, int64_t) { return 1e-30f * random.Normal(); });
          if (dtype == DType::kF16) continue;
          CheckPage(format, "extreme", [&](int64_t, int64_t) {
            return 1e38f * (2.0f * static_cast<float>(random.Below(1000)) / 999.0f - 1.0f);
          });
        }
      }
    }
  }
}

TEST(PageCodec, SpoilsOnlyTheGroupOfWhatIsNotFinite) {
  for (const Encoding encoding : kEncodings) {
    for (const float bad :
         {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
      Page page({DType::kBF16, 64, 80, encoding});
      StoreFloat(page.k.data(), 5 * 80 + 7, DType::kBF16, bad);
      StoreFloat(page.v.data(), 5 * 80 + 70, DType::kBF16, bad);
      page.Encode();
      for (const bool keys : {true, false}) {
        const int64_t spoiled = page.GroupOf(keys, keys ? 5 * 80 + 7 : 5 * 80 + 70);
        const std::vector<double> decoded = page.Decoded(keys);
        for (size_t i = 0; i < page.elements; ++i) {
          EXPECT_EQ(page.GroupOf(keys, i) == spoiled, std::isnan(decoded[i])) << i;
        }
      }
    }
  }
}

TEST(PageCodec, SizesAreWhatTheDesignCountsWith) {
  const PageFormat bf16 = {DType::kBF16, 64, 128};
  const auto ratio = [&](Encoding encoding) {
    const PageFormat format = {DType::kBF16, 64, 128, encoding};
    return 2.0 * static_cast<double>(bf16.bytes()) /
           static_cast<double>(2 * static_cast<int64_t>(format.closed_bytes()) +
                               ParamBytes(format));
  };
  EXPECT_GE(ratio(Encoding::kInt8), 1.85);
  EXPECT_GE(ratio(Encoding::kFp8E4M3), 1.85);
  EXPECT_GE(ratio(Encoding::kInt4), 3.3);
}

}  // namespace
}  // namespace headway
