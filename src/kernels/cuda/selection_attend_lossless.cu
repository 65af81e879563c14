#include "kernels/cuda/selection_attend_kernel.h"

namespace headway::cuda {

template cudaError_t LaunchAttend<Rows::kLossless>(cudaStream_t, const AttendWork&);

}  // namespace headway::cuda
