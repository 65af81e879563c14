// NVIDIA GPUs as devices. Memory is plain device memory and pinned host memory; the compute and
// copy lanes are CUDA streams, the disk lanes host threads.
#ifndef HEADWAY_DEVICE_CUDA_CUDA_DEVICE_H_
#define HEADWAY_DEVICE_CUDA_CUDA_DEVICE_H_

#include <cstdint>
#include <memory>
#include <string>

#include "base/env.h"
#include "device/device.h"
#include "device/trace.h"

namespace headway {

// Memory of the GPU that the driver's context, its modules and the libraries' handles take, rounded
// up from what was measured on an NVIDIA H200.
inline constexpr int64_t kCudaContextBytes = int64_t{768} << 20;

struct CudaInfo {
  std::string name;
  int index = 0;
  int major = 0, minor = 0;  // compute capability
  int multiprocessors = 0;
  int64_t memory_bytes = 0;
  int64_t free_bytes = 0;  // now
};

// GPUs that the process sees. kUnsupported when there is no driver, or no GPU of compute capability
// 8.0 or above.
Result<int> CountCudaDevices();
Result<CudaInfo> DescribeCudaDevice(int index);

struct CudaDeviceOptions {
  int index = 0;
  bool time_kernels = false;  // every kernel is timed for the trace; slows small ones down
};

// `env` gives host memory and time, `trace` (may be null) learns what each lane did; both outlive
// the device. kInvalidArgument for an index that is not there.
Result<std::unique_ptr<Device>> NewCudaDevice(const CudaDeviceOptions& options, Env* env,
                                              Trace* trace);

}  // namespace headway

#endif  // HEADWAY_DEVICE_CUDA_CUDA_DEVICE_H_
