// The kernels for NVIDIA GPUs of compute capability 8.0 and above. Activations have the dtype of
// the weights.
#ifndef HEADWAY_KERNELS_CUDA_CUDA_KERNELS_H_
#define HEADWAY_KERNELS_CUDA_CUDA_KERNELS_H_

#include <memory>

#include "headway/status.h"
#include "kernels/kernels.h"

namespace headway {

// For the GPU `device`, whose streams all calls take. kUnsupported when it cannot be used.
Result<std::unique_ptr<Kernels>> NewCudaKernels(int device);

}  // namespace headway

#endif  // HEADWAY_KERNELS_CUDA_CUDA_KERNELS_H_
