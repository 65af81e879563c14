#include "base/bytes.h"

#include <gtest/gtest.h>

#include <limits>

namespace headway {
namespace {

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

TEST(ParseBytes, TakesUnits) {
  const struct {
    const char* text;
    int64_t bytes;
  } kCases[] = {
      {"0", 0},
      {"4096", 4096},
      {"17B", 17},
      {"8MiB", 8 * kMiB},
      {"8 MiB", 8 * kMiB},
      {" 8mib ", 8 * kMiB},
      {"8M", 8 * kMiB},
      {"8MB", 8'000'000},
      {"512k", 512 * kKiB},
      {"512K", 512 * kKiB},
      {"3kb", 3000},
      {"1.5GiB", 3 * kGiB / 2},
      {"1.5GB", 1'500'000'000},
      {".5k", 512},
      {"2TiB", 2048 * kGiB},
      {"0.3", 0},
      {"9223372036854775807", kMax},
      {"9007199254740993", 9007199254740993},  // 2^53 + 1: no double holds it
      {"1PiB", kGiB * kMiB},
      {"2pb", 2'000'000'000'000'000},
  };
  for (const auto& c : kCases) {
    const Result<int64_t> bytes = ParseBytes(c.text);
    ASSERT_TRUE(bytes.ok()) << c.text << ": " << bytes.status().message();
    EXPECT_EQ(*bytes, c.bytes) << c.text;
  }
}

TEST(ParseBytes, RefusesWhatIsNoSize) {
  for (const char* text : {"",
                           " ",
                           "MiB",
                           "-1",
                           "+1",
                           "-8MiB",
                           "1e3",
                           "1.2.3",
                           ".",
                           "8 Mi B",
                           "8MiBs",
                           "8XB",
                           "0x10",
                           "nan",
                           "inf",
                           "9223372036854775808",
                           "99999999999999999999",
                           "9000000TiB",
                           "8388608TiB",
                           "1.5e300",
                           "9999999999999999999.5",
                           "8\xC3\x9F",
                           "1,5GiB"}) {
    const Result<int64_t> bytes = ParseBytes(text);
    ASSERT_FALSE(bytes.ok()) << text << " gave " << *bytes;
    EXPECT_EQ(bytes.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(bytes.status().message().find(text), std::string::npos);
  }
}

TEST(FormatBytes, PicksTheUnit) {
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(17), "17 B");
  EXPECT_EQ(FormatBytes(1023), "1023 B");
  EXPECT_EQ(FormatBytes(kKiB), "1.0 KiB");
  EXPECT_EQ(FormatBytes(8 * kMiB), "8.0 MiB");
  EXPECT_EQ(FormatBytes(kMiB - 1), "1.0 MiB");
  EXPECT_EQ(FormatBytes(3 * kGiB / 2), "1.5 GiB");
  EXPECT_EQ(FormatBytes(2048 * kGiB), "2.0 TiB");
  EXPECT_EQ(FormatBytes(kMax), "8192.0 PiB");
}

TEST(Checked, RefusesWhatDoesNotFit) {
  int64_t result = -7;
  EXPECT_TRUE(CheckedMul(kMax, 1, &result));
  EXPECT_EQ(result, kMax);
  EXPECT_TRUE(CheckedMul(int64_t{1} << 31, int64_t{1} << 31, &result));
  EXPECT_EQ(result, int64_t{1} << 62);
  EXPECT_FALSE(CheckedMul(int64_t{1} << 32, int64_t{1} << 31, &result));
  EXPECT_FALSE(CheckedMul(-1, 5, &result));
  EXPECT_FALSE(CheckedMul(-1, -5, &result));
}

TEST(Round, GoesUp) {
  EXPECT_EQ(CeilDiv(0, 64), 0);
  EXPECT_EQ(CeilDiv(1, 64), 1);
  EXPECT_EQ(CeilDiv(64, 64), 1);
  EXPECT_EQ(RoundUp(65, 64), 128);
}

}  // namespace
}  // namespace headway
