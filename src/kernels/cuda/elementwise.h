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
// The same of more, from pinned memory of the host that no kernel writes, all on 16 bytes: read
// while the kernels before are still at work, which a copy would wait for. Up to 15 bytes behind
// them are written, too.
cudaError_t WriteFrom(cudaStream_t stream, std::span<const std::byte> pinned, void* to);

// x [tokens, table.in] = rows of table [vocab, table.in], which may lie at any even address, or x
// plus these rows.
cudaError_t Embed(cudaStream_t stream, const WeightView& table, std::span<const TokenId> ids,
                  EmbedResult result, float* x);

// Rows of the residual stream: x [rows, width].
struct ResidualRows {
  const float* x = nullptr;
  int64_t rows = 0;
  int64_t width = 0;
};
// y = the norm of each row as `result`; y may be x where that is f32.
cudaError_t Norm(cudaStream_t stream, const ResidualRows& from, const NormView& norm, DType result,
                 void* y);

// x = x / sqrt(mean(x²) + eps) * weight over each head.
cudaError_t HeadNorm(cudaStream_t stream, DType activation, const float* weight, float eps,
                     const HeadRows& rows);

// y = silu(gate) * up; y may be gate.
cudaError_t SwiGlu(cudaStream_t stream, DType activation, const void* gate, const void* up,
                   int64_t count, void* y);

// Rows of activations x [rows, width], `stride` elements apart.
struct ActivationRows {
  void* x = nullptr;
  int64_t rows = 0;
  int64_t width = 0;
  int64_t stride = 0;
};
// x = GELU of x; `kind` is kGelu or kGeluTanh.
cudaError_t GeluInPlace(cudaStream_t stream, DType activation, LinearResult kind,
                        const ActivationRows& rows);

cudaError_t CorrectRows(cudaStream_t stream, DType activation, const CorrectRowsItem& item);

cudaError_t RopeAngles(cudaStream_t stream, const RopeAnglesItem& item);

// Rotates each head by the angles of its token.
cudaError_t Rope(cudaStream_t stream, DType activation, const RopeTable& table,
                 const HeadRows& rows);

// K and V into their pages, rounded to nearest, ties to even, if the pages have another dtype.
cudaError_t StoreKv(cudaStream_t stream, DType activation, const PageFormat& format,
                    std::span<const StoreKvItem> items);

// Rope of q and of k of the items, both in place (their k must be memory that may be written), then
// StoreKv: one launch for up to 32 items, as a batch in decode has.
cudaError_t RopeStoreKv(cudaStream_t stream, DType activation, const PageFormat& format,
                        std::span<const RopeStoreItem> items);

// Keys of pages, rotated into others.
cudaError_t TurnKeys(cudaStream_t stream, const PageFormat& format, const TurnKeysItem& item);

}  // namespace headway::cuda

#endif  // HEADWAY_KERNELS_CUDA_ELEMENTWISE_H_
