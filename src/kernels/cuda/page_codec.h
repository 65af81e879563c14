// Encoding closed pages, and decoding them for kernels that know the dtype alone: the numbers of
// kernels/page_codec.h, bit for bit.
#ifndef HEADWAY_KERNELS_CUDA_PAGE_CODEC_H_
#define HEADWAY_KERNELS_CUDA_PAGE_CODEC_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/cache.h"

namespace headway::cuda {

// Enqueues Kernels::EncodePages.
cudaError_t EncodePages(cudaStream_t stream, const PageFormat& format,
                        std::span<const EncodePagesItem> items);

// Keys [begin, begin + count) of an encoded run as rows of the format's dtype, f16 or bf16, rounded
// once from f32.
struct DecodePagesItem {
  PageRun from;
  int heads = 1;
  int64_t begin = 0;
  int64_t count = 0;
  void* k = nullptr;  // [heads, count, head_dim], on 16 bytes
  void* v = nullptr;
  int64_t head_rows = 0;  // from a head's first row to that of the next; 0: count
};
// head_dim is a multiple of 8.
cudaError_t DecodePages(cudaStream_t stream, const PageFormat& format, const DecodePagesItem& item);

// Enqueues LinearKernels::ExpandWeights.
cudaError_t ExpandWeights(cudaStream_t stream, const std::byte* code, int64_t bytes, std::byte* to);

}  // namespace headway::cuda

#endif  // HEADWAY_KERNELS_CUDA_PAGE_CODEC_H_
