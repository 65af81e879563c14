// Attention of few queries: decode, and short runs of tokens such as a draft to be verified. The
// work is bound by reading K and V, so one block reads a split of one KV head once for its whole
// group of query heads.
#ifndef HEADWAY_KERNELS_CUDA_ATTENTION_DECODE_H_
#define HEADWAY_KERNELS_CUDA_ATTENTION_DECODE_H_

#include <cuda_runtime_api.h>

#include <span>

#include "base/types.h"
#include "kernels/attention.h"
#include "kernels/cuda/uploads.h"

namespace headway::cuda {

// True when AttendDecode can do the item: heads of at most 256 elements in multiples of 8, KV and
// activations of one dtype, or closed pages in the format's encoding; pages aligned to 16 bytes,
// parameters to 4; keys neither rotated nor weighed.
bool CanAttendDecode(const PageFormat& format, DType activation, int group,
                     const AttentionParams& params, const AttentionItem& item);

struct DecodeResources {
  cudaStream_t stream = nullptr;
  Uploads* uploads = nullptr;  // for the items of many sequences; null: some launches more
};

// Enqueues Kernels::Attend for such items. The pointers inside the items are the device's; the
// items themselves are copied, into the launches or by an upload.
cudaError_t AttendDecode(const DecodeResources& resources, const PageFormat& format,
                         DType activation, int group, const AttentionParams& params,
                         std::span<const AttentionItem> items);

// Blocks of threads that the current device runs at once, each over a part of a KV head's closed
// pages with up to 8 queries; 0 where it does not say, or where they are not told apart by speed.
int DecodeBlocksAtOnce(DType dtype, Encoding encoding, int head_dim);

}  // namespace headway::cuda

#endif  // HEADWAY_KERNELS_CUDA_ATTENTION_DECODE_H_
