// Decode attention over lossless pages (lossless_codec.h): the kernel that AttendDecode launches
// for them.
#ifndef HEADWAY_KERNELS_CUDA_ATTENTION_LOSSLESS_H_
#define HEADWAY_KERNELS_CUDA_ATTENTION_LOSSLESS_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/bytes.h"
#include "kernels/cuda/attention_decode_block.h"
#include "kernels/lossless_codec.h"

namespace headway::cuda {

// Escapes that the kernel has room for in a chunk of keys, of which there are 32 at most; chunks
// begin anywhere in a page.
inline constexpr int64_t kLosslessEscapesMax = 512;
constexpr bool CanAttendLossless(const PageFormat& format) {
  return lossless::Takes(format) && lossless::EscapeEntries(format.page_slots, format.head_dim) *
                                            (CeilDiv(31, format.page_slots) + 1) <=
                                        kLosslessEscapesMax;
}

// A launch of `blocks` blocks over items with parameters, `block_queries` (8 or 16) queries each.
// The states are those of LaunchMma over the pages that were encoded, bit for bit.
cudaError_t LaunchLossless(cudaStream_t stream, const DecodeBatch& batch, int block_queries,
                           int blocks);

}  // namespace headway::cuda

#endif  // HEADWAY_KERNELS_CUDA_ATTENTION_LOSSLESS_H_
