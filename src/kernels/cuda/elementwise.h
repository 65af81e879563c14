// What lies between the products of a step: lookups, norms, rotations, and K and V into their
// pages. Everything is enqueued on the stream; every pointer is to memory the device reads.
#ifndef HEADWAY_KERNELS_CUDA_ELEMENTWISE_H_
#define HEADWAY_KERNELS_CUDA_ELEMENTWISE_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>

#include "base/types.h"
#include "kernels/cache.h"
#include "kernels/elementwise.h"
#include "kernels/linear.h"

namespace headway::cuda {

// to [sum of out] = the biases of the ops, one op's behind the other's, as `dtype`; zeros for an op
// without.
cudaError_t JoinBiases(cudaStream_t stream, DType dtype, std::span<const LinearOp> ops, void* to);

// Bytes of the host, read before the call returns, into device memory aligned to 4, whole words of
// it: as parameters of a kernel they arrive sooner than by a copy.
inline constexpr int kSmallBytesMax = 1024;
cudaError_t WriteSmall(cudaStream_t stream, std::span<const std::byte> bytes, void* to);

// x [tokens, table.in] = rows of table [vocab, table.in], which may lie at any even address; with
// `add` they are added to x.
cudaError_t Embed(cudaStream_t stream, const WeightView& table, const TokenId* ids, int64_t tokens,
                  bool add, float* x);

// y = the norm of x [rows, width] as `result`; y may be x where that is f32.
cudaError_t Norm(cudaStream_t stream, DType result, const float* x, const NormView& norm,
                 int64_t rows, int64_t width, void* y);

// y = x / sqrt(mean(x²) + eps) * weight, in place over each head of x [tokens, heads, head_dim],
// tokens x_stride apart.
cudaError_t HeadNorm(cudaStream_t stream, DType activation, const float* weight, float eps,
                     int64_t tokens, int heads, int head_dim, void* x, int64_t x_stride);

// y = silu(gate) * up; y may be gate.
cudaError_t SwiGlu(cudaStream_t stream, DType activation, const void* gate, const void* up,
                   int64_t count, void* y);

// cos and sin [tokens, rotary_dim / 2] of f32(position) * inv_freq, the product rounded to f32,
// times scale.
cudaError_t RopeAngles(cudaStream_t stream, const int32_t* positions, int64_t tokens,
                       const float* inv_freq, int rotary_dim, float scale, float* cos, float* sin);

// Rotates x [tokens, heads, head_dim] in place, tokens x_stride apart.
cudaError_t Rope(cudaStream_t stream, DType activation, const RopeTable& table, int64_t tokens,
                 int heads, int head_dim, void* x, int64_t x_stride);

// K and V into their pages, rounded to nearest, ties to even, if the pages have another dtype.
cudaError_t StoreKv(cudaStream_t stream, DType activation, const PageFormat& format,
                    std::span<const StoreKvItem> items);

// Rope of q and of k of the items, both in place (their k must be memory that may be written), then
// StoreKv: one launch for up to 32 items, as a batch in decode has.
cudaError_t RopeStoreKv(cudaStream_t stream, DType activation, const PageFormat& format,
                        std::span<const RopeStoreItem> items);

}  // namespace headway::cuda

#endif  // HEADWAY_KERNELS_CUDA_ELEMENTWISE_H_
