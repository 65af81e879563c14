// The instruction sets that the CPU kernels are compiled for.
#ifndef HEADWAY_KERNELS_CPU_ISA_H_
#define HEADWAY_KERNELS_CPU_ISA_H_

#include <cstdint>
#include <vector>

namespace headway {

// Each contains those before it: kAvx512 is F, BW, DQ and VL; kAmx adds AVX512-BF16, AMX-TILE and
// AMX-BF16.
enum class Isa : uint8_t { kAvx2, kAvx512, kAmx };

const char* IsaName(Isa isa);  // "avx2", "avx512", "amx"

// What this processor runs and the system permits, best first; empty on a processor without AVX2.
// The first call asks the system for the AMX tile state of this process.
std::vector<Isa> SupportedIsas();

}  // namespace headway

#endif  // HEADWAY_KERNELS_CPU_ISA_H_
