// Selection on a GPU: summaries of blocks of keys, the choice of blocks by a decode query, and
// attention to what is chosen.
#ifndef HEADWAY_KERNELS_CUDA_SELECTION_H_
#define HEADWAY_KERNELS_CUDA_SELECTION_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>

#include "kernels/pages.h"
#include "kernels/selection.h"

namespace headway::cuda {

// What the calls of a model have in common.
struct SelectionShape {
  PageFormat format;
  SummaryFormat summary;
  int group = 1;
  float scale = 1.0f;
  DType activation = DType::kBF16;  // of the queries
};

// For what SupportsSelection (workspace.h) takes. Codes of summaries lie on 8 bytes and scales on
// 8, at any stride that keeps them there; pages as attention has them.
cudaError_t Summarize(cudaStream_t stream, const PageFormat& format, const SummaryFormat& summary,
                      const SummarizeItem& item);
// `alone`: as WaitingKernels says of the stream.
cudaError_t SelectBlocks(cudaStream_t stream, const SelectionShape& shape, const SelectItem& item,
                         bool alone);
// Items with a rest count the parts of KV heads that are done in `arrived`: an element for each
// query head, in memory of the device, 0 before and after the call, and used by one call at a time.
cudaError_t AttendBlocks(cudaStream_t stream, const SelectionShape& shape,
                         const AttendBlocksItem& item, std::span<uint32_t> arrived);

}  // namespace headway::cuda

#endif  // HEADWAY_KERNELS_CUDA_SELECTION_H_
