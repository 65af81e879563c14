// Calls: the steps of a program as the kernel calls that run them, found once when a model is made.
// Norms are fused into the products behind them and activations into the products before them,
// where kernels have that. run.h makes the calls.
#ifndef HEADWAY_MODEL_ARCH_CALLS_H_
#define HEADWAY_MODEL_ARCH_CALLS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/kernels.h"
#include "model/arch/program.h"

namespace headway::arch {

enum class CallKind : uint8_t {
  kEmbed,
  kNorm,
  kNormInPlace,
  kHeadNorm,
  kLinear,
  kNormLinear,
  kGatedLinear,
  kNormGatedLinear,
};

struct Call {
  struct Output {
    Linear linear = {};
    Slot to = Slot::kResidual;
    LinearResult result = LinearResult::kActivation;
  };
  static constexpr int kMostOutputs = 3;  // q, k and v

  CallKind kind = CallKind::kLinear;
  Slot at = Slot::kResidual;  // what it reads, or changes in place
  Norm norm = {};             // of kHeadNorm the weight and epsilon alone
  EmbedStep embed = {};       // of kEmbed
  // Of kNorm: the matrix whose input is as wide as the rows; kNoTensor: d_model is.
  TensorId width_of = kNoTensor;
  bool sums = false;  // what it adds to the residual stream is a part of a sum over the ranks
  int outputs = 0;
  std::array<Output, kMostOutputs> output = {};  // of products; of a gated one inner and up
};

// Whether the normed rows are wanted beside what is made of them.
enum class Normed : uint8_t { kDropped, kKept };

// Of the steps of no layer. A program that no kernels run is a bug.
std::vector<Call> Resolve(std::span<const Step> steps, Normed normed);

// Of a layer, cut where the engine attends.
struct LayerCalls {
  std::vector<Call> before;          // q, k and v from the residual stream
  std::vector<Call> before_keeping;  // the same, and kNormed
  std::vector<Call> keys_values;     // k and v alone, from kNormed as before_keeping leaves it
  std::vector<Call> after;           // the residual stream from itself and kAttended
};
LayerCalls ResolveLayer(const LayerProgram& layer, SumRole role = SumRole::kAlone);

}  // namespace headway::arch

#endif  // HEADWAY_MODEL_ARCH_CALLS_H_
