// Kernels::Sample as sampler.h tells it: by sorting.
#ifndef HEADWAY_KERNELS_REF_REF_SAMPLING_H_
#define HEADWAY_KERNELS_REF_REF_SAMPLING_H_

#include "kernels/kernels.h"

namespace headway::ref {

Sampled Sample(const SampleItem& item);

}  // namespace headway::ref

#endif  // HEADWAY_KERNELS_REF_REF_SAMPLING_H_
