// What kernels with much shared memory ask of the current device, and how many of their blocks it
// runs at once.
#ifndef HEADWAY_KERNELS_CUDA_OCCUPANCY_H_
#define HEADWAY_KERNELS_CUDA_OCCUPANCY_H_

#include <cuda_runtime.h>

#include <cstddef>

namespace headway::cuda {

// Lets a kernel have `bytes` of dynamic shared memory. Every device that launches it has to be
// told.
template <typename... Params>
cudaError_t AllowShared(void (*kernel)(Params...), int bytes) {
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error != cudaSuccess) return error;
  return cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                              cudaSharedmemCarveoutMaxShared);
}

// Blocks of a kernel, which may have their shared memory, that the current device runs at once; 0
// where it does not say.
template <typename... Params>
int BlocksAtOnce(void (*kernel)(Params...), int threads, size_t shared) {
  int device = 0;
  int processors = 0;
  int blocks = 0;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device) != cudaSuccess ||
      cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, threads, shared) !=
          cudaSuccess) {
    cudaGetLastError();  // it is handled
    return 0;
  }
  return processors * blocks;
}

}  // namespace headway::cuda

#endif  // HEADWAY_KERNELS_CUDA_OCCUPANCY_H_
