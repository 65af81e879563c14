// Items of one launch, each with blocks of threads of its own, as a kernel's parameter. Launches
// take 4 KiB of parameters on every driver.
#ifndef HEADWAY_KERNELS_CUDA_ITEM_BATCH_H_
#define HEADWAY_KERNELS_CUDA_ITEM_BATCH_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

namespace headway::cuda {

// `Shape` is what all items of a call share.
template <typename Item, typename Shape>
struct ItemBatch {
  static constexpr int kItemsMax =
      static_cast<int>((4096 - sizeof(Shape) - 16) / (sizeof(Item) + sizeof(int32_t)));

  Shape shape;
  int32_t count;
  int32_t first_block[kItemsMax];
  Item items[kItemsMax];
};

// The item of this block.
template <typename Item, typename Shape>
__device__ inline int ItemOfBlock(const ItemBatch<Item, Shape>& batch) {
  int at = batch.count - 1;
  while (batch.first_block[at] > static_cast<int>(blockIdx.x)) --at;
  return at;
}

// launch(batch, blocks) over all items, in as few launches as they fit: one for the items of a
// layer. blocks_of(item) may be 0.
template <typename Item, typename Shape, typename BlocksOf, typename Launch>
cudaError_t InBatches(const Shape& shape, std::span<const Item> items, const BlocksOf& blocks_of,
                      const Launch& launch) {
  constexpr int64_t kBlocksMax = std::numeric_limits<int32_t>::max();
  using Batch = ItemBatch<Item, Shape>;
  static_assert(sizeof(Batch) <= 4096);
  Batch batch = {};
  batch.shape = shape;
  int64_t blocks = 0;
  const auto flush = [&] {
    const cudaError_t error =
        blocks == 0 ? cudaSuccess : launch(batch, static_cast<unsigned>(blocks));
    batch.count = 0;
    blocks = 0;
    return error;
  };
  for (const Item& item : items) {
    const int64_t more = blocks_of(item);
    if (more == 0) continue;
    if (more > kBlocksMax) return cudaErrorInvalidValue;
    if (batch.count == Batch::kItemsMax || blocks + more > kBlocksMax) {
      if (const cudaError_t error = flush(); error != cudaSuccess) return error;
    }
    batch.first_block[batch.count] = static_cast<int32_t>(blocks);
    batch.items[batch.count] = item;
    ++batch.count;
    blocks += more;
  }
  return flush();
}

}  // namespace headway::cuda

#endif  // HEADWAY_KERNELS_CUDA_ITEM_BATCH_H_
