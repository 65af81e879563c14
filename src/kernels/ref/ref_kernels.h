// The definition of every kernel, plain and in f32 with f64 sums: what the fast ones are compared
// with.
#ifndef HEADWAY_KERNELS_REF_REF_KERNELS_H_
#define HEADWAY_KERNELS_REF_REF_KERNELS_H_

#include <memory>

#include "kernels/kernels.h"

namespace headway {

std::unique_ptr<Kernels> NewRefKernels();

}  // namespace headway

#endif  // HEADWAY_KERNELS_REF_REF_KERNELS_H_
