// The lossless encoding of closed pages of bf16: 12 bits a number, bit for bit.
//
// Exponents of keys and values differ little within a token. A row of K or V, one token's, has
// head_dim bytes, the low ones of its numbers, and, behind them, a word for each 8 numbers: a sign
// and 3 bits of an exponent each (lossless_math.h). These 3 bits are added to the row's floor,
// which is so that the row's largest exponent can be had; with the one in the low byte, 16
// exponents can, or 15.
//
// A smaller exponent escapes: (slot * head_dim + dim, exponent) stands among the escapes of its
// half (K or V of a page) in ascending order; unused entries are (kNoEscape, 0). A half's
// parameters: positions u16 [entries], exponents u8 [entries], floors u8 [page_slots], rounded up
// to 16 bytes; those of K, then those of V.
//
// A half with more escapes than entries does not fit: its first position is kUnfit, its other
// entries are unused, and its rows are rows of NaN, so that no result passes that was made of it.
// Who encodes is told (EncodePagesItem::unfit).
#ifndef HEADWAY_KERNELS_LOSSLESS_CODEC_H_
#define HEADWAY_KERNELS_LOSSLESS_CODEC_H_

#include <cstddef>
#include <cstdint>

#include "kernels/lossless_math.h"
#include "kernels/pages.h"

namespace headway::lossless {

// Whether pages of this format can be encoded: bf16, rows of whole words, and positions in 16 bits.
constexpr bool Takes(const PageFormat& format) {
  return format.dtype == DType::kBF16 && format.head_dim % 8 == 0 &&
         int64_t{format.page_slots} * format.head_dim < kUnfit;
}

// The parameters of a half while it is encoded.
class HalfParams {
 public:
  // No escapes, and floors of 0.
  HalfParams(const PageFormat& format, std::byte* params);
  void SetFloor(int64_t slot, int floor) {
    params_[FloorsAt(entries_) + slot] = static_cast<std::byte>(floor);
  }
  // Numbers that escape are given in the order of their positions, slot * head_dim + dim.
  void Escape(int64_t position, uint16_t bits);
  bool fits() const { return escapes_ <= entries_; }

 private:
  std::byte* const params_;
  const int64_t entries_;
  int64_t escapes_ = 0;
};
// What a half becomes that does not fit.
void MakeUnfit(const PageFormat& format, std::byte* codes, std::byte* params);

// Encodes K or V of a page; false if it does not fit. `page` lies on 2 bytes, codes and parameters
// anywhere.
bool EncodeHalf(const PageFormat& format, const std::byte* page, std::byte* codes,
                std::byte* params);

// The numbers [head_dim] of slot `slot`. Whatever codes and parameters hold, nothing else is read
// or written.
void DecodeRow(const PageFormat& format, const std::byte* codes, const std::byte* params,
               int64_t slot, uint16_t* row);

}  // namespace headway::lossless

#endif  // HEADWAY_KERNELS_LOSSLESS_CODEC_H_
