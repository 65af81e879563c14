// Scoring on the GPU: of a token's logits, only what its likelihood is made of leaves it.
#ifndef HEADWAY_KERNELS_CUDA_SCORING_H_
#define HEADWAY_KERNELS_CUDA_SCORING_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <span>

#include "kernels/cuda/workspace.h"
#include "kernels/logits.h"

namespace headway::cuda {

// Enqueues Kernels::Score of at most kScoreRowsMax items. `memory` has kScoreMemoryBytes, whatever
// they hold.
cudaError_t Score(cudaStream_t stream, std::span<const ScoreItem> items, std::byte* memory);

}  // namespace headway::cuda

#endif  // HEADWAY_KERNELS_CUDA_SCORING_H_
