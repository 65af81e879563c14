// Call: how a call of Kernels is enqueued on a GPU.
#ifndef HEADWAY_KERNELS_CUDA_CALL_H_
#define HEADWAY_KERNELS_CUDA_CALL_H_

#include <cuda_runtime_api.h>

#include <type_traits>

#include "base/types.h"
#include "device/cuda/cuda_stream.h"
#include "device/device.h"
#include "headway/status.h"

namespace headway::cuda {

// Enqueued work of one call: chooses the GPU, times the call where the trace wants it, and gives
// the first error to the stream.
class Call {
 public:
  Call(Stream& stream, const WorkCost& cost) : Call(stream, [&] { return cost; }) {}
  // Of calls with many items, whose cost is not worked out where nobody asks for it.
  template <typename CostOf>
  requires std::is_invocable_r_v<WorkCost, CostOf> Call(Stream& stream, const CostOf& cost_of)
      : stream_(static_cast<CudaStream&>(stream)) {
    cudaSetDevice(stream_.device());
    if (stream_.times_kernels()) stream_.Begin(cost_of());
  }
  ~Call() { stream_.End(); }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  cudaStream_t native() const { return stream_.native(); }
  void Check(cudaError_t error, const char* what) { stream_.Check(error, what); }
  void Check(const Status& status) { stream_.Fail(status); }

 private:
  CudaStream& stream_;
};

}  // namespace headway::cuda

#endif  // HEADWAY_KERNELS_CUDA_CALL_H_
