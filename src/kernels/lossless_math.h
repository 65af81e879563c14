// The lossless encoding of bf16 rows, one number at a time, and where the parts of a half's
// parameters lie: shared by host and device. lossless_codec.h has the format.
#ifndef HEADWAY_KERNELS_LOSSLESS_MATH_H_
#define HEADWAY_KERNELS_LOSSLESS_MATH_H_

#include <cstdint>

#include "base/bytes.h"

namespace headway::lossless {

// Distances have 4 bits.
inline constexpr int kMaxDistance = 15;
// Positions that no number has, as pages have fewer than kUnfit of them. kNoEscape: the entry and
// all behind it are unused. kUnfit, as the first: the half has more escapes than entries.
inline constexpr uint16_t kNoEscape = 0xFFFF;
inline constexpr uint16_t kUnfit = 0xFFFE;
// What all numbers of a half decode to that does not fit: a quiet NaN.
inline constexpr uint16_t kUnfitBits = 0x7FC0;

// A bf16 number has a sign, 8 bits of exponent and 7 of mantissa. Its code is the first and the
// last of them.
constexpr int ExponentOf(uint16_t bits) { return bits >> 7 & 0xFF; }
constexpr uint8_t CodeOf(uint16_t bits) {
  return static_cast<uint8_t>((bits >> 8 & 0x80) | (bits & 0x7F));
}
constexpr uint16_t BitsOf(uint8_t code, int exponent) {
  return static_cast<uint16_t>((code & 0x80) << 8 | exponent << 7 | (code & 0x7F));
}

// Whether a number's exponent is too far below the largest of its row, its base.
constexpr bool Escapes(int exponent, int base) { return base - exponent > kMaxDistance; }
constexpr uint8_t DistanceOf(int exponent, int base) {
  return Escapes(exponent, base) ? uint8_t{0} : static_cast<uint8_t>(base - exponent);
}

// Entries in the escapes of a half.
constexpr int64_t EscapeEntries(int64_t page_slots, int64_t head_dim) {
  const int64_t entries = RoundUp(CeilDiv(page_slots * head_dim * 3, 512), 8);
  return entries < 8 ? 8 : entries;
}
// Bytes from the parameters of a half, which begin with its escapes' positions, to their exponents
// and to the bases of its rows.
constexpr int64_t ExponentsAt(int64_t entries) { return 2 * entries; }
constexpr int64_t BasesAt(int64_t entries) { return 3 * entries; }
// Of a half's parameters. Unused bytes at the end are 0.
constexpr int64_t HalfParamBytes(int64_t page_slots, int64_t head_dim) {
  return RoundUp(BasesAt(EscapeEntries(page_slots, head_dim)) + page_slots, 16);
}

}  // namespace headway::lossless

#endif  // HEADWAY_KERNELS_LOSSLESS_MATH_H_
