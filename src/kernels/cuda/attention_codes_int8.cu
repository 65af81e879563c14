#include "kernels/cuda/attention_codes_kernel.h"

namespace headway::cuda {

template cudaError_t LaunchCodes<Encoding::kInt8>(cudaStream_t, const DecodeBatch&, int, int);
template int CodesBlocksAtOnce<Encoding::kInt8>(int);

}  // namespace headway::cuda
