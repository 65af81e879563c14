#include "kernels/cuda/attention_codes_kernel.h"

namespace headway::cuda {

template cudaError_t LaunchCodes<Encoding::kFp8E4M3>(cudaStream_t, const DecodeBatch&, int, int);
template int CodesBlocksAtOnce<Encoding::kFp8E4M3>(int);

}  // namespace headway::cuda
