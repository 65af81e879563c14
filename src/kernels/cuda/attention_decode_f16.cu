#include "kernels/cuda/attention_decode_kernel.h"

namespace headway::cuda {

template cudaError_t LaunchMma<DType::kF16>(cudaStream_t, const DecodeBatch&, int, int);
template int MmaBlocksAtOnce<DType::kF16>(int);

}  // namespace headway::cuda
