// Dense prefill attention by cuDNN: partial states of many queries against one contiguous range of
// keys. cuDNN is loaded at run time, so that programs start without it.
#ifndef HEADWAY_KERNELS_CUDA_SDPA_H_
#define HEADWAY_KERNELS_CUDA_SDPA_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/types.h"
#include "headway/status.h"
#include "kernels/cuda/workspace.h"

namespace headway::cuda {

// One sequence: `tokens` queries of query_heads heads against `keys` keys of kv_heads heads. Query
// head h reads KV head h / (query_heads / kv_heads). Strides count elements; they and all pointers
// are multiples of 16 bytes. The elements of a head lie side by side.
struct SdpaShape {
  DType dtype = DType::kBF16;  // of q, k, v and o; f16 or bf16
  int query_heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int64_t tokens = 0;       // >= 1
  int64_t keys = 0;         // >= 1
  bool exact_keys = false;  // a plan for just so many keys, whether they are a bucket's or not
  // Query i sees keys 0 to i + keys - tokens, which takes tokens <= keys: no row without a key.
  // Off, every query sees every key.
  bool causal = false;
  float scale = 1.0f;
  int64_t q_token_stride = 0;
  int64_t q_head_stride = 0;
  int64_t kv_token_stride = 0;  // of k and of v
  int64_t kv_head_stride = 0;
  int64_t o_token_stride = 0;
  int64_t o_head_stride = 0;

  bool operator==(const SdpaShape&) const = default;
};

// Where a run reads and writes. lse is [query_heads, SdpaBucket(tokens)], natural logarithms. The
// workspace is aligned to 256 and belongs to the run until the stream has passed it.
struct SdpaMemory {
  const void* q = nullptr;
  const void* k = nullptr;
  const void* v = nullptr;
  void* o = nullptr;
  float* lse = nullptr;
  void* workspace = nullptr;
  int64_t workspace_bytes = 0;
};

struct SdpaShapeHash {
  size_t operator()(const SdpaShape& shape) const;
};

// Not thread-safe. `device` must be current in the thread that calls.
//
// Where tokens and keys are both a plan's, nothing outside them is touched. Otherwise the plan
// spans the buckets and is told the actual sizes, and the caller provides what lies between:
// - q is readable for SdpaBucket(tokens) tokens; what it holds past `tokens` does not matter.
// - k and v are readable for SdpaBucket(keys) keys, with exact_keys for `keys`, and hold finite
//   numbers there: keys past `keys` have weight 0, but 0 times infinity is NaN.
// - o is writable for SdpaBucket(tokens) tokens; past `tokens` it holds anything afterwards.
class Sdpa {
 public:
  // Makes `device` current. kUnsupported when cuDNN is not installed.
  static Result<std::unique_ptr<Sdpa>> Create(int device);
  ~Sdpa();
  Sdpa(const Sdpa&) = delete;
  Sdpa& operator=(const Sdpa&) = delete;

  // Builds the plan unless it is there already, synchronously. kUnsupported if cuDNN refuses the
  // shape, kInvalidArgument if the shape makes no sense.
  Status Prepare(const SdpaShape& shape);
  // What Run needs for the shape and for all that share its plan. After a Prepare that was ok.
  int64_t WorkspaceBytes(const SdpaShape& shape) const;
  // Plans built so far.
  int64_t plans() const;

  // Enqueues only, but for the Prepare of a new shape.
  Status Run(cudaStream_t stream, const SdpaShape& shape, const SdpaMemory& memory);

 private:
  struct Impl;
  explicit Sdpa(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

// For Run: *tokens_at = tokens and *keys_at = keys, in device memory, in order with the stream.
cudaError_t SetSdpaLengths(cudaStream_t stream, int32_t* tokens_at, int32_t tokens,
                           int32_t* keys_at, int32_t keys);

}  // namespace headway::cuda

#endif  // HEADWAY_KERNELS_CUDA_SDPA_H_
