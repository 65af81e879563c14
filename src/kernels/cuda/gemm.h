// Matrix products by cuBLASLt: y = x W^T + bias for more rows than matvec.h takes.
#ifndef HEADWAY_KERNELS_CUDA_GEMM_H_
#define HEADWAY_KERNELS_CUDA_GEMM_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>

#include "base/types.h"
#include "headway/status.h"
#include "kernels/cuda/workspace.h"
#include "kernels/linear.h"

namespace headway::cuda {

// Not thread-safe. The GPU of `Create` is current in the thread that calls.
class Gemm {
 public:
  // kIo when cuBLASLt does not start. `choice` is which of its proposals for a shape is taken, the
  // best expected first; the last where there are fewer.
  static Result<std::unique_ptr<Gemm>> Create(int choice = 0);
  ~Gemm();
  Gemm(const Gemm&) = delete;
  Gemm& operator=(const Gemm&) = delete;

  // y [rows, op.weight.out] of x [rows, op.weight.in] in the dtype of the weight, which is the
  // activation dtype. `bias` [op.weight.out] or null stands for op.bias: it has the dtype of y and
  // lies on 16 bytes. `workspace` has kGemmWorkspaceBytes. Algorithms are chosen once a shape.
  Status Run(cudaStream_t stream, const void* x, int64_t rows, const LinearOp& op, const void* bias,
             void* workspace);
  // Products leave so many multiprocessors to others from now on.
  void Leave(int multiprocessors);

 private:
  struct Impl;
  explicit Gemm(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace headway::cuda

#endif  // HEADWAY_KERNELS_CUDA_GEMM_H_
