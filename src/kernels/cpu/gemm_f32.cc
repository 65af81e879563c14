#include "kernels/cpu/gemm_f32.h"

#include <algorithm>
#include <type_traits>

#include "base/bytes.h"
#include "base/check.h"
#include "kernels/cpu/hwy_targets.h"
#include "kernels/cpu/linear.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/gemm_f32.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/cpu/load-inl.h"
#include "kernels/cpu/transpose-inl.h"

#ifndef HEADWAY_KERNELS_CPU_GEMM_F32_CONSTANTS
#define HEADWAY_KERNELS_CPU_GEMM_F32_CONSTANTS
namespace headway::cpu {
// Depth of one pass: 512 inputs of a block of outputs (100 KiB) and of a panel of tokens (64 KiB)
// stay in a level-2 cache together, and the sums go through memory once in 512 multiply-adds.
constexpr int64_t kDepth = 512;
// Floats between rows of converted weights: a power of two would put all rows of a tile in the same
// few sets of the level-1 cache.
constexpr int64_t kWeightStride = kDepth + 16;
}  // namespace headway::cpu
#endif

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace headway::cpu {
namespace HWY_NAMESPACE {
namespace {

using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;

// A tile of kVecs vectors of tokens × kOuts outputs is held in registers: 24 of 32, or 12 of 16,
// beside the vectors loaded.
constexpr int kVecs = HWY_TARGET == HWY_AVX2 ? 3 : 2;
constexpr int kOuts = HWY_TARGET == HWY_AVX2 ? 4 : 12;
constexpr int kPanel = kVecs * kLanes;
static_assert(kGemmBlockOuts % kOuts == 0 && kGemmBlockOuts % kLanes == 0);

void PackPanel(const float* HWY_RESTRICT x, int64_t rows, int64_t in, float* HWY_RESTRICT packed) {
  const D d;
  for (int64_t k = 0; k < in; k += kLanes) {
    const int64_t depth = std::min<int64_t>(kLanes, in - k);
    for (int64_t row = 0; row < kPanel; row += kLanes) {
      V m[kLanes];
      for (int64_t i = 0; i < kLanes; ++i) {
        const float* from = x + (row + i) * in + k;
        if (row + i >= rows) {
          m[i] = hn::Zero(d);
        } else if (depth == kLanes) {
          m[i] = hn::LoadU(d, from);
        } else {
          m[i] = hn::MaskedLoad(hn::FirstN(d, static_cast<size_t>(depth)), d, from);
        }
      }
      Transpose(m);
      for (int64_t i = 0; i < depth; ++i) hn::Store(m[i], d, packed + (k + i) * kPanel + row);
    }
  }
}

// Where the sums of a block of outputs go.
struct Output {
  float* y = nullptr;
  int64_t stride = 0;
  int64_t rows = 0;
  int64_t outs = 0;
  bool add = false;
};

// Writes the sums [outs][kPanel] of a panel of to.rows tokens, a row of y at a time.
void StorePanel(const float* HWY_RESTRICT sums, const Output& to) {
  const D d;
  for (int64_t row = 0; row < to.rows; row += kLanes) {
    const int64_t rows = std::min<int64_t>(kLanes, to.rows - row);
    for (int64_t out = 0; out < to.outs; out += kLanes) {
      V m[kLanes];
      for (int64_t i = 0; i < kLanes; ++i) m[i] = hn::Load(d, sums + (out + i) * kPanel + row);
      Transpose(m);
      const int64_t outs = std::min<int64_t>(kLanes, to.outs - out);
      const auto there = hn::FirstN(d, static_cast<size_t>(outs));
      float* y = to.y + row * to.stride + out;
      for (int64_t i = 0; i < rows; ++i, y += to.stride) {
        if (to.add) m[i] = hn::Add(m[i], hn::MaskedLoad(there, d, y));
        if (outs == kLanes) {
          hn::StoreU(m[i], d, y);
        } else {
          hn::BlendedStore(m[i], there, d, y);
        }
      }
    }
  }
}

template <DType kDType>
HWY_INLINE void ConvertRow(const std::byte* HWY_RESTRICT from, int64_t count,
                           float* HWY_RESTRICT to) {
  const D d;
  int64_t i = 0;
  for (; i + 2 * kLanes <= count; i += 2 * kLanes) {
    hn::Store(LoadF32<kDType>(d, from, i), d, to + i);
    hn::Store(LoadF32<kDType>(d, from, i + kLanes), d, to + i + kLanes);
  }
  for (; i + kLanes <= count; i += kLanes) hn::Store(LoadF32<kDType>(d, from, i), d, to + i);
  if (i < count) hn::Store(LoadF32Tail<kDType>(d, from, i, count - i), d, to + i);
}

// Inputs [k, k + depth) of outputs [begin, end) in f32. The next `depth` inputs are on their way to
// the cache when this returns. Where the last tile has no such outputs, what lies in `to` is
// multiplied, and the sums are not stored.
template <DType kDType>
void ConvertRows(const WeightView& weight, int64_t begin, int64_t end, int64_t k, int64_t depth,
                 float* to) {
  constexpr int64_t kBytes = static_cast<int64_t>(DTypeBytes(kDType));
  constexpr int64_t kLine = 64;
  const int64_t ahead = std::min(depth, weight.in - k - depth) * kBytes;
  for (int64_t out = begin; out < end; ++out, to += kWeightStride) {
    const std::byte* from = weight.data + (out * weight.in + k) * kBytes;
    for (int64_t line = 0; line < ahead; line += kLine) {
      hwy::Prefetch(from + depth * kBytes + line);
    }
    ConvertRow<kDType>(from, depth, to);
  }
}

void ConvertWeights(const WeightView& weight, int64_t begin, int64_t end, int64_t k, int64_t depth,
                    float* to) {
  switch (weight.dtype) {
    case DType::kF32:
      return ConvertRows<DType::kF32>(weight, begin, end, k, depth, to);
    case DType::kF16:
      return ConvertRows<DType::kF16>(weight, begin, end, k, depth, to);
    case DType::kBF16:
      return ConvertRows<DType::kBF16>(weight, begin, end, k, depth, to);
  }
}

// The scratch of a thread: converted weights [outs][kWeightStride], and sums [outs][kPanel] of
// each panel.
struct BlockScratch {
  float* w = nullptr;
  float* sums = nullptr;
};

// The sums of a tile while it is computed.
template <int kV>
using Tile = V[kOuts][kV];

// They begin at the biases, or go on from what an earlier pass left in sums [kOuts][kPanel].
template <int kV>
HWY_INLINE void BeginTile(const float* HWY_RESTRICT init, Tile<kV>& tile) {
  const D d;
  for (int o = 0; o < kOuts; ++o) {
    for (int v = 0; v < kV; ++v) tile[o][v] = hn::Set(d, init[o]);
  }
}

template <int kV>
HWY_INLINE void LoadTile(const float* HWY_RESTRICT sums, Tile<kV>& tile) {
  const D d;
  for (int o = 0; o < kOuts; ++o) {
    for (int v = 0; v < kV; ++v) tile[o][v] = hn::Load(d, sums + o * kPanel + v * kLanes);
  }
}

template <int kV>
HWY_INLINE void StoreTile(const Tile<kV>& tile, float* HWY_RESTRICT sums) {
  const D d;
  for (int o = 0; o < kOuts; ++o) {
    for (int v = 0; v < kV; ++v) hn::Store(tile[o][v], d, sums + o * kPanel + v * kLanes);
  }
}

// tile += kV vectors of tokens, x [depth][kPanel], times kOuts outputs, w [kOuts][kWeightStride].
template <int kV>
HWY_INLINE void MultiplyAdd(const float* HWY_RESTRICT x, const float* HWY_RESTRICT w, int64_t depth,
                            Tile<kV>& tile) {
  const D d;
  // A copy whose address nobody has: only that is sure to live in registers.
  V acc[kOuts][kV];
  for (int o = 0; o < kOuts; ++o) {
    for (int v = 0; v < kV; ++v) acc[o][v] = tile[o][v];
  }
  for (int64_t k = 0; k < depth; ++k) {
    V tokens[kV];
    for (int v = 0; v < kV; ++v) {
      tokens[v] = hn::Load(d, x + k * kPanel + v * kLanes);
      // Panels stream from the level-2 cache, or the third where they are many.
      hwy::Prefetch(x + (k + 16) * kPanel + v * kLanes);
    }
    for (int o = 0; o < kOuts; ++o) {
      const V weight = hn::Set(d, w[o * kWeightStride + k]);
      for (int v = 0; v < kV; ++v) acc[o][v] = hn::MulAdd(weight, tokens[v], acc[o][v]);
    }
  }
  for (int o = 0; o < kOuts; ++o) {
    for (int v = 0; v < kV; ++v) tile[o][v] = acc[o][v];
  }
}

// One pass over `depth` inputs of a block of outputs for one panel, from converted weights. The
// sums go on from those that are there where `init` is null.
template <int kV>
void PanelPass(const float* x, const float* w, int64_t depth, int64_t outs, const float* init,
               float* sums) {
  for (int64_t out = 0; out < outs; out += kOuts) {
    Tile<kV> tile;
    if (init != nullptr) {
      BeginTile<kV>(init + out, tile);
    } else {
      LoadTile<kV>(sums + out * kPanel, tile);
    }
    MultiplyAdd<kV>(x, w + out * kWeightStride, depth, tile);
    StoreTile<kV>(tile, sums + out * kPanel);
  }
}

// All inputs for a panel that is all there is: with no others to share them with, weights are
// converted 256 inputs at a time into the same few lines of the level-1 cache.
template <int kV>
void OnlyPanel(const LinearOp& op, const float* x, int64_t begin, int64_t end, const float* init,
               const BlockScratch& scratch) {
  const auto [w, sums] = scratch;
  constexpr int64_t kOnlyDepth = 256;
  for (int64_t out = begin; out < end; out += kOuts) {
    Tile<kV> tile;
    BeginTile<kV>(init + (out - begin), tile);
    for (int64_t k = 0; k < op.weight.in; k += kOnlyDepth) {
      const int64_t depth = std::min(kOnlyDepth, op.weight.in - k);
      ConvertWeights(op.weight, out, std::min<int64_t>(out + kOuts, end), k, depth, w);
      MultiplyAdd<kV>(x + k * kPanel, w, depth, tile);
    }
    StoreTile<kV>(tile, sums + (out - begin) * kPanel);
  }
}

// Calls run with the number of vectors, as a type, that hold `rows` tokens: a panel with few of
// them computes no more.
template <class Run>
HWY_INLINE void WithVectors(int64_t rows, const Run& run) {
  if (rows > 2 * kLanes) {
    run(std::integral_constant<int, kVecs>());
  } else if (rows > kLanes) {
    run(std::integral_constant<int, 2>());
  } else {
    run(std::integral_constant<int, 1>());
  }
}

void Block(const LinearOp& op, const float* packed, int64_t rows, int64_t begin, int64_t end,
           float* scratch) {
  const int64_t in = op.weight.in;
  const BlockScratch parts = {.w = scratch, .sums = scratch + kGemmBlockOuts * kWeightStride};
  float init[kGemmBlockOuts] = {};
  if (op.bias != nullptr) std::copy(op.bias + begin, op.bias + end, init);
  Output to = {.y = FloatRow(op, 0) + begin,
               .stride = op.y_stride,
               .rows = rows,
               .outs = end - begin,
               .add = Adds(op)};
  if (rows <= kPanel) {
    WithVectors(rows, [&](auto vecs) { OnlyPanel<vecs()>(op, packed, begin, end, init, parts); });
    return StorePanel(parts.sums, to);
  }
  for (int64_t k = 0; k < in; k += kDepth) {
    const int64_t depth = std::min(kDepth, in - k);
    ConvertWeights(op.weight, begin, end, k, depth, parts.w);
    for (int64_t row = 0; row < rows; row += kPanel) {
      const float* x = packed + row * in + k * kPanel;
      float* sums = parts.sums + row * kGemmBlockOuts;
      to.rows = std::min<int64_t>(kPanel, rows - row);
      WithVectors(to.rows, [&](auto vecs) {
        PanelPass<vecs()>(x, parts.w, depth, end - begin, k == 0 ? init : nullptr, sums);
      });
      if (k + depth < in) continue;
      to.y = FloatRow(op, row) + begin;
      StorePanel(sums, to);
    }
  }
}

}  // namespace

struct Gemm {
  static constexpr int64_t kPanelRows = kPanel;
  static void Pack(const float* x, int64_t rows, int64_t in, float* packed) {
    PackPanel(x, rows, in, packed);
  }
  static void Compute(const LinearOp& op, const float* packed, int64_t rows, int64_t begin,
                      int64_t end, float* scratch) {
    Block(op, packed, rows, begin, end, scratch);
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace headway::cpu
HWY_AFTER_NAMESPACE();
#endif  // HWY_AVX2 || HWY_AVX3

#if HWY_ONCE
namespace headway::cpu {

int64_t GemmScratchFloats(Isa isa, int64_t rows) {
  return kGemmBlockOuts * (kWeightStride + RoundUp(rows, GemmPanelRows(isa)));
}

int64_t GemmPanelRows(Isa isa) {
  return isa == Isa::kAvx2 ? N_AVX2::Gemm::kPanelRows : N_AVX3::Gemm::kPanelRows;
}

void GemmPackPanel(Isa isa, const float* x, int64_t rows, int64_t in, float* packed) {
  HEADWAY_CHECK(rows <= GemmPanelRows(isa));
  if (isa == Isa::kAvx2) return N_AVX2::Gemm::Pack(x, rows, in, packed);
  N_AVX3::Gemm::Pack(x, rows, in, packed);
}

void GemmBlock(Isa isa, const LinearOp& op, const PackedRows& x, int64_t begin, int64_t end,
               float* scratch) {
  HEADWAY_CHECK(end - begin <= kGemmBlockOuts);
  if (isa == Isa::kAvx2) return N_AVX2::Gemm::Compute(op, x.data, x.rows, begin, end, scratch);
  N_AVX3::Gemm::Compute(op, x.data, x.rows, begin, end, scratch);
}

}  // namespace headway::cpu
#endif  // HWY_ONCE
