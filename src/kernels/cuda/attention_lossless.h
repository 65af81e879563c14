// Decode attention over lossless pages (lossless_codec.h): the kernel that AttendDecode launches
// for them.
#ifndef HEADWAY_KERNELS_CUDA_ATTENTION_LOSSLESS_H_
#define HEADWAY_KERNELS_CUDA_ATTENTION_LOSSLESS_H_

#include <cuda_runtime_api.h>

#include "kernels/cuda/attention_decode_block.h"

namespace headway::cuda {

// A launch of `blocks` blocks over items with parameters, `block_queries` (8 or 16) queries each.
// The states are those of LaunchMma over the pages that were encoded, bit for bit.
cudaError_t LaunchLossless(cudaStream_t stream, const DecodeBatch& batch, int block_queries,
                           int blocks);

}  // namespace headway::cuda

#endif  // HEADWAY_KERNELS_CUDA_ATTENTION_LOSSLESS_H_
