// Sampling on the GPU: of a step's logits, only the tokens leave it.
#ifndef HEADWAY_KERNELS_CUDA_SAMPLING_H_
#define HEADWAY_KERNELS_CUDA_SAMPLING_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>

#include "kernels/cuda/workspace.h"
#include "kernels/logits.h"

namespace headway::cuda {

// logits[penalty.token] of one item as the penalties of `item` say; `penalties` is in device
// memory.
cudaError_t Penalise(cudaStream_t stream, const SampleItem& item, const TokenPenalty* penalties,
                     int64_t count);

// Enqueues Kernels::Sample of at most kSampleRowsMax items of at most the vocab that `memory` is
// for (SampleMemoryBytes), their penalties applied already. `memory` holds zeros before the first
// call, and what a call leaves behind is ready for the next.
cudaError_t Sample(cudaStream_t stream, std::span<const SampleItem> items, std::byte* memory);

}  // namespace headway::cuda

#endif  // HEADWAY_KERNELS_CUDA_SAMPLING_H_
