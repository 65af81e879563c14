#include "kernels/cpu/gemm_f32.h"

#include <algorithm>
#include <cstring>

#include "base/bytes.h"
#include "base/check.h"
#include "kernels/cpu/hwy_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/gemm_f32.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "hwy/highway.h"
#include "kernels/cpu/load-inl.h"

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
constexpr int kLanes = static_cast<int>(HWY_LANES(float));

// A tile of kVecs vectors of tokens × kOuts outputs is held in registers: 24 of 32, or 12 of 16,
// beside the vectors loaded. kOuts is a multiple of 4 for the stores.
constexpr int kVecs = HWY_TARGET == HWY_AVX2 ? 3 : 2;
constexpr int kOuts = HWY_TARGET == HWY_AVX2 ? 4 : 12;
constexpr int kPanel = kVecs * kLanes;
static_assert(kGemmBlockOuts % kOuts == 0);

// Transposes each 4×4 block: block b of the result i holds (v0, v1, v2, v3)[4 b + i].
HWY_INLINE void Transpose4(V v0, V v1, V v2, V v3, V* result) {
  const D d;
  const hn::RepartitionToWide<D> dw;
  const auto low01 = hn::BitCast(dw, hn::InterleaveLower(d, v0, v1));
  const auto low23 = hn::BitCast(dw, hn::InterleaveLower(d, v2, v3));
  const auto high01 = hn::BitCast(dw, hn::InterleaveUpper(d, v0, v1));
  const auto high23 = hn::BitCast(dw, hn::InterleaveUpper(d, v2, v3));
  result[0] = hn::BitCast(d, hn::InterleaveLower(dw, low01, low23));
  result[1] = hn::BitCast(d, hn::InterleaveUpper(dw, low01, low23));
  result[2] = hn::BitCast(d, hn::InterleaveLower(dw, high01, high23));
  result[3] = hn::BitCast(d, hn::InterleaveUpper(dw, high01, high23));
}

// Writes, or adds, block b of v to the four floats at to + 4 * b * stride.
template <bool kAdd, class DV>
HWY_INLINE void StoreBlocks(DV d, hn::Vec<DV> v, float* to, int64_t stride) {
  constexpr int64_t kSize = static_cast<int64_t>(hn::MaxLanes(DV()));
  if constexpr (kSize == 4) {
    hn::StoreU(kAdd ? hn::Add(v, hn::LoadU(d, to)) : v, d, to);
  } else {
    const hn::Half<DV> half;
    StoreBlocks<kAdd>(half, hn::LowerHalf(half, v), to, stride);
    StoreBlocks<kAdd>(half, hn::UpperHalf(half, v), to + kSize / 2 * stride, stride);
  }
}

// to[c * to_stride + r] = (or +=) rows[r][c], r < 4, c < kLanes.
template <bool kAdd>
HWY_INLINE void StoreTransposed(V v0, V v1, V v2, V v3, float* to, int64_t to_stride) {
  const D d;
  V transposed[4];
  Transpose4(v0, v1, v2, v3, transposed);
  for (int i = 0; i < 4; ++i) StoreBlocks<kAdd>(d, transposed[i], to + i * to_stride, to_stride);
}

void PackPanel(const float* HWY_RESTRICT x, int64_t rows, int64_t in, float* HWY_RESTRICT packed) {
  const D d;
  for (int64_t row = 0; row < kPanel; row += 4) {
    float* to = packed + row;
    int64_t k = 0;
    if (row + 4 <= rows) {
      const float* from = x + row * in;
      for (; k + kLanes <= in; k += kLanes) {
        StoreTransposed<false>(hn::LoadU(d, from + k), hn::LoadU(d, from + in + k),
                               hn::LoadU(d, from + 2 * in + k), hn::LoadU(d, from + 3 * in + k),
                               to + k * kPanel, kPanel);
      }
    }
    for (; k < in; ++k) {
      for (int64_t i = 0; i < 4; ++i) {
        to[k * kPanel + i] = row + i < rows ? x[(row + i) * in + k] : 0.0f;
      }
    }
  }
}

// Where a tile of sums goes.
struct Output {
  float* y = nullptr;
  int64_t stride = 0;
  int64_t rows = 0;  // the tile's tokens and outputs that are there
  int64_t outs = 0;
  bool add = false;
};

// The sums of a tile at the edge of y go through a buffer.
template <int kV>
HWY_INLINE void StoreEdge(const V (&sums)[kOuts][kV], const Output& to) {
  HWY_ALIGN float tile[kV * kLanes * kOuts];
  for (int v = 0; v < kV; ++v) {
    for (int o = 0; o < kOuts; o += 4) {
      StoreTransposed<false>(sums[o][v], sums[o + 1][v], sums[o + 2][v], sums[o + 3][v],
                             tile + v * kLanes * kOuts + o, kOuts);
    }
  }
  for (int64_t row = 0; row < to.rows; ++row) {
    for (int64_t o = 0; o < to.outs; ++o) {
      float& y = to.y[row * to.stride + o];
      y = to.add ? y + tile[row * kOuts + o] : tile[row * kOuts + o];
    }
  }
}

template <bool kAdd, int kV>
HWY_INLINE void StoreTile(const V (&sums)[kOuts][kV], const Output& to) {
  for (int v = 0; v < kV; ++v) {
    for (int o = 0; o < kOuts; o += 4) {
      StoreTransposed<kAdd>(sums[o][v], sums[o + 1][v], sums[o + 2][v], sums[o + 3][v],
                            to.y + v * kLanes * to.stride + o, to.stride);
    }
  }
}

// kV vectors of tokens, x [depth][kPanel], against kOuts outputs, w [kOuts][kWeightStride]; the
// sums begin at init [kOuts].
template <int kV>
void Tile(const float* HWY_RESTRICT x, const float* HWY_RESTRICT w, int64_t depth,
          const float* HWY_RESTRICT init, const Output& to) {
  const D d;
  V sums[kOuts][kV];
  for (int o = 0; o < kOuts; ++o) {
    for (int v = 0; v < kV; ++v) sums[o][v] = hn::Set(d, init[o]);
  }
  for (int64_t k = 0; k < depth; ++k) {
    V tokens[kV];
    for (int v = 0; v < kV; ++v) tokens[v] = hn::Load(d, x + k * kPanel + v * kLanes);
    for (int o = 0; o < kOuts; ++o) {
      const V weight = hn::Set(d, w[o * kWeightStride + k]);
      for (int v = 0; v < kV; ++v) sums[o][v] = hn::MulAdd(weight, tokens[v], sums[o][v]);
    }
  }
  if (to.rows < kV * kLanes || to.outs < kOuts) {
    StoreEdge<kV>(sums, to);
  } else if (to.add) {
    StoreTile<true, kV>(sums, to);
  } else {
    StoreTile<false, kV>(sums, to);
  }
}

template <DType kDType>
void ConvertRow(const std::byte* data, int64_t index, int64_t count, float* HWY_RESTRICT to) {
  const D d;
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    hn::Store(LoadF32<kDType>(d, data, index + i), d, to + i);
  if (i < count) hn::Store(LoadF32Tail<kDType>(d, data, index + i, count - i), d, to + i);
}

// Inputs [k, k + depth) of outputs [begin, end) in f32; rows of zero fill the last tile.
void ConvertWeights(const WeightView& weight, int64_t begin, int64_t end, int64_t k, int64_t depth,
                    float* to) {
  for (int64_t out = begin; out < end; ++out, to += kWeightStride) {
    const int64_t index = out * weight.in + k;
    switch (weight.dtype) {
      case DType::kF32:
        ConvertRow<DType::kF32>(weight.data, index, depth, to);
        break;
      case DType::kF16:
        ConvertRow<DType::kF16>(weight.data, index, depth, to);
        break;
      case DType::kBF16:
        ConvertRow<DType::kBF16>(weight.data, index, depth, to);
        break;
    }
  }
  for (int64_t out = end - begin; out % kOuts != 0; ++out, to += kWeightStride) {
    std::memset(to, 0, static_cast<size_t>(depth) * sizeof(float));
  }
}

// One panel, `rows` of which are there, against all tiles of converted weights.
void PanelTiles(const float* x, const float* w, int64_t depth, const float* init,
                const Output& block) {
  for (int64_t out = 0; out < block.outs; out += kOuts) {
    Output to = block;
    to.y += out;
    to.outs = std::min<int64_t>(kOuts, block.outs - out);
    const float* weights = w + out * kWeightStride;
    // A last panel with few tokens computes only the vectors that hold some.
    if (block.rows > 2 * kLanes) {
      Tile<kVecs>(x, weights, depth, init + out, to);
    } else if (block.rows > kLanes) {
      Tile<2>(x, weights, depth, init + out, to);
    } else {
      Tile<1>(x, weights, depth, init + out, to);
    }
  }
}

void Block(const LinearOp& op, const float* packed, int64_t rows, int64_t begin, int64_t end,
           float* scratch) {
  const int64_t in = op.weight.in;
  float init[kGemmBlockOuts] = {};
  if (op.bias != nullptr) std::copy(op.bias + begin, op.bias + end, init);
  for (int64_t k = 0; k < in; k += kDepth) {
    const int64_t depth = std::min(kDepth, in - k);
    ConvertWeights(op.weight, begin, end, k, depth, scratch);
    for (int64_t row = 0; row < rows; row += kPanel) {
      const Output to = {.y = op.y + row * op.y_stride + begin,
                         .stride = op.y_stride,
                         .rows = std::min<int64_t>(kPanel, rows - row),
                         .outs = end - begin,
                         .add = op.accumulate || k > 0};
      PanelTiles(packed + row * in + k * kPanel, scratch, depth, init, to);
    }
    std::fill(std::begin(init), std::end(init), 0.0f);
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

int64_t GemmScratchFloats() { return kGemmBlockOuts * kWeightStride; }

int64_t GemmPanelRows(Isa isa) {
  return isa == Isa::kAvx2 ? N_AVX2::Gemm::kPanelRows : N_AVX3::Gemm::kPanelRows;
}

void GemmPackPanel(Isa isa, const float* x, int64_t rows, int64_t in, float* packed) {
  HEADWAY_CHECK(rows <= GemmPanelRows(isa));
  if (isa == Isa::kAvx2) return N_AVX2::Gemm::Pack(x, rows, in, packed);
  N_AVX3::Gemm::Pack(x, rows, in, packed);
}

void GemmBlock(Isa isa, const LinearOp& op, const float* packed, int64_t rows, int64_t begin,
               int64_t end, float* scratch) {
  HEADWAY_CHECK(end - begin <= kGemmBlockOuts);
  if (isa == Isa::kAvx2) return N_AVX2::Gemm::Compute(op, packed, rows, begin, end, scratch);
  N_AVX3::Gemm::Compute(op, packed, rows, begin, end, scratch);
}

}  // namespace headway::cpu
#endif  // HWY_ONCE
