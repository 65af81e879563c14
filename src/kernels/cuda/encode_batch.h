// What a launch that encodes pages takes, of any encoding: a block takes K or V of a page of a
// head.
#ifndef HEADWAY_KERNELS_CUDA_ENCODE_BATCH_H_
#define HEADWAY_KERNELS_CUDA_ENCODE_BATCH_H_

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/item_batch.h"
#include "kernels/pages.h"

namespace headway::cuda {

struct EncodeItem {
  PageRun from;
  PageRun to;
  int32_t heads;
  int32_t* unfit;
};
inline constexpr int kEncodeItemsPerLaunch = 16;
struct EncodeBatch {
  EncodeItem items[kEncodeItemsPerLaunch];
  int32_t first_block[kEncodeItemsPerLaunch];
  int32_t items_count;
  int32_t head_dim;
  int32_t page_slots;
  DType dtype;
  Encoding encoding;
};
static_assert(sizeof(EncodeBatch) <= 4096);

struct HalfToEncode {
  bool of_keys;
  const std::byte* numbers;
  std::byte* codes;
  std::byte* params;  // of the page
  int32_t* unfit;
};

__device__ inline HalfToEncode FindHalf(const EncodeBatch& batch) {
  const int block = static_cast<int>(blockIdx.x) / 2;
  const int at = ItemOfBlock(batch.first_block, batch.items_count, block);
  const EncodeItem& item = batch.items[at];
  const int64_t pages = item.from.count / batch.page_slots;
  const int64_t head = (block - batch.first_block[at]) / pages;
  const int64_t page = (block - batch.first_block[at]) % pages;
  const int64_t from = head * item.from.head_stride + page * item.from.page_stride;
  const int64_t to = head * item.to.head_stride + page * item.to.page_stride;
  const bool of_keys = blockIdx.x % 2 == 0;
  return {of_keys, (of_keys ? item.from.k : item.from.v) + from,
          (of_keys ? item.to.k : item.to.v) + to,
          item.to.params + head * item.to.params_head_stride + page * item.to.params_page_stride,
          item.unfit};
}

}  // namespace headway::cuda

#endif  // HEADWAY_KERNELS_CUDA_ENCODE_BATCH_H_
