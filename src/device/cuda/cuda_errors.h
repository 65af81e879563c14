// What errors of the CUDA runtime mean, in the words of someone who has to do something about them.
#ifndef HEADWAY_DEVICE_CUDA_CUDA_ERRORS_H_
#define HEADWAY_DEVICE_CUDA_CUDA_ERRORS_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>

#include "headway/status.h"

namespace headway::cuda {

// "<what>: <CUDA's words>"; ok for cudaSuccess. Behind some errors nothing runs on the GPU in this
// process any longer: the text says so.
Status StatusOf(cudaError_t error, const char* what);

// What is known when no GPU was found.
struct NoGpu {
  cudaError_t error = cudaSuccess;  // of counting them; success: there are none
  int driver = 0;   // newest CUDA that the driver knows, as 1000 * major + 10 * minor;
                    // 0: there is no driver
  int runtime = 0;  // of this build
  const char* visible = nullptr;  // CUDA_VISIBLE_DEVICES, null when not set
};
// kUnsupported: "no NVIDIA GPU can be used: ...".
Status StatusOf(const NoGpu& found);

// kOutOfBudget for an allocation that the GPU refused. `free` may be -1, not known.
Status OutOfGpuMemory(const std::string& tag, int64_t bytes, int64_t free);

// The warning about host memory that could not be pinned; rates in bytes per second, 0: unknown.
std::string PageableWarning(const std::string& tag, int64_t bytes, cudaError_t why, double pageable,
                            double pinned);

}  // namespace headway::cuda

#endif  // HEADWAY_DEVICE_CUDA_CUDA_ERRORS_H_
