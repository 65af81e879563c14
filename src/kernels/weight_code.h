// Matrices of bf16 in three quarters of their bytes, bit for bit: what lies in host memory and
// crosses the bus of the layers whose weights stream. Published for weights as DFloat11 (Zhang et
// al., 2025), with codes of unequal lengths; here it is the fixed rate of lossless pages
// (lossless_codec.h).
//
// A block of numbers is taken for the pages of one head, kWeightPage: its first half are keys, row
// by row, its second half values. Behind the codes of all keys, of all values, and the parameters
// of all pages comes what fills no page, as it is.
#ifndef HEADWAY_KERNELS_WEIGHT_CODE_H_
#define HEADWAY_KERNELS_WEIGHT_CODE_H_

#include <cstddef>
#include <cstdint>

#include "kernels/page_codec.h"
#include "kernels/pages.h"

namespace headway {

inline constexpr PageFormat kWeightPage = {
    .dtype = DType::kBF16, .page_slots = 64, .head_dim = 128, .encoding = Encoding::kLossless};

// Where the parts of an encoded block lie.
class WeightCode {
 public:
  // Of a block of so many bytes.
  explicit WeightCode(int64_t bytes) : block_bytes_(bytes), pages_(bytes / (2 * kHalf)) {}

  int64_t pages() const { return pages_; }
  // Encoded, on a device whose buffers begin at multiples of 16, as the block's do.
  int64_t bytes() const { return TailAt() + tail(); }
  // The numbers of page `page` in the block: its values lie ValuesAt() behind its keys.
  int64_t KeysAt(int64_t page) const { return page * kHalf; }
  int64_t ValuesAt() const { return pages_ * kHalf; }
  // What fills no page: its bytes, and where it lies in the block and in its code.
  int64_t tail() const { return block_bytes_ - BlockTailAt(); }
  int64_t BlockTailAt() const { return 2 * ValuesAt(); }
  int64_t TailAt() const { return ParamsAt() + pages_ * ParamBytes(kWeightPage); }
  // All pages of the code at `code`.
  PageRun Pages(const std::byte* code) const {
    PageRun run;
    run.k = const_cast<std::byte*>(code);
    run.v = run.k + pages_ * kCodes;
    run.page_stride = kCodes;
    run.params = run.k + ParamsAt();
    run.params_page_stride = ParamBytes(kWeightPage);
    run.count = pages_ * kWeightPage.page_slots;
    return run;
  }

 private:
  static constexpr int64_t kHalf = int64_t{2} * kWeightPage.page_slots * kWeightPage.head_dim;
  static constexpr int64_t kCodes = kHalf / 4 * 3;
  int64_t ParamsAt() const { return 2 * pages_ * kCodes; }

  int64_t block_bytes_;
  int64_t pages_;
};

// Encodes page `page` of a block, whose code has WeightCode::bytes; false if it does not fit.
bool EncodeWeightPage(const WeightCode& layout, const std::byte* block, int64_t page,
                      std::byte* code);
// The rest of it.
void CopyWeightTail(const WeightCode& layout, const std::byte* block, std::byte* code);
// And back, all of it.
void DecodeWeights(const WeightCode& layout, const std::byte* code, std::byte* block);

}  // namespace headway

#endif  // HEADWAY_KERNELS_WEIGHT_CODE_H_
