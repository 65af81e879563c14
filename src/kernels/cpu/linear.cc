#include "kernels/cpu/linear.h"

#include <algorithm>

#include "base/bytes.h"
#include "base/check.h"
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

}  // namespace

int64_t LinearScratchBytes(Isa, const KernelLimits&, int) { return 0; }

void Linear(ThreadPool& pool, Isa isa, const float* x, int64_t rows, std::span<const LinearOp> ops,
            std::span<std::byte>) {
  if (rows <= 0 || ops.empty()) return;
  const int64_t in = ops.front().weight.in;
  for (const LinearOp& op : ops) HEADWAY_CHECK(op.weight.in == in);
  for (int64_t row = 0; row < rows; row += kMatVecRows) {
    LinearOp shifted[8];
    HEADWAY_CHECK(ops.size() <= 8);
    for (size_t i = 0; i < ops.size(); ++i) {
      shifted[i] = ops[i];
      shifted[i].y += row * ops[i].y_stride;
    }
    FewRows(pool, isa, x + row * in, std::min(kMatVecRows, rows - row),
            std::span(shifted, ops.size()));
  }
}

}  // namespace headway::cpu
