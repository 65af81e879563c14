// For tests that hand kernels memory of their own.
#ifndef HEADWAY_KERNELS_CUDA_CUDA_TESTING_H_
#define HEADWAY_KERNELS_CUDA_CUDA_TESTING_H_

#include <cuda_runtime_api.h>

#include <cstddef>

namespace headway::cuda {

// Copies to the GPU, and waits until the data is there: cudaMemcpy may return before, and streams
// that do not wait for the default one begin with what was there.
inline cudaError_t CopyToGpu(void* to, const void* from, size_t bytes) {
  const cudaError_t error = cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice);
  return error == cudaSuccess ? cudaStreamSynchronize(cudaStreamLegacy) : error;
}

}  // namespace headway::cuda

#endif  // HEADWAY_KERNELS_CUDA_CUDA_TESTING_H_
