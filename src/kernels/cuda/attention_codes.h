// Decode attention over encoded pages (page_codec.h): the kernels that AttendDecode launches for
// them, a file of instantiations each, since they take long to compile.
#ifndef HEADWAY_KERNELS_CUDA_ATTENTION_CODES_H_
#define HEADWAY_KERNELS_CUDA_ATTENTION_CODES_H_

#include <cuda_runtime_api.h>

#include "base/types.h"
#include "kernels/cuda/attention_decode_block.h"

namespace headway::cuda {

// A launch of `blocks` blocks over items with parameters, `block_queries` (8 or 16) queries each.
template <Encoding kEncoding>
cudaError_t LaunchCodes(cudaStream_t stream, const DecodeBatch& batch, int block_queries,
                        int blocks);
extern template cudaError_t LaunchCodes<Encoding::kInt8>(cudaStream_t, const DecodeBatch&, int,
                                                         int);
extern template cudaError_t LaunchCodes<Encoding::kFp8E4M3>(cudaStream_t, const DecodeBatch&, int,
                                                            int);
extern template cudaError_t LaunchCodes<Encoding::kInt4>(cudaStream_t, const DecodeBatch&, int,
                                                         int);
// Of up to 8 queries each; 0 where the device does not say.
template <Encoding kEncoding>
int CodesBlocksAtOnce(int head_dim);
extern template int CodesBlocksAtOnce<Encoding::kInt8>(int);
extern template int CodesBlocksAtOnce<Encoding::kFp8E4M3>(int);
extern template int CodesBlocksAtOnce<Encoding::kInt4>(int);

}  // namespace headway::cuda

#endif  // HEADWAY_KERNELS_CUDA_ATTENTION_CODES_H_
