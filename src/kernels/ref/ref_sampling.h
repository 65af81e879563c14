// Kernels::Sample as sampler.h tells it, by sorting; Kernels::Score token by token.
#ifndef HEADWAY_KERNELS_REF_REF_SAMPLING_H_
#define HEADWAY_KERNELS_REF_REF_SAMPLING_H_

#include "kernels/logits.h"

namespace headway::ref {

Sampled Sample(const SampleItem& item);
Scored Score(const ScoreItem& item);

}  // namespace headway::ref

#endif  // HEADWAY_KERNELS_REF_REF_SAMPLING_H_
