// Backend: a processor that Headway computes on, as a device and the kernels for it. The one place
// that knows which there are in this build.
#ifndef HEADWAY_KERNELS_BACKEND_BACKEND_H_
#define HEADWAY_KERNELS_BACKEND_BACKEND_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/env.h"
#include "base/thread_pool.h"
#include "device/device.h"
#include "device/trace.h"
#include "headway/status.h"
#include "kernels/kernels.h"

namespace headway {

struct BackendInfo {
  // False where device memory is the host's. True: weights are copied there, and pages, activations
  // and workspace share what a budget for the device leaves.
  bool own_memory = false;
  std::string name;            // of a GPU, as its driver spells it; else empty
  int gpu = 0;                 // its number
  int64_t memory = 0;          // of a device with its own memory, in all
  int64_t free_memory = 0;     // of it, when the backend was made, less what libraries will take
  int64_t context_memory = 0;  // that the driver and the libraries take of it, about
  double map_share = 0.0;      // of it for a byte of host memory that the device reaches
  // Prefill chunk and slab length that suit it where memory is ample, in tokens.
  int64_t chunk = 1024;
  int64_t segment = 1024;

  // The chunk where ranks have shards: their products are narrower, and more rows make up for it.
  int64_t ChunkOf(int ranks) const { return own_memory && ranks > 1 ? 2 * chunk : chunk; }
};

// Whether the trace learns every kernel's time, even where measuring it slows small ones down.
enum class KernelTimes { kWhereFree, kAll };

class Backend {
 public:
  virtual ~Backend() = default;
  virtual const BackendInfo& info() const = 0;
  // Of a device with its own memory, now.
  virtual Result<int64_t> FreeMemory() const = 0;
  // `env` and `trace` (may be null) outlive the device.
  virtual Result<std::unique_ptr<Device>> NewDevice(Env* env, Trace* trace, KernelTimes times) = 0;
  // `pool` and `trace` (may be null) outlive the kernels.
  virtual Result<std::unique_ptr<Kernels>> NewKernels(ThreadPool* pool, Trace* trace) = 0;
};

// The device of one of the ranks that share a model: of "cuda:2" it is GPU 2 + rank, of "cuda:0,2"
// the one of that place in the list; one that is no GPU is every rank's. kInvalidArgument where the
// list has another length than `ranks`. Where ranks are processes they may be on several machines:
// GPU 2 is then that of the first rank on each, and `on_machine` is the rank's number there.
Result<std::string> DeviceOfRank(const std::string& device, int rank, int ranks,
                                 std::optional<int> on_machine = std::nullopt);

// `device` is "cpu", or "cuda" or "cuda:N" where the build has it; `isa` is for the CPU's kernels.
// kUnsupported names what this build has.
Result<std::unique_ptr<Backend>> NewBackend(const std::string& device, const std::string& isa);

// What a plan must know of a backend: enough to plan for a GPU that is not there.
struct PlannedBackend {
  BackendInfo info;
  std::unique_ptr<KernelSizes> sizes;
};
// A GPU with so much memory, all of it free.
PlannedBackend PlanGpuBackend(int64_t memory);

}  // namespace headway

#endif  // HEADWAY_KERNELS_BACKEND_BACKEND_H_
