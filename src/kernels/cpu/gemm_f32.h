// Matrix × matrix in f32: many tokens against a block of outputs. Vectors run over tokens, so the
// weights are converted to f32 row by row as they lie and each is broadcast; the tokens, which all
// outputs share, are transposed once.
#ifndef HEADWAY_KERNELS_CPU_GEMM_F32_H_
#define HEADWAY_KERNELS_CPU_GEMM_F32_H_

#include <cstdint>

#include "kernels/cpu/isa.h"
#include "kernels/linear.h"

namespace headway::cpu {

// Most outputs of one block, and floats of scratch, aligned to 64, that a thread needs for it with
// `rows` tokens.
inline constexpr int64_t kGemmBlockOuts = 48;
int64_t GemmScratchFloats(Isa isa, int64_t rows);

// Tokens of one panel: x [rows, in] packed is [CeilDiv(rows, panel)][in][panel], zero beyond rows.
int64_t GemmPanelRows(Isa isa);

// Packs the panel whose first row is `x`; `rows` at most GemmPanelRows. `packed` is aligned to 64.
void GemmPackPanel(Isa isa, const float* x, int64_t rows, int64_t in, float* packed);

// Tokens whose panels are packed side by side.
struct PackedRows {
  const float* data = nullptr;
  int64_t rows = 0;
};

// Outputs [begin, end), at most kGemmBlockOuts, of `op` for the packed tokens. Every
// sum is one chain of multiply-adds over the inputs, whatever the block and the panel.
void GemmBlock(Isa isa, const LinearOp& op, const PackedRows& x, int64_t begin, int64_t end,
               float* scratch);

}  // namespace headway::cpu

#endif  // HEADWAY_KERNELS_CPU_GEMM_F32_H_
