#include "kernels/weight_code.h"

#include <cstring>

#include "kernels/lossless_codec.h"

namespace headway {

bool EncodeWeightPage(const WeightCode& layout, const std::byte* block, int64_t page,
                      std::byte* code) {
  const PageRun run = layout.Pages(code);
  const std::byte* keys = block + layout.KeysAt(page);
  return EncodePage(kWeightPage, keys, keys + layout.ValuesAt(), run.k + page * run.page_stride,
                    run.v + page * run.page_stride,
                    run.params + page * run.params_page_stride) == 0;
}

void CopyWeightTail(const WeightCode& layout, const std::byte* block, std::byte* code) {
  std::memcpy(code + layout.TailAt(), block + layout.BlockTailAt(),
              static_cast<size_t>(layout.tail()));
}

void DecodeWeights(const WeightCode& layout, const std::byte* code, std::byte* block) {
  constexpr int64_t kRowBytes = int64_t{2} * kWeightPage.head_dim;
  const PageRun run = layout.Pages(code);
  for (int64_t row = 0; row < run.count; ++row) {
    const int64_t page = row / kWeightPage.page_slots;
    const int64_t slot = row % kWeightPage.page_slots;
    const std::byte* params = run.params + page * run.params_page_stride;
    uint16_t numbers[kWeightPage.head_dim];
    lossless::DecodeRow(kWeightPage, run.k + page * run.page_stride, params, slot, numbers);
    std::memcpy(block + row * kRowBytes, numbers, sizeof(numbers));
    lossless::DecodeRow(kWeightPage, run.v + page * run.page_stride,
                        params + KeyParamBytes(kWeightPage), slot, numbers);
    std::memcpy(block + layout.ValuesAt() + row * kRowBytes, numbers, sizeof(numbers));
  }
  std::memcpy(block + layout.BlockTailAt(), code + layout.TailAt(),
              static_cast<size_t>(layout.tail()));
}

}  // namespace headway
