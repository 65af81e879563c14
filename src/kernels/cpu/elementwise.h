// The kernels that touch each element a few times, for one thread and a piece of the work; the
// caller splits over the pool. One table an instruction set; pointers to weights need no alignment.
#ifndef HEADWAY_KERNELS_CPU_ELEMENTWISE_H_
#define HEADWAY_KERNELS_CPU_ELEMENTWISE_H_

#include <cstddef>
#include <cstdint>

#include "base/types.h"
#include "kernels/cpu/isa.h"
#include "kernels/elementwise.h"
#include "kernels/linear.h"
#include "kernels/logits.h"

namespace headway::cpu {

struct Elementwise {
  // to[i] = f32(from[i])
  void (*to_f32)(const std::byte* from, DType dtype, int64_t count, float* to);
  // to[i] += f32(from[i])
  void (*add_f32)(const std::byte* from, DType dtype, int64_t count, float* to);
  // One row; y may be x.
  void (*norm)(const float* x, const NormView& norm, int64_t width, float* y);
  void (*swiglu)(const float* gate, const float* up, int64_t count, float* y);
  // In place; `kind` is kGelu or kGeluTanh.
  void (*gelu)(LinearResult kind, int64_t count, float* x);
  // One token: `heads` heads of head_dim, cos and sin [half].
  void (*rope)(const float* cos, const float* sin, int half, int heads, int head_dim, float* x);
  // Kernels::Score of one item.
  Scored (*score)(const ScoreItem& item);
};

// Requires `isa` in SupportedIsas().
const Elementwise& ElementwiseFor(Isa isa);

}  // namespace headway::cpu

#endif  // HEADWAY_KERNELS_CPU_ELEMENTWISE_H_
