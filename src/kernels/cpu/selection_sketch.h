// The second look of selection for CPUs: what the first one lists is ranked by the masses of its
// keys. Internal to the selection files.
#ifndef HEADWAY_KERNELS_CPU_SELECTION_SKETCH_H_
#define HEADWAY_KERNELS_CPU_SELECTION_SKETCH_H_

#include <cstdint>

#include "base/thread_pool.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/selection.h"
#include "kernels/selection_math.h"

namespace headway::cpu {

// What the first look leaves: the queries' codes, candidates, and memory that it needs no longer.
struct FirstLook {
  const int16_t* queries = nullptr;                  // [query heads, 2, QueryRow]
  const selection::QueryFactors* factors = nullptr;  // [query heads]
  const int32_t* blocks = nullptr;                   // [heads, capacity]
  const int32_t* counts = nullptr;                   // [heads]
  int64_t capacity = 0;
  float* tops = nullptr;           // [query heads, capacity]
  uint32_t* masses = nullptr;      // [query heads, capacity]
  uint16_t* codes = nullptr;       // [heads, capacity]
  uint32_t* histograms = nullptr;  // [heads, kWorthCodes]
};

void SecondLook(ThreadPool& pool, Isa isa, const SelectionCall& call, const SelectItem& item,
                const FirstLook& first);

}  // namespace headway::cpu

#endif  // HEADWAY_KERNELS_CPU_SELECTION_SKETCH_H_
