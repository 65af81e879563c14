// The definition of eviction's kernels, with f64 sums; RefKernels forwards to these. The contracts
// are those of Kernels.
#ifndef HEADWAY_KERNELS_REF_REF_EVICTION_H_
#define HEADWAY_KERNELS_REF_REF_EVICTION_H_

#include <span>

#include "kernels/eviction.h"

namespace headway::ref {

void KeyLogits(const PageFormat& format, int group, float scale,
               std::span<const KeyLogitsItem> items);
void KeyWeights(std::span<const KeyWeightsItem> items);
void GatherSlots(const PageFormat& format, std::span<const GatherSlotsItem> items);
void QueryMoments(const PageFormat& format, int heads, std::span<const QueryMomentsItem> items);
void ExpectedLogits(const PageFormat& format, int group, float scale,
                    std::span<const ExpectedLogitsItem> items);
void ValueNorms(const PageFormat& format, std::span<const ValueNormsItem> items);
void ProjectedNorms(const PageFormat& format, int group, std::span<const ProjectedNormsItem> items);

}  // namespace headway::ref

#endif  // HEADWAY_KERNELS_REF_REF_EVICTION_H_
