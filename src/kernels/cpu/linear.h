// y = x W^T + b on the pool: few rows as matrix × vector, many as matrix × matrix.
#ifndef HEADWAY_KERNELS_CPU_LINEAR_H_
#define HEADWAY_KERNELS_CPU_LINEAR_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/thread_pool.h"
#include "kernels/cpu/isa.h"
#include "kernels/kernels.h"

namespace headway::cpu {

// Scratch memory that Linear needs for `limits` on `threads` threads.
int64_t LinearScratchBytes(Isa isa, const KernelLimits& limits, int threads);

// As Kernels::Linear. No result depends on the number of threads. `scratch` is aligned to 64.
void Linear(ThreadPool& pool, Isa isa, const float* x, int64_t rows, std::span<const LinearOp> ops,
            std::span<std::byte> scratch);

}  // namespace headway::cpu

#endif  // HEADWAY_KERNELS_CPU_LINEAR_H_
