// Kernels: the stateless maths of a step, over views. `ref/` is the plain definition, `cpu/` the
// fast implementation for CPUs; an accelerator adds another. All calls enqueue on a compute stream
// and return; shapes are in brackets, innermost last, rows contiguous unless a stride is given.
//
// The residual stream, norms, sums, softmax and partial states are f32. Weights and KV pages keep
// the dtype of the model. What passes between the steps of a layer (normed rows, q, k, v, the MLP's
// inside) is in the kernels' activation dtype, which ActivationDType names: pointers to it are
// void*, and their strides count elements.
//
// Each kind of operation is an interface with a header of its own; Kernels is all of them.
// README.md says what an implementation may assume of its arguments.
#ifndef HEADWAY_KERNELS_KERNELS_H_
#define HEADWAY_KERNELS_KERNELS_H_

#include <cstdint>
#include <span>
#include <string>

#include "device/device.h"
#include "headway/status.h"
#include "kernels/attention.h"
#include "kernels/cache.h"
#include "kernels/elementwise.h"
#include "kernels/eviction.h"
#include "kernels/linear.h"
#include "kernels/logits.h"
#include "kernels/pages.h"
#include "kernels/selection.h"
#include "kernels/sizes.h"
#include "kernels/weight_view.h"

namespace headway {

class Kernels : public KernelSizes,
                public ElementwiseKernels,
                public LinearKernels,
                public CacheKernels,
                public AttentionKernels,
                public SelectionKernels,
                public EvictionKernels,
                public LogitsKernels {
 public:
  virtual std::string name() const = 0;  // "cpu avx512", "cpu amx", "ref"
  // Takes the scratch memory. Before the first step.
  virtual Status Prepare(const KernelLimits& limits, Device& device, Budget& budget) = 0;
  // Parts of decode items, all heads' together, that are attended to at once; 0: how many there are
  // does not matter. Behind Prepare.
  virtual int64_t PartsAtOnce() const { return 0; }

  // Operations that are made of others where an implementation has nothing better.
  void NormLinear(Stream& stream, const NormedInput& input, std::span<const LinearOp> ops) override;
  void GatedLinear(Stream& stream, const void* x, int64_t rows, const LinearOp& gate,
                   const LinearOp& up) override;
  void NormGatedLinear(Stream& stream, const NormedInput& input, const LinearOp& gate,
                       const LinearOp& up) override;
  void ExpandWeights(Stream& stream, const std::byte* code, int64_t bytes, std::byte* to) override;
  void Convert(Stream& stream, const ConvertItem& item) override;
  void RopeStoreKv(Stream& stream, const PageFormat& format,
                   std::span<const RopeStoreItem> items) override;
  // An error of the stream, for implementations that take no encoding.
  void EncodePages(Stream& stream, const PageFormat& format,
                   std::span<const EncodePagesItem> items) override;
  // The same for those without selection.
  void Summarize(Stream& stream, const PageFormat& format, const SummaryFormat& summary,
                 std::span<const SummarizeItem> items) override;
  void SelectBlocks(Stream& stream, const PageFormat& format, const SummaryFormat& summary,
                    int group, float scale, std::span<const SelectItem> items) override;
  void AttendBlocks(Stream& stream, const PageFormat& format, const SummaryFormat& summary,
                    int group, float scale, std::span<const AttendBlocksItem> items) override;
  // And for those without eviction.
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
};

}  // namespace headway

#endif  // HEADWAY_KERNELS_KERNELS_H_
