#include "model/arch/program.h"

#include <utility>

namespace headway::arch {

namespace {

// Of the bias of a matrix.
Split BiasSplit(Split matrix) {
  const bool sum = matrix == Split::kQueryColumns || matrix == Split::kInnerColumns;
  return sum ? Split::kOnce : matrix;
}

}  // namespace

TensorId TensorList::Add(TensorSpec spec) {
  specs.push_back(std::move(spec));
  return static_cast<TensorId>(specs.size()) - 1;
}

Norm TensorList::AddNorm(const std::string& name, int64_t width, const NormTraits& traits) {
  Norm norm = {.kind = traits.kind, .eps = traits.eps};
  if (!traits.affine || traits.kind == NormKind::kNone) return norm;
  norm.weight = Add({.name = name + ".weight", .rows = width, .use = Use::kNormWeight});
  if (traits.kind == NormKind::kLayer) {
    norm.bias = Add({.name = name + ".bias", .rows = width, .use = Use::kBias});
  }
  return norm;
}

Linear TensorList::AddLinear(const LinearTraits& traits) {
  Linear linear;
  linear.weight = Add({.name = traits.name + ".weight",
                       .rows = traits.out,
                       .columns = traits.in,
                       .split = traits.split,
                       .fused = traits.fused});
  if (traits.has_bias) {
    linear.bias = Add({.name = traits.name + ".bias",
                       .rows = traits.out,
                       .use = Use::kBias,
                       .split = BiasSplit(traits.split),
                       .fused = traits.fused});
  }
  return linear;
}

}  // namespace headway::arch
