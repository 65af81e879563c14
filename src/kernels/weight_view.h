// Weights as kernels take them: views of memory that somebody else owns.
#ifndef HEADWAY_KERNELS_WEIGHT_VIEW_H_
#define HEADWAY_KERNELS_WEIGHT_VIEW_H_

#include <cstddef>
#include <cstdint>

#include "base/types.h"

namespace headway {

// A weight matrix [out, in] as model files hold it, in memory that the kernels can read.
struct WeightView {
  const std::byte* data = nullptr;
  DType dtype = DType::kBF16;
  int64_t out = 0;
  int64_t in = 0;
};

}  // namespace headway

#endif  // HEADWAY_KERNELS_WEIGHT_VIEW_H_
