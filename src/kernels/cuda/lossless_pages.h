// Encoding closed pages as lossless ones, and decoding these for kernels that know the dtype alone:
// the bytes of kernels/lossless_codec.h. EncodePages and DecodePages of page_codec.h call this,
// whose ExpandWeights is here, too.
#ifndef HEADWAY_KERNELS_CUDA_LOSSLESS_PAGES_H_
#define HEADWAY_KERNELS_CUDA_LOSSLESS_PAGES_H_

#include <cuda_runtime_api.h>

#include "kernels/cuda/encode_batch.h"
#include "kernels/cuda/page_codec.h"

namespace headway::cuda {

// A launch of `blocks` blocks.
cudaError_t LaunchEncodeLossless(cudaStream_t stream, const EncodeBatch& batch, unsigned blocks);

// head_dim is a multiple of 8.
cudaError_t DecodeLossless(cudaStream_t stream, const PageFormat& format,
                           const DecodePagesItem& item);

}  // namespace headway::cuda

#endif  // HEADWAY_KERNELS_CUDA_LOSSLESS_PAGES_H_
