// Budgets that are a share of all worth: how many blocks have it, found in a histogram of the codes
// of worth by threads that look at four codes each.
#ifndef HEADWAY_KERNELS_CUDA_SELECTION_TOP_P_H_
#define HEADWAY_KERNELS_CUDA_SELECTION_TOP_P_H_

#include <algorithm>
#include <cstdint>

#include "kernels/selection.h"
#include "kernels/selection_math.h"

namespace headway::cuda {

struct TopP {
  uint32_t share;  // SelectionBudget::top_p; 0: a fixed number of blocks
  int32_t least_blocks;

  static TopP Of(const SelectionBudget& budget) {
    if (!budget.takes_top_p()) return {};
    return {budget.top_p, static_cast<int32_t>(std::min(budget.least_blocks, budget.far_blocks))};
  }
};

// Codes `highest` and the three below it, and how often each is there.
struct FourCodes {
  int highest;
  uint32_t counts[4];

  __device__ uint64_t Worth() const {
    uint64_t sum = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      sum += counts[i] * selection::CodeWorth(static_cast<uint32_t>(highest - i));
    }
    return sum;
  }

  // Where the wanted worth is reached within these, *found becomes the number of blocks that have
  // it; `worth` and `blocks` are those of greater codes.
  __device__ void Find(uint64_t wanted, uint64_t worth, uint64_t blocks, uint64_t* found) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint64_t of_code = selection::CodeWorth(static_cast<uint32_t>(highest - i));
      const uint64_t end = worth + counts[i] * of_code;
      if (worth < wanted && wanted <= end) {
        *found = blocks + (wanted - worth + of_code - 1) / of_code;
      }
      worth = end;
      blocks += counts[i];
    }
  }
};

}  // namespace headway::cuda

#endif  // HEADWAY_KERNELS_CUDA_SELECTION_TOP_P_H_
