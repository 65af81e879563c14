// The encodings of closed pages. The lossless one is defined in lossless_codec.h; the others have
// codes of 8 or 4 bits, value = zero + scale * code, each group of numbers with a scale and a zero
// of its own, both bf16.
//
// A group is one channel of K over all slots of the page, or kValueGroup neighbouring channels of
// one token of V: keys differ much between channels and little within one, values the other way
// round (Liu et al., "KIVI", 2024). The zero is the group's least number rounded down (of
// kFp8E4M3 its middle), and the scale is rounded up, so that codes span the group.
//
// Codes are slot-major, those of int4 in pairs: element 2 i in the low half of byte i of its row.
// The parameters of a page: scales [head_dim] and zeros [head_dim] of K, then scales
// [value groups, page_slots] and zeros of V.
//
// A group that holds NaN or infinity decodes to NaN throughout: a model that is broken shows.
// Numbers beyond 1e38 may become infinite.
#ifndef HEADWAY_KERNELS_PAGE_CODEC_H_
#define HEADWAY_KERNELS_PAGE_CODEC_H_

#include <cstddef>
#include <cstdint>

#include "base/bytes.h"
#include "kernels/cache.h"
#include "kernels/lossless_math.h"
#include "kernels/pages.h"

namespace headway {

inline constexpr int64_t kValueGroup = 64;

constexpr int64_t ValueGroups(const PageFormat& format) {
  return CeilDiv(format.head_dim, kValueGroup);
}
// Bytes from a page's parameters of K to those of V.
constexpr int64_t KeyParamBytes(const PageFormat& format) {
  if (format.encoding == Encoding::kLossless) {
    return lossless::HalfParamBytes(format.page_slots, format.head_dim);
  }
  return 4 * int64_t{format.head_dim};
}
// Of K and V of a page.
constexpr int64_t ParamBytes(const PageFormat& format) {
  if (format.encoding == Encoding::kLossless) return 2 * KeyParamBytes(format);
  return KeyParamBytes(format) + 4 * format.page_slots * ValueGroups(format);
}

// Encodes one page of K and V. Returns how many of the two do not fit their encoding, which only
// kLossless has.
int EncodePage(const PageFormat& format, const std::byte* k, const std::byte* v, std::byte* k_codes,
               std::byte* v_codes, std::byte* params);

// Page `page` of head `head` of an item; in the lossless encoding by an implementation of
// lossless::EncodeHalf, where one is given.
using EncodeHalfFunction = bool (*)(const PageFormat& format, const std::byte* page,
                                    std::byte* codes, std::byte* params);
void EncodePageOf(const PageFormat& format, const EncodePagesItem& item, int64_t head, int64_t page,
                  EncodeHalfFunction lossless = nullptr);

// Slot `slot` of a page as numbers [head_dim]: exact, or exact products and sums of what is stored.
void DecodeKeyRow(const PageFormat& format, const std::byte* codes, const std::byte* params,
                  int64_t slot, double* row);
void DecodeValueRow(const PageFormat& format, const std::byte* codes, const std::byte* params,
                    int64_t slot, double* row);

}  // namespace headway

#endif  // HEADWAY_KERNELS_PAGE_CODEC_H_
