#include "kernels/cpu/linear.h"

#include <algorithm>

#include "base/bytes.h"
#include "base/check.h"
#include "kernels/cpu/gemm_f32.h"
#include "kernels/cpu/matvec.h"

namespace headway::cpu {
namespace {

// A piece of a matrix that a thread reads at a time: long enough for the prefetchers and to hide
// the hand-out of pieces, short enough to balance two threads over a matrix of a small model.
constexpr int64_t kPieceBytes = 64 * kKiB;

int64_t PieceOutputs(const WeightView& weight) {
  const int64_t row_bytes = weight.in * static_cast<int64_t>(DTypeBytes(weight.dtype));
  return std::max<int64_t>(4, kPieceBytes / std::max<int64_t>(row_bytes, 1) / 4 * 4);
}

int64_t Pieces(const LinearOp& op) { return CeilDiv(op.weight.out, PieceOutputs(op.weight)); }

// All ops in one Run: a decode step has some sixty of them, and each Run costs a barrier.
void FewRows(ThreadPool& pool, Isa isa, const float* x, int64_t rows,
             std::span<const LinearOp> ops) {
  int64_t pieces = 0;
  for (const LinearOp& op : ops) pieces += Pieces(op);
  pool.Run(pieces, 1, [&](int, int64_t begin, int64_t end) {
    for (int64_t piece = begin; piece < end; ++piece) {
      size_t at = 0;
      int64_t index = piece;
      for (; index >= Pieces(ops[at]); ++at) index -= Pieces(ops[at]);
      const int64_t outputs = PieceOutputs(ops[at].weight);
      const int64_t first = index * outputs;
      MatVec(isa, ops[at], x, rows, first, std::min(first + outputs, ops[at].weight.out));
    }
  });
}

// Panels of tokens that are packed, and that a converted block of weights then serves, at a time:
// 256 rows with AVX-512. 512 inputs of them (512 KiB) stay in a level-2 cache; the conversion,
// which each chunk repeats, is a fortieth of the work.
constexpr int64_t kChunkPanels = 8;

// Blocks small enough that every thread gets several, so that none waits long for the last.
int64_t BlockOuts(std::span<const LinearOp> ops, int threads) {
  constexpr int64_t kBlocksPerThread = 8;
  constexpr int64_t kTileOuts = 12;  // of both instruction sets a multiple
  int64_t outs = 0;
  for (const LinearOp& op : ops) outs += op.weight.out;
  return std::clamp(outs / (kBlocksPerThread * threads) / kTileOuts * kTileOuts, kTileOuts,
                    kGemmBlockOuts);
}

// At most kChunkPanels panels.
void ManyRows(ThreadPool& pool, Isa isa, const float* x, int64_t rows,
              std::span<const LinearOp> ops, int64_t row_offset, float* scratch) {
  const int64_t in = ops.front().weight.in;
  const int64_t panel = GemmPanelRows(isa);
  const int64_t panels = CeilDiv(rows, panel);
  float* packed = scratch;
  float* blocks_scratch = packed + panels * panel * in;
  pool.Run(panels, 1, [&](int, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      GemmPackPanel(isa, x + i * panel * in, std::min(panel, rows - i * panel), in,
                    packed + i * panel * in);
    }
  });

  const int64_t block = BlockOuts(ops, pool.threads());
  int64_t blocks = 0;
  for (const LinearOp& op : ops) blocks += CeilDiv(op.weight.out, block);
  pool.Run(blocks, 1, [&](int thread, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      size_t at = 0;
      int64_t index = i;
      for (; index >= CeilDiv(ops[at].weight.out, block); ++at) {
        index -= CeilDiv(ops[at].weight.out, block);
      }
      LinearOp op = ops[at];
      op.y += row_offset * op.y_stride;
      GemmBlock(isa, op, packed, rows, index * block, std::min((index + 1) * block, op.weight.out),
                blocks_scratch + thread * GemmScratchFloats(isa, rows));
    }
  });
}

}  // namespace

int64_t LinearScratchBytes(Isa isa, const KernelLimits& limits, int threads) {
  const int64_t panel = GemmPanelRows(isa);
  const int64_t panels = std::min(kChunkPanels, CeilDiv(limits.rows, panel));
  const int64_t floats =
      panels * panel * limits.max_in + threads * GemmScratchFloats(isa, panels * panel);
  return floats * static_cast<int64_t>(sizeof(float));
}

void Linear(ThreadPool& pool, Isa isa, const float* x, int64_t rows, std::span<const LinearOp> ops,
            std::span<std::byte> scratch) {
  if (rows <= 0 || ops.empty()) return;
  const int64_t in = ops.front().weight.in;
  for (const LinearOp& op : ops) HEADWAY_CHECK(op.weight.in == in);
  if (rows <= kMatVecRows) return FewRows(pool, isa, x, rows, ops);
  const KernelLimits used = {.rows = rows, .max_in = in};
  HEADWAY_CHECK(static_cast<int64_t>(scratch.size()) >=
                LinearScratchBytes(isa, used, pool.threads()));
  const int64_t chunk = kChunkPanels * GemmPanelRows(isa);
  for (int64_t row = 0; row < rows; row += chunk) {
    ManyRows(pool, isa, x + row * in, std::min(chunk, rows - row), ops, row,
             reinterpret_cast<float*>(scratch.data()));
  }
}

}  // namespace headway::cpu
