// Operations on rows of the residual stream and of activations: embedding, norms, RoPE, the gate of
// an MLP, conversions.
#ifndef HEADWAY_KERNELS_ELEMENTWISE_H_
#define HEADWAY_KERNELS_ELEMENTWISE_H_

#include <cstdint>
#include <span>

#include "base/bytes.h"
#include "base/types.h"
#include "device/device.h"
#include "kernels/weight_view.h"

namespace headway {

// A norm over the last dimension of the residual stream; sums are f32 or wider.
enum class NormKind : uint8_t {
  kNone,   // y = x
  kRms,    // y = x / sqrt(mean(x²) + eps) * weight
  kLayer,  // y = (x - mean(x)) / sqrt(mean((x - mean(x))²) + eps) * weight + bias
};
struct NormView {
  NormKind kind = NormKind::kRms;
  const float* weight = nullptr;  // [width]; null: ones
  const float* bias = nullptr;    // [width], of kLayer; null: zeros
  float eps = 0.0f;
};

// The rotation angles of a step's tokens: cos and sin [tokens, rotary_dim / 2], already scaled.
// With a rotary_dim of 0 nothing rotates, and cos and sin are not read.
struct RopeTable {
  const float* cos = nullptr;
  const float* sin = nullptr;
  int rotary_dim = 0;  // the first rotary_dim elements of a head rotate, in halves (i, i + dim / 2)
};

// How an angle is made of a position and a frequency. A product rounded to f32, as Transformers has
// it, is off by up to 2^-25 of itself: 0.03 at a million tokens.
enum class RopeProduct : uint8_t { kRounded, kExact };
constexpr double RopeAngle(RopeProduct product, int32_t position, float inv_freq) {
  return product == RopeProduct::kExact ? static_cast<double>(position) * double{inv_freq}
                                        // 31 bits times 24: exact below 2^29
                                        : double{static_cast<float>(position) * inv_freq};
}

// A step's angles: cos and sin [tokens, rotary_dim / 2] become scale * cos and sin of position *
// inv_freq.
struct RopeAnglesItem {
  std::span<const int32_t> positions;  // [tokens]
  const float* inv_freq = nullptr;     // [rotary_dim / 2]
  int rotary_dim = 0;
  float scale = 1.0f;
  RopeProduct product = RopeProduct::kRounded;
  float* cos = nullptr;
  float* sin = nullptr;
};

// Heads that change in place: activations x [tokens, heads, head_dim], tokens stride elements
// apart.
struct HeadRows {
  void* x = nullptr;
  int64_t tokens = 0;
  int heads = 0;
  int head_dim = 0;
  int64_t stride = 0;
};

// What becomes of the rows that Embed looks up: x, or a part of the sum in x.
enum class EmbedResult : uint8_t { kWrite, kAdd };

// Rows of activations, or of what a cache keeps of them, in another dtype.
struct ConvertItem {
  const void* from = nullptr;  // [rows, width], rows from_stride elements apart
  DType from_dtype = DType::kF32;
  int64_t from_stride = 0;
  void* to = nullptr;  // the same, rounded to the nearest, ties to even
  DType to_dtype = DType::kF32;
  int64_t to_stride = 0;
  int64_t rows = 0;
  int64_t width = 0;
};

// Activations x [rows, width], in blocks of `every` rows, the last one perhaps shorter. The first
// row of a block becomes that of `exact`, and by what it changed every row of the block changes
// (Willette et al., "Delta Attention", 2025).
struct CorrectRowsItem {
  void* x = nullptr;
  int64_t rows = 0;
  int64_t width = 0;
  int64_t every = 1;
  const float* exact = nullptr;  // [blocks, width]

  int64_t blocks() const { return CeilDiv(rows, every); }
};

class ElementwiseKernels {
 public:
  virtual ~ElementwiseKernels() = default;
  // x [n, table.in] = rows of table [vocab, table.in] chosen by ids, or x plus these rows.
  virtual void Embed(Stream& stream, const WeightView& table, std::span<const TokenId> ids,
                     EmbedResult result, float* x) = 0;
  // y = activations of the normed x [rows, width].
  virtual void Norm(Stream& stream, const float* x, const NormView& norm, int64_t rows,
                    int64_t width, void* y) = 0;
  // x [rows, width] = the normed x, which stays f32.
  virtual void NormInPlace(Stream& stream, const NormView& norm, int64_t rows, int64_t width,
                           float* x) = 0;
  // NormKind::kRms over each head, with weight [head_dim].
  virtual void HeadNorm(Stream& stream, const float* weight, float eps, const HeadRows& rows) = 0;
  // y = silu(gate) * up; y may be gate.
  virtual void SwiGlu(Stream& stream, const void* gate, const void* up, int64_t count, void* y) = 0;
  // Where both dtypes are the same, as they are on a GPU, a copy.
  virtual void Convert(Stream& stream, const ConvertItem& item) = 0;
  virtual void CorrectRows(Stream& stream, const CorrectRowsItem& item) = 0;
  virtual void RopeAngles(Stream& stream, const RopeAnglesItem& item) = 0;
  // Rotates each head by the angles of its token.
  virtual void Rope(Stream& stream, const RopeTable& table, const HeadRows& rows) = 0;
};

}  // namespace headway

#endif  // HEADWAY_KERNELS_ELEMENTWISE_H_
