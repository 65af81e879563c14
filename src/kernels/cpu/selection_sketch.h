// The second look at sketches for CPUs: candidates are ranked by the masses of their keys. Internal
// to the selection files.
#ifndef HEADWAY_KERNELS_CPU_SELECTION_SKETCH_H_
#define HEADWAY_KERNELS_CPU_SELECTION_SKETCH_H_

#include <cstdint>

#include "base/thread_pool.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/selection.h"
#include "kernels/selection_math.h"

namespace headway::cpu {

// The queries' codes, and memory of the look.
struct SketchMemory {
  const int16_t* queries = nullptr;                  // [query heads, 2, QueryRow]
  const selection::QueryFactors* factors = nullptr;  // [query heads]
  int64_t stride = 0;                                // at least the candidates of a head
  float* tops = nullptr;                             // [query heads, stride]
  uint32_t* masses = nullptr;                        // [query heads, stride]
  uint16_t* codes = nullptr;                         // [heads, stride]
  uint32_t* histograms = nullptr;                    // [heads, kWorthCodes]
};

// Chooses among the item's candidates, which are listed.
void SketchLook(ThreadPool& pool, Isa isa, const SelectionCall& call, const SelectItem& item,
                const SketchMemory& memory);

}  // namespace headway::cpu

#endif  // HEADWAY_KERNELS_CPU_SELECTION_SKETCH_H_
