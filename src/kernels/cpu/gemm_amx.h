// Matrix × matrix on AMX tiles: bf16 weights, tokens rounded to bf16, f32 sums.
#ifndef HEADWAY_KERNELS_CPU_GEMM_AMX_H_
#define HEADWAY_KERNELS_CPU_GEMM_AMX_H_

#include <cstddef>
#include <cstdint>

#include "kernels/linear.h"

namespace headway::cpu {

// Tokens of one packed panel, and outputs of one block of work.
inline constexpr int64_t kTilePanelRows = 32;
inline constexpr int64_t kTileBlockOuts = 32;

// Bytes of one panel, and of scratch that a thread needs for a block. Both aligned to 64.
int64_t TilePanelBytes(int64_t in);
int64_t TileScratchBytes();

struct TileGemm {
  // Packs the panel whose first row is `x`; `rows` at most kTilePanelRows.
  void (*pack_panel)(const float* x, int64_t rows, int64_t in, std::byte* packed);
  // Outputs [begin, end), at most kTileBlockOuts, of `op`, whose weights are bf16, for `rows`
  // tokens in consecutive panels. Sums are added up in order of the inputs, whatever the other
  // outputs and tokens.
  void (*block)(const LinearOp& op, const std::byte* packed, int64_t rows, int64_t begin,
                int64_t end, std::byte* scratch);
};

const TileGemm& AmxGemm();          // requires Isa::kAmx
const TileGemm& EmulatedAmxGemm();  // the same code over plain tiles, for tests; requires kAvx512

}  // namespace headway::cpu

#endif  // HEADWAY_KERNELS_CPU_GEMM_AMX_H_
