// What a second look computes on one thread, for each instruction set. Whatever the set, the
// results are those of kernels/ref, bit for bit. Internal to the selection files.
#ifndef HEADWAY_KERNELS_CPU_SELECTION_SKETCH_OPS_H_
#define HEADWAY_KERNELS_CPU_SELECTION_SKETCH_OPS_H_

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/isa.h"
#include "kernels/selection.h"
#include "kernels/selection_math.h"

namespace headway::cpu {

// One block of a head, whose mass is to be found for each query of the head's group.
struct SketchTask {
  int head_dim = 0;
  int block_slots = 0;
  const std::byte* codes = nullptr;
  const float* scales = nullptr;
  const std::byte* sketch = nullptr;
  int group = 1;
  const int16_t* queries = nullptr;                  // [group, 2, QueryRow]
  const selection::QueryFactors* factors = nullptr;  // [group]
  // Written: the largest logit and the mass for each query, apart by `stride`.
  float* tops = nullptr;
  uint32_t* masses = nullptr;
  int64_t stride = 0;
  float* largest = nullptr;  // [group], raised to the tops
};

struct SketchOps {
  // The sketch of a block whose summary is given; rows of keys lie one behind the other.
  void (*sketch)(const PageFormat& format, const std::byte* keys, int slots, const std::byte* codes,
                 const float* scales, std::byte* sketch);
  void (*look)(const SketchTask& task);
  // Tops become weights (selection::MassWeight), as f32; returns the sum of these.
  uint64_t (*weigh)(float* tops, const uint32_t* masses, int64_t count, float largest);
};
const SketchOps& SketchOpsFor(Isa isa);

}  // namespace headway::cpu

#endif  // HEADWAY_KERNELS_CPU_SELECTION_SKETCH_OPS_H_
