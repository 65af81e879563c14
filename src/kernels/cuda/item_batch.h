// Items of one launch, each with blocks of threads of its own, as a kernel's parameter. A launch
// takes the longer the more bytes of parameters it has, some 0.4 µs a KiB.
#ifndef HEADWAY_KERNELS_CUDA_ITEM_BATCH_H_
#define HEADWAY_KERNELS_CUDA_ITEM_BATCH_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <type_traits>

#include "kernels/cuda/launch.h"

namespace headway::cuda {

// Items that fit into `bytes` of parameters.
template <typename Item, typename Shape>
constexpr int ItemsOf(size_t bytes) {
  return static_cast<int>((bytes - sizeof(Shape) - 16) / (sizeof(Item) + sizeof(int32_t)));
}

// `Shape` is what all items of a batch share.
template <typename Item, typename Shape, int kItems = ItemsOf<Item, Shape>(4096)>
struct ItemBatch {
  static constexpr int kItemsMax = kItems;

  Shape shape;
  int32_t count;
  int32_t first_block[kItems];
  Item items[kItems];
};

// The last item whose first block is not behind `block`.
__device__ inline int ItemOfBlock(const int32_t* first_block, int count, int block) {
  int low = 0;
  int high = count - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (first_block[middle] <= block) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}
// The item of this block.
template <typename Batch>
__device__ int ItemOfBlock(const Batch& batch) {
  return ItemOfBlock(batch.first_block, batch.count, static_cast<int>(blockIdx.x));
}

// launch(batch, blocks) over all items, in as few launches as they fit: one for the items of a
// layer. A batch's item is made of a caller's. blocks_of(item) may be 0.
template <typename Batch, typename Item, typename Shape, typename BlocksOf, typename Launch>
cudaError_t InBatchesOf(const Shape& shape, std::span<const Item> items, const BlocksOf& blocks_of,
                        const Launch& launch) {
  constexpr int64_t kBlocksMax = std::numeric_limits<int32_t>::max();
  static_assert(sizeof(Batch) <= kParametersMax);
  Batch batch;  // its items are left as they are until there are some
  batch.shape = shape;
  batch.count = 0;
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
    batch.items[batch.count] = std::remove_cvref_t<decltype(batch.items[0])>(item);
    ++batch.count;
    blocks += more;
  }
  return flush();
}
template <typename Item, typename Shape, typename BlocksOf, typename Launch>
cudaError_t InBatches(const Shape& shape, std::span<const Item> items, const BlocksOf& blocks_of,
                      const Launch& launch) {
  using Batch = ItemBatch<Item, Shape>;
  static_assert(sizeof(Batch) <= 4096);
  return InBatchesOf<Batch>(shape, items, blocks_of, launch);
}

}  // namespace headway::cuda

#endif  // HEADWAY_KERNELS_CUDA_ITEM_BATCH_H_
