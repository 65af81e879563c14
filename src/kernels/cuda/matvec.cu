#include "kernels/cuda/matvec.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/cuda/matvec_problem.h"
#include "kernels/cuda/memory.h"

namespace headway::cuda {
namespace {

constexpr int64_t kNormedBytesMax = 64 << 10;  // of a normed row in shared memory

cudaError_t GetLimits(DeviceLimits* limits) {
  int device = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return error;
  error = cudaDeviceGetAttribute(&limits->sms, cudaDevAttrMultiProcessorCount, device);
  if (error != cudaSuccess) return error;
  error = cudaDeviceGetAttribute(&limits->block_shared, cudaDevAttrMaxSharedMemoryPerBlockOptin,
                                 device);
  if (error != cudaSuccess) return error;
  return cudaDeviceGetAttribute(&limits->sm_shared, cudaDevAttrMaxSharedMemoryPerMultiprocessor,
                                device);
}

// A problem whose weights all have dtype `weight` and lie on 16 bytes.
cudaError_t LaunchFast(cudaStream_t stream, DType weight, const MatVecProblem& problem) {
  DeviceLimits limits;
  const cudaError_t error = GetLimits(&limits);
  if (error != cudaSuccess) return error;
  if (problem.rows > 1 && weight == problem.activation && !problem.normed &&
      weight != DType::kF32) {
    return LaunchTiles(stream, limits, weight, problem);
  }
  if (weight == DType::kBF16) return LaunchLines<DType::kBF16>(stream, limits, problem);
  if (weight == DType::kF16) return LaunchLines<DType::kF16>(stream, limits, problem);
  return LaunchLines<DType::kF32>(stream, limits, problem);
}

bool Fast(const void* x, const WeightView& weight) {
  return weight.in % 8 == 0 && Aligned(x, 16) && Aligned(weight.data, 16);
}

MatVecOp MakeOp(const LinearOp& op) {
  return {.weight = op.weight.data,
          .bias = op.bias,
          .y = op.y,
          .y_stride = op.y_stride,
          .out = static_cast<int>(op.weight.out),
          .dtype = op.weight.dtype,
          .result = op.result};
}

MatVecProblem MakeProblem(DType activation, const void* x, int64_t rows, int64_t in) {
  MatVecProblem problem{};
  problem.activation = activation;
  problem.x = x;
  problem.rows = static_cast<int>(rows);
  problem.in = static_cast<int>(in);
  return problem;
}

MatVecProblem MakeGated(DType activation, const void* x, int64_t rows, const LinearOp& gate,
                        const LinearOp& up) {
  MatVecProblem problem = MakeProblem(activation, x, rows, gate.weight.in);
  problem.swiglu = true;
  problem.op_count = 2;
  problem.ops[0] = MakeOp(gate);
  problem.ops[1] = MakeOp(up);
  for (MatVecOp& op : problem.ops) {
    op.y = gate.y;
    op.y_stride = gate.weight.out;
    op.result = LinearResult::kActivation;
  }
  problem.outputs = static_cast<int>(gate.weight.out);
  return problem;
}

bool Valid(const LinearOp& op, int64_t in) {
  return op.weight.in == in && Aligned(op.weight.data, 2);
}

}  // namespace

bool CanNormMatVec(const MatVecNorm& x, std::span<const LinearOp> ops) {
  const DType dtype = ops.front().weight.dtype;
  const int64_t in = ops.front().weight.in;
  if (x.norm.kind == NormKind::kNone || dtype == DType::kF32 || ops.size() > kMatVecOpsMax ||
      !Aligned(x.norm.weight, 16) || !Aligned(x.norm.bias, 16) ||
      in * static_cast<int64_t>(sizeof(float)) > kNormedBytesMax) {
    return false;
  }
  return std::all_of(ops.begin(), ops.end(), [&](const LinearOp& op) {
    return op.weight.dtype == dtype && op.weight.in == in && Fast(x.x, op.weight);
  });
}

cudaError_t NormMatVec(cudaStream_t stream, DType activation, const MatVecNorm& x,
                       std::span<const LinearOp> ops) {
  MatVecProblem problem = MakeProblem(activation, x.x, 1, ops.front().weight.in);
  problem.normed = true;
  problem.norm = x.norm;
  for (const LinearOp& op : ops) {
    problem.ops[problem.op_count++] = MakeOp(op);
    problem.outputs += static_cast<int>(op.weight.out);
  }
  return LaunchFast(stream, ops.front().weight.dtype, problem);
}

cudaError_t NormMatVecSwiGlu(cudaStream_t stream, DType activation, const MatVecNorm& x,
                             const LinearOp& gate, const LinearOp& up) {
  MatVecProblem problem = MakeGated(activation, x.x, 1, gate, up);
  problem.normed = true;
  problem.norm = x.norm;
  return LaunchFast(stream, gate.weight.dtype, problem);
}

cudaError_t MatVec(cudaStream_t stream, DType activation, const void* x, int64_t rows,
                   std::span<const LinearOp> ops) {
  if (rows < 0 || rows > kMatVecRowsMax) return cudaErrorInvalidValue;
  if (rows == 0 || ops.empty()) return cudaSuccess;
  const int64_t in = ops[0].weight.in;
  for (const LinearOp& op : ops) {
    if (!Valid(op, in)) return cudaErrorInvalidValue;
  }
  for (const bool fast : {true, false}) {
    for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
      MatVecProblem problem = MakeProblem(activation, x, rows, in);
      auto launch = [&] {
        if (problem.op_count == 0) return cudaSuccess;
        const cudaError_t error =
            fast ? LaunchFast(stream, dtype, problem) : LaunchElements(stream, problem);
        problem.op_count = 0;
        problem.outputs = 0;
        return error;
      };
      for (const LinearOp& op : ops) {
        if (op.weight.dtype != dtype || Fast(x, op.weight) != fast || op.weight.out == 0) continue;
        problem.ops[problem.op_count++] = MakeOp(op);
        problem.outputs += static_cast<int>(op.weight.out);
        if (problem.op_count == kMatVecOpsMax) {
          const cudaError_t error = launch();
          if (error != cudaSuccess) return error;
        }
      }
      const cudaError_t error = launch();
      if (error != cudaSuccess) return error;
    }
  }
  return cudaSuccess;
}

cudaError_t MatVecSwiGlu(cudaStream_t stream, DType activation, const void* x, int64_t rows,
                         const LinearOp& gate, const LinearOp& up) {
  const int64_t in = gate.weight.in;
  if (rows < 0 || rows > kMatVecRowsMax || !Valid(gate, in) || !Valid(up, in) ||
      gate.weight.out != up.weight.out) {
    return cudaErrorInvalidValue;
  }
  if (rows == 0 || gate.weight.out == 0) return cudaSuccess;
  const MatVecProblem problem = MakeGated(activation, x, rows, gate, up);
  if (gate.weight.dtype == up.weight.dtype && Fast(x, gate.weight) && Fast(x, up.weight)) {
    return LaunchFast(stream, gate.weight.dtype, problem);
  }
  return LaunchElements(stream, problem);
}

}  // namespace headway::cuda
