// Operations on rows of the residual stream and of activations: embedding, norms, RoPE, the gate of
// an MLP, conversions.
#ifndef HEADWAY_KERNELS_ELEMENTWISE_H_
#define HEADWAY_KERNELS_ELEMENTWISE_H_

#include <cstdint>
#include <span>

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

class ElementwiseKernels {
 public:
  virtual ~ElementwiseKernels() = default;
  // x [n, table.in] = rows of table [vocab, table.in] chosen by ids; with `add` they are added to
  // x.
  virtual void Embed(Stream& stream, const WeightView& table, std::span<const TokenId> ids,
                     bool add, float* x) = 0;
  // y = activations of the normed x [rows, width].
  virtual void Norm(Stream& stream, const float* x, const NormView& norm, int64_t rows,
                    int64_t width, void* y) = 0;
  // x [rows, width] = the normed x, which stays f32.
  virtual void NormInPlace(Stream& stream, const NormView& norm, int64_t rows, int64_t width,
                           float* x) = 0;
  // NormKind::kRms in place over each head of x [tokens, heads, head_dim], tokens x_stride apart.
  virtual void HeadNorm(Stream& stream, const float* weight, float eps, int64_t tokens, int heads,
                        int head_dim, void* x, int64_t x_stride) = 0;
  // y = silu(gate) * up; y may be gate.
  virtual void SwiGlu(Stream& stream, const void* gate, const void* up, int64_t count, void* y) = 0;
  // Where both dtypes are the same, as they are on a GPU, a copy.
  virtual void Convert(Stream& stream, const ConvertItem& item) = 0;
  // Fills cos and sin [tokens, rotary_dim / 2] with scale * cos and sin of f32(position) *
  // inv_freq, the product rounded to f32 as Transformers does.
  virtual void RopeAngles(Stream& stream, std::span<const int32_t> positions, const float* inv_freq,
                          int rotary_dim, float scale, float* cos, float* sin) = 0;
  // Rotates x [tokens, heads, head_dim] in place, tokens x_stride apart.
  virtual void Rope(Stream& stream, const RopeTable& table, int64_t tokens, int heads, int head_dim,
                    void* x, int64_t x_stride) = 0;
};

}  // namespace headway

#endif  // HEADWAY_KERNELS_ELEMENTWISE_H_
