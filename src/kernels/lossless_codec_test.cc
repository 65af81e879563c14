// The lossless encoding: what comes back, and that codes are those of the format.
#include "kernels/lossless_codec.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "base/half.h"
#include "base/random.h"
#include "kernels/page_codec.h"

namespace headway::lossless {
namespace {

constexpr std::byte kGuard{0xA5};

PageFormat Format(int page_slots, int head_dim) {
  return {DType::kBF16, page_slots, head_dim, Encoding::kLossless};
}

// K or V of a page, with a guard behind its codes and parameters.
struct Half {
  explicit Half(const PageFormat& page_format)
      : format(page_format),
        bits(static_cast<size_t>(format.page_slots * format.head_dim)),
        codes(format.closed_bytes() + 1, kGuard),
        params(static_cast<size_t>(KeyParamBytes(format)) + 1, kGuard) {}

  bool Encode() {
    const bool fits = EncodeHalf(format, reinterpret_cast<const std::byte*>(bits.data()),
                                 codes.data(), params.data());
    EXPECT_EQ(kGuard, codes.back());
    EXPECT_EQ(kGuard, params.back());
    return fits;
  }
  std::vector<uint16_t> Decoded() const {
    std::vector<uint16_t> all(bits.size() + 1, 0xA5A5);
    for (int64_t slot = 0; slot < format.page_slots; ++slot) {
      DecodeRow(format, codes.data(), params.data(), slot, all.data() + slot * format.head_dim);
    }
    EXPECT_EQ(0xA5A5, all.back());
    all.pop_back();
    return all;
  }
  int64_t entries() const { return EscapeEntries(format.page_slots, format.head_dim); }
  uint16_t Position(int64_t entry) const {
    uint16_t position = 0;
    std::memcpy(&position, params.data() + 2 * entry, sizeof(position));
    return position;
  }
  int Exponent(int64_t entry) const { return static_cast<int>(params[At(2 * entries() + entry)]); }
  int Floor(int64_t slot) const { return static_cast<int>(params[At(3 * entries() + slot)]); }
  // Numbers whose exponent, without its last bit, is more than 7 below the largest of their row.
  int64_t Escapes() const {
    int64_t count = 0;
    for (size_t begin = 0; begin < bits.size(); begin += At(format.head_dim)) {
      int largest = 0;
      for (size_t i = begin; i < begin + At(format.head_dim); ++i) {
        largest = std::max(largest, bits[i] >> 8 & 0x7F);
      }
      for (size_t i = begin; i < begin + At(format.head_dim); ++i) {
        count += largest - (bits[i] >> 8 & 0x7F) > 7 ? 1 : 0;
      }
    }
    return count;
  }
  static size_t At(int64_t index) { return static_cast<size_t>(index); }

  PageFormat format;
  std::vector<uint16_t> bits;
  std::vector<std::byte> codes, params;
};

uint16_t Bits(int sign, int exponent, int mantissa) {
  return static_cast<uint16_t>(sign << 15 | exponent << 7 | mantissa);
}

void ExpectRoundTrip(Half& half, const std::string& what) {
  const bool fits = half.Encode();
  EXPECT_EQ(fits, half.Escapes() <= half.entries()) << what;
  const std::vector<uint16_t> want =
      fits ? half.bits : std::vector<uint16_t>(half.bits.size(), kUnfitBits);
  ASSERT_EQ(half.Decoded(), want) << what;
}

TEST(LosslessCodec, EveryPatternComesBack) {
  // Rows of one exponent each, with all signs and mantissas.
  Half half(Format(16, 256));
  for (int first = 0; first < 256; first += 16) {
    for (size_t i = 0; i < half.bits.size(); ++i) {
      half.bits[i] = Bits(static_cast<int>(i) >> 7 & 1, first + static_cast<int>(i / 256),
                          static_cast<int>(i) & 127);
    }
    ASSERT_TRUE(half.Encode());
    ASSERT_EQ(half.Decoded(), half.bits);
  }
  // And each as an escape, where it is one: the rest of its row is infinite.
  Half lone(Format(4, 64));
  for (int bits = 0; bits < 65536; ++bits) {
    std::fill(lone.bits.begin(), lone.bits.end(), Bits(0, 255, 0));
    lone.bits[static_cast<size_t>(bits) % lone.bits.size()] = static_cast<uint16_t>(bits);
    ASSERT_TRUE(lone.Encode());
    ASSERT_EQ(lone.Decoded(), lone.bits);
    ASSERT_EQ(lone.Position(0) != kNoEscape, (bits >> 7 & 0xFF) < 240);
  }
}

TEST(LosslessCodec, BytesAreThoseOfTheFormat) {
  Half half(Format(2, 8));
  half.bits = {Bits(1, 130, 5), Bits(0, 128, 127), Bits(0, 0, 0),   Bits(1, 117, 1),
               Bits(0, 130, 0), Bits(1, 131, 0),   Bits(1, 116, 2), Bits(1, 129, 3),
               Bits(0, 14, 0),  Bits(1, 15, 0),    Bits(0, 3, 9),   Bits(0, 1, 2),
               Bits(1, 0, 1),   Bits(0, 0, 0),     Bits(1, 5, 127), Bits(0, 8, 4)};
  ASSERT_TRUE(half.Encode());
  const auto bytes = [](std::vector<int> values) {
    std::vector<std::byte> all;
    for (const int value : values) all.push_back(static_cast<std::byte>(value));
    all.push_back(kGuard);
    return all;
  };
  // The largest exponents are 131 and 15: tops are 0 at 116 and at 0. Low bytes, then a word.
  EXPECT_EQ(half.codes, bytes({0x05,
                               0x7F,
                               0x00,
                               0x81,
                               0x00,
                               0x80,
                               0x02,
                               0x83,  //
                               0x87 | 0x70 | 0x08,
                               0x06 | 0x70,
                               0x00 | 0x00 | 0x08,
                               0x80 | 0x60 | 0x08,
                               0x00,
                               0x80,
                               0x89,
                               0x82,
                               0x01,
                               0x00,
                               0xFF,
                               0x04,  //
                               0x07,
                               0x87 | 0x08,
                               0x01 | 0x20,
                               0x00 | 0x40 | 0x08}));
  ASSERT_EQ(half.entries(), 8);
  std::vector<int> params(32, 0);
  std::fill(params.begin(), params.begin() + 16, 0xFF);
  params[0] = 2;  // position 2, exponent 0
  params[1] = 0;
  params[24] = 58;
  EXPECT_EQ(half.params, bytes(params));
}

TEST(LosslessCodec, PagesOfEscapesDoNotFitAndDecodeToNaN) {
  for (const int head_dim : {8, 64, 128}) {
    Half half(Format(64, head_dim));
    const int64_t entries = half.entries();
    // A number of each row stands out; then rows of zeros, until the escapes have entries.
    for (int64_t rows = 64; rows > 0; --rows) {
      std::fill(half.bits.begin(), half.bits.end(), uint16_t{0});
      for (int64_t row = 0; row < rows; ++row) {
        half.bits[Half::At(row * head_dim)] = Bits(0, 127, 0);
      }
      ExpectRoundTrip(half, "dim " + std::to_string(head_dim) + " rows " + std::to_string(rows));
      EXPECT_EQ(half.Position(0) == kUnfit, rows * (head_dim - 1) > entries);
      for (int64_t e = 1; e < entries && half.Position(0) == kUnfit; ++e) {
        EXPECT_EQ(half.Position(e), kNoEscape);
        EXPECT_EQ(half.Exponent(e), 0);
      }
    }
  }
}

TEST(LosslessCodec, ExactlyAsManyEscapesAsEntriesFit) {
  Half half(Format(64, 128));
  ASSERT_EQ(half.entries(), 48);
  std::fill(half.bits.begin(), half.bits.end(), Bits(1, 100, 3));
  for (size_t i = 0; i < 48; ++i) half.bits[i * 170] = Bits(0, 84, 1);
  EXPECT_TRUE(half.Encode());
  EXPECT_EQ(half.Decoded(), half.bits);
  EXPECT_EQ(half.Position(47), 47 * 170);
  EXPECT_EQ(half.Exponent(47), 84);
  EXPECT_EQ(half.Floor(63), 43);
  half.bits.back() = Bits(0, 84, 1);
  EXPECT_FALSE(half.Encode());
}

TEST(LosslessCodec, RandomPagesComeBack) {
  Random random(11);
  for (int round = 0; round < 400; ++round) {
    const int slots = 1 + static_cast<int>(random.Below(64));
    const int head_dim = 8 * (1 + static_cast<int>(random.Below(32)));
    Half half(Format(slots, head_dim));
    // Normal numbers of a size of their row's own, and one of so many that may be any.
    const auto rare = static_cast<int64_t>(1) << random.Below(12);
    for (size_t i = 0; i < half.bits.size(); ++i) {
      const auto row = static_cast<float>(i / Half::At(head_dim));
      half.bits[i] = random.Below(rare) == 0 ? static_cast<uint16_t>(random.Next())
                                             : ToBF16(std::exp2(row - 32) * random.Normal()).bits;
    }
    ExpectRoundTrip(half, "round " + std::to_string(round));
  }
}

TEST(LosslessCodec, DamagedBytesDecodeToSomething) {
  Random random(12);
  for (int round = 0; round < 100; ++round) {
    Half half(Format(1 + static_cast<int>(random.Below(16)),
                     8 * (1 + static_cast<int>(random.Below(10)))));
    for (std::byte& b : half.codes) b = static_cast<std::byte>(random.Next());
    for (std::byte& b : half.params) b = static_cast<std::byte>(random.Next());
    half.Decoded();  // checks its guard
  }
}

TEST(LosslessCodec, PagesOfKAndVAndTheirCounter) {
  const PageFormat format = Format(64, 64);
  Half good(format);
  Random random(13);
  for (uint16_t& bits : good.bits) bits = ToBF16(random.Normal()).bits;
  Half bad = good;
  for (size_t i = 0; i < bad.bits.size(); i += 2) bad.bits[i] = 0;
  std::vector<std::byte> k(format.closed_bytes()), v(format.closed_bytes());
  std::vector<std::byte> params(static_cast<size_t>(ParamBytes(format)));
  int32_t unfit = 40;
  EncodePagesItem item;
  item.unfit = &unfit;
  item.from = {.k = reinterpret_cast<std::byte*>(good.bits.data()),
               .v = reinterpret_cast<std::byte*>(good.bits.data()),
               .count = 64};
  item.to = {.k = k.data(), .v = v.data(), .count = 64, .params = params.data()};
  EncodePageOf(format, item, 0, 0);
  EXPECT_EQ(unfit, 40);
  std::vector<double> row(64);
  DecodeValueRow(format, v.data(), params.data(), 63, row.data());
  EXPECT_EQ(row[63], double{ToFloat(BF16{good.bits.back()})});

  item.from.v = reinterpret_cast<std::byte*>(bad.bits.data());
  EncodePageOf(format, item, 0, 0);
  EXPECT_EQ(unfit, 41);
  DecodeKeyRow(format, k.data(), params.data(), 1, row.data());
  EXPECT_EQ(row[0], double{ToFloat(BF16{good.bits[64]})});
  DecodeValueRow(format, v.data(), params.data(), 1, row.data());
  for (const double value : row) EXPECT_TRUE(std::isnan(value));
  item.from.k = item.from.v;
  EncodePageOf(format, item, 0, 0);
  EXPECT_EQ(unfit, 43);
}

TEST(LosslessCodec, TakesThreeQuartersAndALittle) {
  const auto share = [](int head_dim) {
    const PageFormat format = Format(64, head_dim);
    return static_cast<double>(2 * static_cast<int64_t>(format.closed_bytes()) +
                               ParamBytes(format)) /
           (2.0 * static_cast<double>(format.bytes()));
  };
  EXPECT_LT(share(128), 0.7630);
  EXPECT_LT(share(64), 0.7680);
  EXPECT_TRUE(Takes(Format(64, 1016)));
  EXPECT_FALSE(Takes(Format(64, 1024)));
  EXPECT_FALSE(Takes(Format(64, 68)));
  EXPECT_FALSE(Takes({DType::kF16, 64, 64, Encoding::kLossless}));
}

}  // namespace
}  // namespace headway::lossless
