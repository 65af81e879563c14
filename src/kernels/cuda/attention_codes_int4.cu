#include "kernels/cuda/attention_codes_kernel.h"

namespace headway::cuda {

template cudaError_t LaunchCodes<Encoding::kInt4>(cudaStream_t, const DecodeBatch&, int, int);
template int CodesBlocksAtOnce<Encoding::kInt4>(int);

}  // namespace headway::cuda
