// Decode attention over pages in the model's dtype: the kernels that AttendDecode launches for
// them, a file of instantiations each, since they take long to compile. And which instantiation a
// launch takes, of pages in an encoding too.
#ifndef HEADWAY_KERNELS_CUDA_ATTENTION_DECODE_LAUNCH_H_
#define HEADWAY_KERNELS_CUDA_ATTENTION_DECODE_LAUNCH_H_

#include <cuda_runtime_api.h>

#include "base/types.h"
#include "kernels/cuda/attention_decode_block.h"

namespace headway::cuda {

// A launch of `blocks` blocks over items without parameters, `block_queries` (8 or 16) queries
// each, on tensor cores.
template <DType kType, typename Batch>
cudaError_t LaunchMma(cudaStream_t stream, const Batch& batch, int block_queries, int blocks);
extern template cudaError_t LaunchMma<DType::kBF16>(cudaStream_t, const DecodeBatch&, int, int);
extern template cudaError_t LaunchMma<DType::kF16>(cudaStream_t, const DecodeBatch&, int, int);
extern template cudaError_t LaunchMma<DType::kBF16>(cudaStream_t, const DecodeManyBatch&, int, int);
extern template cudaError_t LaunchMma<DType::kF16>(cudaStream_t, const DecodeManyBatch&, int, int);

// Blocks of up to 8 queries that the current device runs at once; 0 where it does not say.
template <DType kType>
int MmaBlocksAtOnce(int head_dim);
extern template int MmaBlocksAtOnce<DType::kBF16>(int);
extern template int MmaBlocksAtOnce<DType::kF16>(int);

// Calls launch<kDim, kTiles>() with the compiled size of heads and the number of tiles of 8 queries
// that a head size and block_queries ask for.
template <typename Launch>
auto LaunchForShape(int head_dim, int block_queries, const Launch& launch) {
  const bool one = block_queries == 8;
  if (head_dim <= 64) {
    return one ? launch.template operator()<64, 1>() : launch.template operator()<64, 2>();
  }
  if (head_dim <= 128) {
    return one ? launch.template operator()<128, 1>() : launch.template operator()<128, 2>();
  }
  return launch.template operator()<256, 1>();
}

// A launch over items of f32, kPlainQueries queries a block.
inline constexpr int kPlainQueries = 4;
cudaError_t LaunchPlain(cudaStream_t stream, const DecodeBatch& batch, int blocks);

}  // namespace headway::cuda

#endif  // HEADWAY_KERNELS_CUDA_ATTENTION_DECODE_LAUNCH_H_
