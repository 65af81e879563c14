// The part of CudaKernels that evicts.
#ifndef HEADWAY_KERNELS_CUDA_EVICTION_KERNELS_H_
#define HEADWAY_KERNELS_CUDA_EVICTION_KERNELS_H_

#include <span>

#include "base/types.h"
#include "kernels/kernels.h"

namespace headway::cuda {

class EvictionKernels : public Kernels {
 public:
  void KeyLogits(Stream& stream, const PageFormat& format, int group, float scale,
                 std::span<const KeyLogitsItem> items) override;
  void KeyWeights(Stream& stream, std::span<const KeyWeightsItem> items) override;
  void GatherSlots(Stream& stream, const PageFormat& format,
                   std::span<const GatherSlotsItem> items) override;
  void QueryMoments(Stream& stream, const PageFormat& format, int heads,
                    std::span<const QueryMomentsItem> items) override;
  void ExpectedLogits(Stream& stream, const PageFormat& format, int group, float scale,
                      std::span<const ExpectedLogitsItem> items) override;
  void ValueNorms(Stream& stream, const PageFormat& format,
                  std::span<const ValueNormsItem> items) override;
  void ProjectedNorms(Stream& stream, const PageFormat& format, int group,
                      std::span<const ProjectedNormsItem> items) override;

 protected:
  // That of activations.
  virtual DType dtype() const = 0;
};

}  // namespace headway::cuda

#endif  // HEADWAY_KERNELS_CUDA_EVICTION_KERNELS_H_
