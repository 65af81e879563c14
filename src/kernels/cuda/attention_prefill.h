// Attention of many queries on tensor cores, of any shape and visibility: what cuDNN does not do
// (sliding windows, odd lengths and head sizes, scattered pages, soft caps), and all where there is
// no cuDNN.
#ifndef HEADWAY_KERNELS_CUDA_ATTENTION_PREFILL_H_
#define HEADWAY_KERNELS_CUDA_ATTENTION_PREFILL_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/types.h"
#include "kernels/attention.h"

namespace headway::cuda {

// True when AttendTiles can do the item: f16 or bf16, activations and KV alike; heads of at most
// 256 elements in multiples of 8; pages of a power of two of slots; q, K and V on 16 bytes, states
// on 8; one state, keys neither rotated nor weighed.
bool CanAttendTiles(const PageFormat& format, DType activation, int group,
                    const AttentionParams& params, const AttentionItem& item);

// Enqueues Kernels::Attend of such an item. Softmax is in f32; its weights are rounded to the
// activation dtype before they meet V.
cudaError_t AttendTiles(cudaStream_t stream, const PageFormat& format, DType activation, int group,
                        const AttentionParams& params, const AttentionItem& item);

}  // namespace headway::cuda

#endif  // HEADWAY_KERNELS_CUDA_ATTENTION_PREFILL_H_
