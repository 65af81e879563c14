#include <cstdint>
#include <limits>

#include "base/bytes.h"
#include "kernels/cuda/elements.h"
#include "kernels/cuda/item_batch.h"
#include "kernels/cuda/merge.h"

namespace headway::cuda {
namespace {

constexpr int kWarps = kThreads / kWarp;  // of a block, each with a row of a query head
constexpr float kNoKeys = -std::numeric_limits<float>::infinity();

using ScaleHeldBatch = ItemBatch<ScaleHeldItem, HeldHeads>;

template <DType kType>
__global__ void __launch_bounds__(kThreads)
    ScaleHeldKernel(const __grid_constant__ ScaleHeldBatch batch) {
  FollowPrevious();
  const int index = ItemOfBlock(batch);
  const ScaleHeldItem& item = batch.items[index];
  const int group = batch.shape.group;
  const int head_dim = batch.shape.head_dim;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t at = (static_cast<int64_t>(blockIdx.x) - batch.first_block[index]) * kWarps +
                     static_cast<int>(threadIdx.x) / kWarp;
  const int64_t row = at / group;
  const int head = static_cast<int>(at - row * group);
  if (row >= item.rows) return;

  // All holders add in one order, so that their shares fit together. A NaN comes out: fmaxf takes
  // the number, and the sum has the NaN.
  const float* const lse = item.lse + row * item.lse_stride + head;
  float top = kNoKeys;
  for (int i = 0; i < item.holders; ++i) top = fmaxf(top, lse[item.columns[i]]);
  if (top == kNoKeys) top = 0.0f;
  float sum = 0.0f;
  for (int i = 0; i < item.holders; ++i) sum += expf(lse[item.columns[i]] - top);
  const float own = lse[item.columns[item.own]];
  const float scale = expf(own - top) / sum;
  const int64_t first = int64_t{head} * head_dim;
  const int64_t to = row * item.o_stride + first;
  for (int i = lane; i < head_dim; i += kWarp) {
    float value[1];
    if (item.from != nullptr) {
      value[0] = item.from[row * item.from_stride + first + i];
    } else {
      Load<kType>(item.o, to + i, value);
    }
    // The output of a holder without keys may be anything.
    value[0] = own == kNoKeys ? 0.0f : value[0] * scale;
    Store<kType>(item.o, to + i, value);
  }
}

}  // namespace

cudaError_t ScaleHeld(cudaStream_t stream, DType activation, const HeldHeads& heads,
                      std::span<const ScaleHeldItem> items) {
  return InBatches(
      heads, items,
      [&](const ScaleHeldItem& item) { return CeilDiv(item.rows * heads.group, int64_t{kWarps}); },
      [&](const ScaleHeldBatch& batch, unsigned blocks) {
        return WithDType(activation, [&](auto dtype) {
          return LaunchKernel(ScaleHeldKernel<decltype(dtype)::kValue>, blocks, kThreads, 0, stream,
                              batch);
        });
      });
}

}  // namespace headway::cuda
