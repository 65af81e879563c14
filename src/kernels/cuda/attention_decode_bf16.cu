#include "kernels/cuda/attention_decode_kernel.h"

namespace headway::cuda {

template cudaError_t LaunchMma<DType::kBF16>(cudaStream_t, const DecodeBatch&, int, int);
template int MmaBlocksAtOnce<DType::kBF16>(int);

}  // namespace headway::cuda
