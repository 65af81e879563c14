// y [tokens, outs] in tiles of 16 × 16: tokens are the left operand, rows as they are; weights are
// the right one, which wants pairs of inputs interleaved, so that a block of them is transposed in
// units of two inputs for all tokens. 2 × 2 tiles of y are in registers at a time, and each tile
// that is loaded serves two products.
#include "kernels/cpu/gemm_amx.h"

#include <algorithm>
#include <cstring>

#include "base/bytes.h"
#include "base/check.h"
#include "kernels/cpu/attention_tiles.h"
#include "kernels/cpu/hwy_targets.h"
#include "kernels/cpu/linear.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/gemm_amx.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "hwy/highway.h"
#include "kernels/cpu/bf16-inl.h"
#include "kernels/cpu/transpose-inl.h"

#ifndef HEADWAY_KERNELS_CPU_GEMM_AMX_CONSTANTS
#define HEADWAY_KERNELS_CPU_GEMM_AMX_CONSTANTS
namespace headway::cpu {
constexpr int64_t kTileInputs = kTileRowBytes / 2;  // bf16 in a row of a tile
constexpr int64_t kTileBytes = kTileRows * kTileRowBytes;
// Two tiles of tokens, or of weights, for the same 32 inputs.
constexpr int64_t kPairBytes = 2 * kTileBytes;
static_assert(kTilePanelRows == 2 * kTileRows && kTileBlockOuts == 2 * kTileRows);
// Inputs of one pass: the block's weights for them (32 KiB) stay in the level-1 cache of 48 KiB
// while panels of tokens stream past from the second level.
constexpr int64_t kPassInputs = 512;
constexpr int64_t kPassBytes = kPassInputs / kTileInputs * kPairBytes;
}  // namespace headway::cpu
#endif

#if HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace headway::cpu {
namespace HWY_NAMESPACE {
namespace {

using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;

// [CeilDiv(in, 32)][2 tiles][16 tokens][32 inputs], zero where there is no input or token.
template <class Convert>
void PackPanel(const float* HWY_RESTRICT x, int64_t rows, int64_t in, std::byte* HWY_RESTRICT to) {
  const D d;
  for (int64_t k = 0; k < in; k += kTileInputs) {
    const int64_t left = in - k;
    const auto low_there = hn::FirstN(d, static_cast<size_t>(std::min<int64_t>(left, 16)));
    const auto high_there =
        hn::FirstN(d, static_cast<size_t>(std::clamp<int64_t>(left - 16, 0, 16)));
    for (int64_t row = 0; row < kTilePanelRows; ++row, to += kTileRowBytes) {
      if (row >= rows) {
        std::memset(to, 0, kTileRowBytes);
        continue;
      }
      const float* from = x + row * in + k;
      Convert::ToBF16(hn::MaskedLoad(low_there, d, from), hn::MaskedLoad(high_there, d, from + 16),
                      to);
    }
  }
}

// One tile of weights: outputs [out, out + outs) and inputs [k, k + 32), [16 pairs of inputs][16
// outputs][2], zero where there is none.
void PackTile(const WeightView& weight, int64_t out, int64_t outs, int64_t k, std::byte* to) {
  const D d;
  const int64_t inputs = std::min(kTileInputs, weight.in - k);
  V m[kTileRows];
  for (int64_t i = 0; i < kTileRows; ++i) {
    m[i] = hn::Zero(d);
    if (i >= outs) continue;
    const std::byte* from = weight.data + ((out + i) * weight.in + k) * 2;
    if (inputs == kTileInputs) {
      m[i] = V{_mm512_loadu_ps(from)};
    } else {
      HWY_ALIGN std::byte padded[kTileRowBytes] = {};
      std::memcpy(padded, from, static_cast<size_t>(inputs) * 2);
      m[i] = V{_mm512_load_ps(padded)};
    }
  }
  Transpose(m);
  for (int64_t i = 0; i < kTileRows; ++i) _mm512_store_ps(to + i * kTileRowBytes, m[i].raw);
}

// [depth / 32][2 tiles] of inputs [k, k + depth) and outputs [begin, end).
void PackWeights(const WeightView& weight, int64_t begin, int64_t end, int64_t k, int64_t depth,
                 std::byte* to) {
  for (int64_t at = 0; at < depth; at += kTileInputs) {
    for (int64_t tile = 0; tile < 2; ++tile, to += kTileBytes) {
      const int64_t out = begin + tile * kTileRows;
      PackTile(weight, out, std::min<int64_t>(kTileRows, end - out), k + at, to);
    }
  }
}

// Where 2 × 2 tiles of sums begin and end up: y, or a buffer where y has no room for whole tiles.
struct Sums {
  std::byte* data = nullptr;
  int64_t stride = 0;  // bytes
  std::byte* At(int64_t token_tile, int64_t out_tile) const {
    return data + token_tile * kTileRows * stride + out_tile * kTileRowBytes;
  }
};

enum class Start { kZero, kBias, kSums };

// Pairs of tiles of tokens and of weights, one of each for a step of 32 inputs.
struct Operands {
  const std::byte* x = nullptr;
  const std::byte* w = nullptr;
  int64_t steps = 0;
};

template <class Tiles>
void Multiply(Tiles& tiles, const Operands& operands, Start start, const float* bias,
              const Sums& sums) {
  auto [x, w, steps] = operands;
  if (start == Start::kSums) {
    tiles.template Load<0>(sums.At(0, 0), sums.stride);
    tiles.template Load<1>(sums.At(0, 1), sums.stride);
    tiles.template Load<2>(sums.At(1, 0), sums.stride);
    tiles.template Load<3>(sums.At(1, 1), sums.stride);
  } else if (start == Start::kBias) {
    tiles.template Load<0>(bias, 0);  // the same row sixteen times
    tiles.template Load<1>(bias + kTileRows, 0);
    tiles.template Load<2>(bias, 0);
    tiles.template Load<3>(bias + kTileRows, 0);
  } else {
    tiles.template Zero<0>();
    tiles.template Zero<1>();
    tiles.template Zero<2>();
    tiles.template Zero<3>();
  }
  for (int64_t step = 0; step < steps; ++step, x += kPairBytes, w += kPairBytes) {
    tiles.template Load<4>(x, kTileRowBytes);
    tiles.template Load<6>(w, kTileRowBytes);
    tiles.template MultiplyAdd<0, 4, 6>();
    tiles.template Load<7>(w + kTileBytes, kTileRowBytes);
    tiles.template MultiplyAdd<1, 4, 7>();
    tiles.template Load<5>(x + kTileBytes, kTileRowBytes);
    tiles.template MultiplyAdd<2, 5, 6>();
    tiles.template MultiplyAdd<3, 5, 7>();
  }
  tiles.template Store<0>(sums.At(0, 0), sums.stride);
  tiles.template Store<1>(sums.At(0, 1), sums.stride);
  tiles.template Store<2>(sums.At(1, 0), sums.stride);
  tiles.template Store<3>(sums.At(1, 1), sums.stride);
}

// What lies of y where a panel of tokens and a block of outputs meet.
struct Target {
  float* y = nullptr;
  int64_t stride = 0;
  int64_t rows = 0;
  int64_t outs = 0;

  bool whole() const { return rows == kTilePanelRows && outs == kTileBlockOuts; }
  Sums sums() const {
    return {reinterpret_cast<std::byte*>(y), stride * static_cast<int64_t>(sizeof(float))};
  }
};

// For a target that is not whole, or with biases and old values of y to add: by way of a buffer
// [32, 32].
template <class Tiles>
void MultiplyAtEdge(Tiles& tiles, const Operands& operands, bool add, const float* bias,
                    const Target& target, float* buffer) {
  const D d;
  for (int64_t row = 0; row < kTilePanelRows; ++row) {
    for (int64_t o = 0; o < kTileBlockOuts; o += 16) {
      const auto there =
          hn::FirstN(d, static_cast<size_t>(std::clamp<int64_t>(target.outs - o, 0, 16)));
      V value = bias != nullptr ? hn::LoadU(d, bias + o) : hn::Zero(d);
      if (add && row < target.rows) {
        value = hn::Add(value, hn::MaskedLoad(there, d, target.y + row * target.stride + o));
      }
      hn::Store(value, d, buffer + row * kTileBlockOuts + o);
    }
  }
  const Sums sums = Target{.y = buffer, .stride = kTileBlockOuts}.sums();
  Multiply(tiles, operands, Start::kSums, nullptr, sums);
  for (int64_t row = 0; row < target.rows; ++row) {
    std::memcpy(target.y + row * target.stride, buffer + row * kTileBlockOuts,
                static_cast<size_t>(target.outs) * sizeof(float));
  }
}

template <class Tiles>
void Block(const LinearOp& op, const std::byte* packed, int64_t rows, int64_t begin, int64_t end,
           std::byte* scratch) {
  HEADWAY_CHECK(op.weight.dtype == DType::kBF16 && end - begin <= kTileBlockOuts);
  const int64_t in = op.weight.in;
  const int64_t panel_bytes = TilePanelBytes(in);
  auto* const buffer = reinterpret_cast<float*>(scratch + kPassBytes);
  HWY_ALIGN float biases[kTileBlockOuts] = {};
  if (op.bias != nullptr) std::copy(op.bias + begin, op.bias + end, biases);
  Tiles tiles;
  for (int64_t k = 0; k < in; k += kPassInputs) {
    const int64_t depth = std::min(kPassInputs, in - k);
    const int64_t steps = CeilDiv(depth, kTileInputs);
    PackWeights(op.weight, begin, end, k, depth, scratch);
    const bool add = Adds(op) || k > 0;
    const float* bias = op.bias != nullptr && k == 0 ? biases : nullptr;
    const Start start = add ? Start::kSums : bias != nullptr ? Start::kBias : Start::kZero;
    for (int64_t row = 0; row < rows; row += kTilePanelRows) {
      const Operands operands = {
          .x = packed + row / kTilePanelRows * panel_bytes + k / kTileInputs * kPairBytes,
          .w = scratch,
          .steps = steps};
      const Target target = {.y = FloatRow(op, row) + begin,
                             .stride = op.y_stride,
                             .rows = std::min(kTilePanelRows, rows - row),
                             .outs = end - begin};
      if (target.whole() && !(add && bias != nullptr)) {
        Multiply(tiles, operands, start, bias, target.sums());
      } else {
        MultiplyAtEdge(tiles, operands, add, bias, target, buffer);
      }
    }
  }
}

}  // namespace

extern const TileGemm kAmxGemm;
const TileGemm kAmxGemm = {.pack_panel = PackPanel<ConvertByInstruction>, .block = Block<AmxTiles>};
extern const TileGemm kEmulatedAmxGemm;
const TileGemm kEmulatedAmxGemm = {.pack_panel = PackPanel<ConvertByRounding>,
                                   .block = Block<EmulatedTiles>};

}  // namespace HWY_NAMESPACE
}  // namespace headway::cpu
HWY_AFTER_NAMESPACE();
#endif  // HWY_AVX3

#if HWY_ONCE
namespace headway::cpu {

int64_t TilePanelBytes(int64_t in) { return CeilDiv(in, kTileInputs) * kPairBytes; }

int64_t TileScratchBytes() {
  return kPassBytes + kTilePanelRows * kTileBlockOuts * static_cast<int64_t>(sizeof(float));
}

const TileGemm& AmxGemm() { return N_AVX3::kAmxGemm; }
const TileGemm& EmulatedAmxGemm() { return N_AVX3::kEmulatedAmxGemm; }

}  // namespace headway::cpu
#endif  // HWY_ONCE
