// The lossless encoding of bf16 rows, a number at a time, and where the parts of a half's
// parameters lie: shared by host and device. lossless_codec.h has the format.
#ifndef HEADWAY_KERNELS_LOSSLESS_MATH_H_
#define HEADWAY_KERNELS_LOSSLESS_MATH_H_

#include <cstdint>

#include "base/bytes.h"

namespace headway::lossless {

// Positions that no number has, as pages have fewer than kUnfit of them. kNoEscape: the entry and
// all behind it are unused. kUnfit, as the first: the half has more escapes than entries.
inline constexpr uint16_t kNoEscape = 0xFFFF;
inline constexpr uint16_t kUnfit = 0xFFFE;
// What all numbers of a half decode to that does not fit: a quiet NaN.
inline constexpr uint16_t kUnfitBits = 0x7FC0;

// The low byte of a bf16 number, the exponent's last bit and the mantissa, is kept as it is. The
// high byte is the sign and the other 7 bits of the exponent, which stand 0 to kTopMax above the
// floor of their row.
inline constexpr int kTopMax = 7;
constexpr int ExponentOf(uint16_t bits) { return bits >> 7 & 0xFF; }
constexpr uint16_t WithExponent(uint16_t bits, int exponent) {
  return static_cast<uint16_t>((bits & 0x807F) | exponent << 7);
}

// The floor of a row whose largest exponent is `largest`.
constexpr int FloorOf(int largest) { return largest / 2 > kTopMax ? largest / 2 - kTopMax : 0; }
constexpr bool Escapes(uint16_t bits, int floor) { return ExponentOf(bits) / 2 < floor; }

// Tops and signs of 8 neighbouring numbers are a word, arranged so that few instructions take them
// apart. Number j has, of j < 4: its top in bits [0, 3) of byte j and its sign in bit 7; of the
// others, with k = j - 4: its top in bits [4, 7) of byte k, and its sign in bit 3 of byte (k + 1) %
// 4. An escape's top is 0.
constexpr uint32_t TopOf(uint16_t bits, int floor, int j) {
  const uint32_t top =
      Escapes(bits, floor) ? 0 : static_cast<uint32_t>(ExponentOf(bits) / 2 - floor);
  const uint32_t sign = bits >> 15;
  const int k = j % 4;
  return j < 4 ? top << (8 * k) | sign << (8 * k + 7)
               : top << (8 * k + 4) | sign << ((8 * k + 11) % 32);
}
// Signs and tops of the first four numbers of a word, or, of OtherTops, of the others, a byte each.
inline constexpr uint32_t kTopMask = 0x87878787;
constexpr uint32_t OtherTops(uint32_t tops) { return tops >> 4 | tops << 28; }

// Number j of 8 from their low byte, their word and the row's floor.
constexpr uint16_t BitsOf(uint8_t low, uint32_t tops, int floor, int j) {
  const uint32_t high = ((j < 4 ? tops : OtherTops(tops)) & kTopMask) >> (8 * (j % 4));
  return static_cast<uint16_t>(((high + static_cast<uint32_t>(floor)) & 0xFFu) << 8 | low);
}

// Entries in the escapes of a half.
constexpr int64_t EscapeEntries(int64_t page_slots, int64_t head_dim) {
  const int64_t entries = RoundUp(CeilDiv(page_slots * head_dim * 3, 512), 8);
  return entries < 8 ? 8 : entries;
}
// Bytes from the parameters of a half, which begin with its escapes' positions, to their exponents
// and to the floors of its rows.
constexpr int64_t ExponentsAt(int64_t entries) { return 2 * entries; }
constexpr int64_t FloorsAt(int64_t entries) { return 3 * entries; }
// Of a half's parameters. Unused bytes at the end are 0.
constexpr int64_t HalfParamBytes(int64_t page_slots, int64_t head_dim) {
  return RoundUp(FloorsAt(EscapeEntries(page_slots, head_dim)) + page_slots, 16);
}

}  // namespace headway::lossless

#endif  // HEADWAY_KERNELS_LOSSLESS_MATH_H_
