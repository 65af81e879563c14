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
// Of these, what is still free when a backend is made: modules and libraries take it as they are
// first used. (On an H200 a plan of all that was free was less than 100 MiB too large by then.)
inline constexpr int64_t kCudaLaterBytes = int64_t{256} << 20;
// And for each byte of pinned host memory: its page tables have 8 bytes for 4 KiB (192 MiB more
// were seen in use with 128 GiB pinned than with 32 GiB).
inline constexpr double kCudaMapShare = 8.0 / 4096;

struct CudaInfo {
  std::string name;
  int index = 0;
  int major = 0, minor = 0;  // compute capability
  int multiprocessors = 0;
  int64_t memory_bytes = 0;
  int64_t free_bytes = 0;  // now
};

// GPUs that the process sees. kUnsupported, saying which versions there are and are needed, when
// there is no driver, too old a one, or no GPU of compute capability 8.0 or above.
Result<int> CountCudaDevices();
// kOutOfBudget when other programs have left no memory for as much as this process's context.
Result<CudaInfo> DescribeCudaDevice(int index);
// Free bytes of the GPU now.
Result<int64_t> FreeCudaMemory(int index);

struct CudaDeviceOptions {
  int index = 0;
  bool time_kernels = false;    // every kernel is timed for the trace; slows small ones down
  bool pin_host_memory = true;  // false in tests: as if the system refused
};

// `env` gives host memory and time, `trace` (may be null) learns what each lane did; both outlive
// the device. kInvalidArgument for an index that is not there.
//
// Host memory that the system does not pin is pageable instead: copies are ordered by the same
// events, one after the other, and a warning says what that costs.
Result<std::unique_ptr<Device>> NewCudaDevice(const CudaDeviceOptions& options, Env* env,
                                              Trace* trace);

}  // namespace headway

#endif  // HEADWAY_DEVICE_CUDA_CUDA_DEVICE_H_
