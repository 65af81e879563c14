// Products of activations and weights, with what may be fused before and behind them.
#ifndef HEADWAY_KERNELS_LINEAR_H_
#define HEADWAY_KERNELS_LINEAR_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "device/device.h"
#include "kernels/elementwise.h"
#include "kernels/weight_view.h"

namespace headway {

// What becomes of a product.
enum class LinearResult : uint8_t {
  kActivation,  // an activation
  kRelu,        // one behind ReLU: negative ones become 0
  kGelu,        // one behind GELU: x * (1 + erf(x / sqrt(2))) / 2
  kGeluTanh,    // its approximation: x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x³))) / 2
  kFloat,       // f32 (logits)
  kAddFloat,    // f32 added to what is there (the residual stream)
};
constexpr bool IsActivation(LinearResult result) {
  return result != LinearResult::kFloat && result != LinearResult::kAddFloat;
}
constexpr bool IsGelu(LinearResult result) {
  return result == LinearResult::kGelu || result == LinearResult::kGeluTanh;
}

// y [rows, out] = x [rows, in] · weight^T + bias.
struct LinearOp {
  WeightView weight;
  const float* bias = nullptr;  // [out] or null
  void* y = nullptr;
  int64_t y_stride = 0;  // elements between rows of y
  LinearResult result = LinearResult::kActivation;
};

// The operand of a product behind a norm: Norm's result for x, the residual stream.
struct NormedInput {
  const float* x = nullptr;  // [rows, in]
  NormView norm;
  int64_t rows = 0;
  void* normed = nullptr;  // [rows, in]: may be overwritten
};

class LinearKernels {
 public:
  virtual ~LinearKernels() = default;
  // All ops read the same x [rows, in].
  virtual void Linear(Stream& stream, const void* x, int64_t rows,
                      std::span<const LinearOp> ops) = 0;
  virtual void NormLinear(Stream& stream, const NormedInput& input,
                          std::span<const LinearOp> ops) = 0;
  // The first half of a gated MLP: gate.y [rows, out] = silu(x · gate) * (x · up), rows contiguous.
  // up.y may be overwritten.
  virtual void GatedLinear(Stream& stream, const void* x, int64_t rows, const LinearOp& gate,
                           const LinearOp& up) = 0;
  virtual void NormGatedLinear(Stream& stream, const NormedInput& input, const LinearOp& gate,
                               const LinearOp& up) = 0;
  // to [bytes] = the weights of a code (kernels/weight_code.h), both on multiples of 16 bytes.
  virtual void ExpandWeights(Stream& stream, const std::byte* code, int64_t bytes,
                             std::byte* to) = 0;
  // Products of many rows leave so many of a GPU's multiprocessors to what runs beside them, until
  // this says otherwise: one that is cut for all of them takes a second turn where some are taken.
  // Their bits may depend on it.
  virtual void LeaveMultiprocessors(int count) { (void)count; }
};

}  // namespace headway

#endif  // HEADWAY_KERNELS_LINEAR_H_
