// The kernels for CPUs: Highway code chosen at run time for AVX2 or AVX-512, and AMX tiles where
// the processor has them.
#ifndef HEADWAY_KERNELS_CPU_CPU_KERNELS_H_
#define HEADWAY_KERNELS_CPU_CPU_KERNELS_H_

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/thread_pool.h"
#include "device/trace.h"
#include "headway/status.h"
#include "kernels/kernels.h"

namespace headway {

// The instruction sets that this build has and this processor runs, best first: "amx", "avx512",
// "avx2".
std::vector<std::string> CpuIsas();

// `isa` is one of CpuIsas(), or "auto" for the first. `pool` and `trace` (may be null) outlive the
// kernels. kInvalidArgument names the sets that there are.
Result<std::unique_ptr<Kernels>> NewCpuKernels(ThreadPool* pool, Trace* trace,
                                               std::string_view isa);

}  // namespace headway

#endif  // HEADWAY_KERNELS_CPU_CPU_KERNELS_H_
