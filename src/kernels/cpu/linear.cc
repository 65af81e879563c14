#include "kernels/cpu/linear.h"

#include <algorithm>
#include <vector>

#include "base/bytes.h"
#include "base/check.h"
#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/gemm_f32.h"
#include "kernels/cpu/matvec.h"

namespace headway::cpu {
namespace {

// Cuts the outputs of all ops into blocks, numbered through: one Run for all of them saves a
// barrier an op, and a decode step has some sixty ops.
class Blocks {
 public:
  struct Block {
    const LinearOp* op = nullptr;
    int64_t begin = 0;
    int64_t end = 0;
  };

  // Blocks of `outs` outputs.
  Blocks(std::span<const LinearOp> ops, int64_t outs) : ops_(ops), outs_(outs) { Count(); }
  // Blocks of some `bytes` of weights, at least 4 outputs.
  static Blocks OfBytes(std::span<const LinearOp> ops, int64_t bytes) {
    return Blocks(ops, 0, bytes);
  }

  int64_t count() const { return count_; }

  Block At(int64_t index) const {
    for (const LinearOp& op : ops_) {
      const int64_t outs = Outs(op);
      const int64_t blocks = CeilDiv(op.weight.out, outs);
      if (index < blocks) {
        return {&op, index * outs, std::min((index + 1) * outs, op.weight.out)};
      }
      index -= blocks;
    }
    HEADWAY_CHECK(false);
    return {};
  }

 private:
  Blocks(std::span<const LinearOp> ops, int64_t outs, int64_t bytes)
      : ops_(ops), outs_(outs), bytes_(bytes) {
    Count();
  }

  void Count() {
    for (const LinearOp& op : ops_) count_ += CeilDiv(op.weight.out, Outs(op));
  }

  int64_t Outs(const LinearOp& op) const {
    if (outs_ > 0) return outs_;
    const int64_t row_bytes = op.weight.in * static_cast<int64_t>(DTypeBytes(op.weight.dtype));
    return std::max<int64_t>(4, bytes_ / std::max<int64_t>(row_bytes, 1) / 4 * 4);
  }

  std::span<const LinearOp> ops_;
  int64_t outs_;
  int64_t bytes_ = 0;
  int64_t count_ = 0;
};

int64_t TotalOuts(std::span<const LinearOp> ops) {
  int64_t outs = 0;
  for (const LinearOp& op : ops) outs += op.weight.out;
  return outs;
}

// What is left to do with `rows` rows of outputs [begin, end), which lie in a cache still. NaN
// stays: it tells of damaged weights.
void Activate(Isa isa, const LinearOp& op, int64_t rows, int64_t begin, int64_t end) {
  if (op.result == LinearResult::kRelu) {
    for (int64_t row = 0; row < rows; ++row) {
      float* const y = FloatRow(op, row);
      for (int64_t out = begin; out < end; ++out) y[out] = y[out] < 0.0f ? 0.0f : y[out];
    }
  } else if (IsGelu(op.result)) {
    const Elementwise& elementwise = ElementwiseFor(isa);
    for (int64_t row = 0; row < rows; ++row) {
      elementwise.gelu(op.result, end - begin, FloatRow(op, row) + begin);
    }
  }
}

void FewRows(ThreadPool& pool, Isa isa, const float* x, int64_t rows,
             std::span<const LinearOp> ops) {
  // What a thread reads at a time: long enough for the prefetchers and to hide the hand-out of
  // blocks, short enough to balance two threads over a matrix of a small model.
  constexpr int64_t kBlockBytes = 64 * kKiB;
  const Blocks blocks = Blocks::OfBytes(ops, kBlockBytes);
  pool.Run(blocks.count(), 1, [&](int, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const Blocks::Block block = blocks.At(i);
      MatVec(isa, *block.op, x, rows, block.begin, block.end);
      Activate(isa, *block.op, rows, block.begin, block.end);
    }
  });
}

// ---- Many rows, in f32 ----

// Panels of tokens that are packed, and that a converted block of weights then serves, at a time:
// 256 rows with AVX-512. 512 inputs of them (512 KiB) stay in a level-2 cache; the conversion,
// which each chunk repeats, is a fortieth of the work.
constexpr int64_t kChunkPanels = 8;

int64_t F32ChunkRows(Isa isa) { return kChunkPanels * GemmPanelRows(isa); }

int64_t F32ScratchBytes(Isa isa, int64_t rows, int64_t in, int threads) {
  const int64_t packed_rows = RoundUp(std::min(rows, F32ChunkRows(isa)), GemmPanelRows(isa));
  const int64_t floats = packed_rows * in + threads * GemmScratchFloats(isa, packed_rows);
  return floats * static_cast<int64_t>(sizeof(float));
}

// Blocks small enough that every thread gets several, so that none waits long for the last.
int64_t F32BlockOuts(std::span<const LinearOp> ops, int threads) {
  constexpr int64_t kBlocksPerThread = 8;
  constexpr int64_t kTileOuts = 12;  // a multiple of both instruction sets' tiles
  return std::clamp(TotalOuts(ops) / (kBlocksPerThread * threads) / kTileOuts * kTileOuts,
                    kTileOuts, kGemmBlockOuts);
}

// Rows [first, first + count), at most one chunk, of x and of every y.
struct Chunk {
  const float* x = nullptr;
  int64_t first = 0;
  int64_t count = 0;
};

void F32Chunk(ThreadPool& pool, Isa isa, const Chunk& chunk, std::span<const LinearOp> ops,
              float* scratch) {
  const float* const x = chunk.x;
  const int64_t first = chunk.first, rows = chunk.count;
  const int64_t in = ops.front().weight.in;
  const int64_t panel = GemmPanelRows(isa);
  const int64_t panels = CeilDiv(rows, panel);
  float* const packed = scratch;
  float* const block_scratch = packed + panels * panel * in;
  pool.Run(panels, 1, [&](int, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      GemmPackPanel(isa, x + (first + i * panel) * in, std::min(panel, rows - i * panel), in,
                    packed + i * panel * in);
    }
  });
  const Blocks blocks(ops, F32BlockOuts(ops, pool.threads()));
  pool.Run(blocks.count(), 1, [&](int thread, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const Blocks::Block block = blocks.At(i);
      LinearOp op = *block.op;
      op.y = FloatRow(op, first);
      GemmBlock(isa, op, {packed, rows}, block.begin, block.end,
                block_scratch + thread * GemmScratchFloats(isa, panels * panel));
      Activate(isa, op, rows, block.begin, block.end);
    }
  });
}

// ---- Many rows, on tiles ----

// Tokens of a chunk: the more, the less the packing of weights (one part in fifteen here) weighs.
// 512 inputs of them in bf16 are 1 MiB, half of the level-2 cache of processors with tiles.
constexpr int64_t kTileChunkRows = 1024;

int64_t TilesScratchBytes(int64_t rows, int64_t in, int threads) {
  const int64_t panels = CeilDiv(std::min(rows, kTileChunkRows), kTilePanelRows);
  return panels * TilePanelBytes(in) + threads * TileScratchBytes();
}

// Parts that the panels of a chunk are cut into so that all threads have work; no shorter than
// eight panels, because each part packs the weights anew.
int64_t TileRowParts(int64_t blocks, int64_t panels, int threads) {
  constexpr int64_t kPartPanels = 8;
  return std::clamp<int64_t>(CeilDiv(2 * threads, blocks), 1,
                             std::max<int64_t>(1, panels / kPartPanels));
}

void TilesChunk(ThreadPool& pool, const LinearCode& code, const Chunk& chunk,
                std::span<const LinearOp> ops, std::byte* scratch) {
  const float* const x = chunk.x;
  const int64_t first = chunk.first, rows = chunk.count;
  const TileGemm& gemm = *code.tiles;
  const int64_t in = ops.front().weight.in;
  const int64_t panels = CeilDiv(rows, kTilePanelRows);
  const int64_t panel_bytes = TilePanelBytes(in);
  std::byte* const packed = scratch;
  std::byte* const block_scratch = packed + panels * panel_bytes;
  pool.Run(panels, 1, [&](int, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      gemm.pack_panel(x + (first + i * kTilePanelRows) * in,
                      std::min(kTilePanelRows, rows - i * kTilePanelRows), in,
                      packed + i * panel_bytes);
    }
  });
  const Blocks blocks(ops, kTileBlockOuts);
  const int64_t parts = TileRowParts(blocks.count(), panels, pool.threads());
  const int64_t part_panels = CeilDiv(panels, parts);
  pool.Run(blocks.count() * parts, 1, [&](int thread, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const Blocks::Block block = blocks.At(i / parts);
      const int64_t panel = i % parts * part_panels;
      const int64_t row = panel * kTilePanelRows;
      const int64_t count = std::min(part_panels * kTilePanelRows, rows - row);
      if (count <= 0) continue;
      LinearOp op = *block.op;
      op.y = FloatRow(op, first + row);
      gemm.block(op, packed + panel * panel_bytes, count, block.begin, block.end,
                 block_scratch + thread * TileScratchBytes());
      Activate(code.isa, op, count, block.begin, block.end);
    }
  });
}

}  // namespace

LinearCode LinearCodeFor(Isa isa) {
  return {.isa = isa, .tiles = isa == Isa::kAmx ? &AmxGemm() : nullptr};
}

int64_t LinearScratchBytes(const LinearCode& code, const KernelLimits& limits, int threads) {
  const int64_t f32 = F32ScratchBytes(code.isa, limits.rows, limits.max_in, threads);
  if (code.tiles == nullptr) return f32;
  return std::max(f32, TilesScratchBytes(limits.rows, limits.max_in, threads));
}

void Linear(ThreadPool& pool, const LinearCode& code, const float* x, int64_t rows,
            std::span<const LinearOp> ops, std::span<std::byte> scratch) {
  if (rows <= 0 || ops.empty()) return;
  const int64_t in = ops.front().weight.in;
  for (const LinearOp& op : ops) HEADWAY_CHECK(op.weight.in == in);
  if (rows <= kMatVecRows) return FewRows(pool, code.isa, x, rows, ops);
  const KernelLimits used = {.rows = rows, .max_in = in};
  HEADWAY_CHECK(static_cast<int64_t>(scratch.size()) >=
                LinearScratchBytes(code, used, pool.threads()));

  std::vector<LinearOp> on_tiles;
  std::vector<LinearOp> in_f32;
  for (const LinearOp& op : ops) {
    const bool tiles = code.tiles != nullptr && op.weight.dtype == DType::kBF16;
    (tiles ? on_tiles : in_f32).push_back(op);
  }
  const int64_t chunk = F32ChunkRows(code.isa);
  for (int64_t row = 0; row < rows && !in_f32.empty(); row += chunk) {
    F32Chunk(pool, code.isa, {x, row, std::min(chunk, rows - row)}, in_f32,
             reinterpret_cast<float*>(scratch.data()));
  }
  for (int64_t row = 0; row < rows && !on_tiles.empty(); row += kTileChunkRows) {
    TilesChunk(pool, code, {x, row, std::min(kTileChunkRows, rows - row)}, on_tiles,
               scratch.data());
  }
}

}  // namespace headway::cpu
