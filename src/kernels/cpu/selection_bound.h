// Lists that bound what they leave out (selection_bound.h), for CPUs. Internal to the selection
// files.
#ifndef HEADWAY_KERNELS_CPU_SELECTION_BOUND_H_
#define HEADWAY_KERNELS_CPU_SELECTION_BOUND_H_

#include <cstdint>

#include "kernels/cpu/selection_keys.h"
#include "kernels/selection.h"

namespace headway::cpu {

// The codes of worth of a KV head's blocks, and how often each is there among the far ones.
struct HeadCodes {
  int64_t head = 0;
  const uint16_t* codes = nullptr;
  const uint32_t* histogram = nullptr;
};

// The least code of the far blocks that the head lists.
uint32_t LeastListed(const KeyScores& keys, int group, const SelectItem& item,
                     const HeadCodes& head);

}  // namespace headway::cpu

#endif  // HEADWAY_KERNELS_CPU_SELECTION_BOUND_H_
