#include "kernels/cuda/eviction_kernels.h"

#include <vector>

#include "device/cuda/cuda_stream.h"
#include "kernels/cost.h"
#include "kernels/cuda/call.h"
#include "kernels/cuda/eviction.h"

namespace headway::cuda {
namespace {

int64_t BytesOf(DType dtype) { return static_cast<int64_t>(DTypeBytes(dtype)); }

void RefuseEviction(Stream& stream) {
  static_cast<CudaStream&>(stream).Fail(
      Status(StatusCode::kUnsupported,
             "eviction on a GPU takes head sizes of multiples of 8 up to 256, and pages, queries "
             "and weights of one dtype on 16 bytes"));
}

}  // namespace

void EvictionKernels::KeyLogits(Stream& stream, const PageFormat& format, int group, float scale,
                                std::span<const KeyLogitsItem> items) {
  const KeyLogitsCall shared = {format, dtype(), group, scale};
  if (!CanMakeLogits(shared, items)) return RefuseEviction(stream);
  Call call(stream, KeyLogitsCost(format, group, items, BytesOf(dtype())));
  call.Check(cuda::KeyLogits(call.native(), shared, items), "key logits");
}

void EvictionKernels::KeyWeights(Stream& stream, std::span<const KeyWeightsItem> items) {
  Call call(stream, KeyWeightsCost(items));
  call.Check(cuda::KeyWeights(call.native(), items), "key weights");
}

void EvictionKernels::GatherSlots(Stream& stream, const PageFormat& format,
                                  std::span<const GatherSlotsItem> items) {
  std::vector<GatherSlotsItem> plain, codes;
  for (const GatherSlotsItem& item : items) {
    (item.from.params == nullptr ? plain : codes).push_back(item);
  }
  if (!CanGather(format, plain) || !CanGatherCodes(format, codes)) return RefuseEviction(stream);
  Call call(stream, GatherSlotsCost(format, items));
  call.Check(cuda::GatherSlots(call.native(), format, plain), "gathering slots");
  call.Check(cuda::GatherCodes(call.native(), format, codes), "gathering slots");
}

void EvictionKernels::QueryMoments(Stream& stream, const PageFormat& format, int heads,
                                   std::span<const QueryMomentsItem> items) {
  Call call(stream, QueryMomentsCost(format, heads, items, BytesOf(dtype())));
  call.Check(cuda::QueryMoments(call.native(), {dtype(), format.head_dim, heads}, items),
             "query moments");
}

void EvictionKernels::ExpectedLogits(Stream& stream, const PageFormat& format, int group,
                                     float scale, std::span<const ExpectedLogitsItem> items) {
  const KeyLogitsCall shared = {format, dtype(), group, scale};
  if (!CanExpect(shared, items)) return RefuseEviction(stream);
  Call call(stream, ExpectedLogitsCost(format, group, items));
  call.Check(cuda::ExpectedLogits(call.native(), shared, items), "expected logits");
}

void EvictionKernels::ValueNorms(Stream& stream, const PageFormat& format,
                                 std::span<const ValueNormsItem> items) {
  Call call(stream, ValueNormsCost(format, items));
  call.Check(cuda::ValueNorms(call.native(), format, items), "value norms");
}

void EvictionKernels::ProjectedNorms(Stream& stream, const PageFormat& format, int group,
                                     std::span<const ProjectedNormsItem> items) {
  if (!CanProject(format, items)) return RefuseEviction(stream);
  Call call(stream, ProjectedNormsCost(format, group, items));
  call.Check(cuda::ProjectedNorms(call.native(), format, group, items), "projected norms");
}

}  // namespace headway::cuda
