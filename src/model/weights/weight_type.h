// WeightType: how a matrix of weights is stored. It is apart from DType, which is what the cache
// and the activations have: weights may come in blocks with scales, of which no element has an
// address.
#ifndef HEADWAY_MODEL_WEIGHTS_WEIGHT_TYPE_H_
#define HEADWAY_MODEL_WEIGHTS_WEIGHT_TYPE_H_

#include <cstdint>

#include "base/types.h"

namespace headway {

enum class WeightType : uint8_t { kF32, kF16, kBF16 };

// The dtype of the elements.
constexpr DType ElementDType(WeightType type) {
  switch (type) {
    case WeightType::kF32:
      return DType::kF32;
    case WeightType::kF16:
      return DType::kF16;
    case WeightType::kBF16:
      break;
  }
  return DType::kBF16;
}
constexpr WeightType WeightTypeOf(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return WeightType::kF32;
    case DType::kF16:
      return WeightType::kF16;
    case DType::kBF16:
      break;
  }
  return WeightType::kBF16;
}

// "f32", "f16", "bf16": fingerprints and sessions have these names.
inline const char* WeightTypeName(WeightType type) { return DTypeName(ElementDType(type)); }

// Bytes of a row of so many columns. Rows follow one another without gaps.
constexpr int64_t RowBytes(WeightType type, int64_t columns) {
  return columns * static_cast<int64_t>(DTypeBytes(ElementDType(type)));
}

}  // namespace headway

#endif  // HEADWAY_MODEL_WEIGHTS_WEIGHT_TYPE_H_
