// Eviction on a GPU: logits of keys against a prompt's last queries, their weights, and gathering
// the kept slots.
#ifndef HEADWAY_KERNELS_CUDA_EVICTION_H_
#define HEADWAY_KERNELS_CUDA_EVICTION_H_

#include <cuda_runtime_api.h>

#include <span>

#include "base/types.h"
#include "kernels/eviction.h"

namespace headway::cuda {

// The arguments of Kernels::KeyLogits, and of others that go over keys, that all items share, and
// the dtype of queries.
struct KeyLogitsCall {
  PageFormat format;
  DType activation;
  int group;
  float scale;
};

// Whether the kernels take these: heads of multiples of 8 elements up to 256, pages and queries of
// one dtype that lie on 16 bytes.
bool CanMakeLogits(const KeyLogitsCall& call, std::span<const KeyLogitsItem> items);
bool CanGather(const PageFormat& format, std::span<const GatherSlotsItem> items);
// Of items whose pages are in the format's encoding.
bool CanGatherCodes(const PageFormat& format, std::span<const GatherSlotsItem> items);

// The arguments of Kernels::QueryMoments that all items share, and the dtype of queries.
struct QueryShape {
  DType activation;
  int head_dim;
  int heads;
};
// Whether the kernels take these: as above, weights of the dtype of pages that lie on 16 bytes.
bool CanExpect(const KeyLogitsCall& call, std::span<const ExpectedLogitsItem> items);
bool CanProject(const PageFormat& format, std::span<const ProjectedNormsItem> items);

// Enqueue what Kernels has of these names.
cudaError_t KeyLogits(cudaStream_t stream, const KeyLogitsCall& call,
                      std::span<const KeyLogitsItem> items);
cudaError_t KeyWeights(cudaStream_t stream, std::span<const KeyWeightsItem> items);
cudaError_t GatherSlots(cudaStream_t stream, const PageFormat& format,
                        std::span<const GatherSlotsItem> items);
cudaError_t GatherCodes(cudaStream_t stream, const PageFormat& format,
                        std::span<const GatherSlotsItem> items);
cudaError_t QueryMoments(cudaStream_t stream, const QueryShape& shape,
                         std::span<const QueryMomentsItem> items);
cudaError_t ExpectedLogits(cudaStream_t stream, const KeyLogitsCall& call,
                           std::span<const ExpectedLogitsItem> items);
cudaError_t ValueNorms(cudaStream_t stream, const PageFormat& format,
                       std::span<const ValueNormsItem> items);
cudaError_t ProjectedNorms(cudaStream_t stream, const PageFormat& format, int group,
                           std::span<const ProjectedNormsItem> items);

}  // namespace headway::cuda

#endif  // HEADWAY_KERNELS_CUDA_EVICTION_H_
