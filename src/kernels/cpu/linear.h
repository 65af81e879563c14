// y = x W^T + b on the pool: few rows as matrix × vector, many as matrix × matrix.
#ifndef HEADWAY_KERNELS_CPU_LINEAR_H_
#define HEADWAY_KERNELS_CPU_LINEAR_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/thread_pool.h"
#include "kernels/cpu/gemm_amx.h"
#include "kernels/cpu/isa.h"
#include "kernels/linear.h"
#include "kernels/sizes.h"

namespace headway::cpu {

// The code that an instruction set runs.
struct LinearCode {
  Isa isa = Isa::kAvx2;
  const TileGemm* tiles = nullptr;  // many rows against bf16 weights, where there are tiles
};

LinearCode LinearCodeFor(Isa isa);

// Scratch memory that Linear needs for calls within `limits` on `threads` threads.
int64_t LinearScratchBytes(const LinearCode& code, const KernelLimits& limits, int threads);

// Row `row` of what an op writes: activations are f32 here.
inline float* FloatRow(const LinearOp& op, int64_t row) {
  return static_cast<float*>(op.y) + row * op.y_stride;
}
// Whether it adds to what is there.
inline bool Adds(const LinearOp& op) { return op.result == LinearResult::kAddFloat; }

// As Kernels::Linear. No result depends on the number of threads, nor on the other ops and rows of
// the call, but for what kind of product so many rows get. `scratch` is aligned to 64.
void Linear(ThreadPool& pool, const LinearCode& code, const float* x, int64_t rows,
            std::span<const LinearOp> ops, std::span<std::byte> scratch);

}  // namespace headway::cpu

#endif  // HEADWAY_KERNELS_CPU_LINEAR_H_
