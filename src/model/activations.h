// Activations: the memory that the steps of a model work in.
#ifndef HEADWAY_MODEL_ACTIVATIONS_H_
#define HEADWAY_MODEL_ACTIVATIONS_H_

#include <cstddef>
#include <cstdint>

#include "base/types.h"

namespace headway {

// Where the activations of one call of `tokens` tokens lie in one buffer. gate and up share their
// memory with q, k, v and o, which are dead by the time of the MLP. Pointers to void are of the
// kernels' activation dtype.
struct Activations {
  float* x = nullptr;      // [T, d_model], the residual stream
  void* normed = nullptr;  // [T, d_model]
  void* q = nullptr;       // [T, query_heads, head_dim], tokens qkv_stride elements apart, as k, v:
  void* k = nullptr;       // [T, kv_heads, head_dim], all three columns of one matrix, so that one
  void* v = nullptr;       // [T, kv_heads, head_dim]  product can make them
  void* o = nullptr;       // [T, query_heads, head_dim], attention's output
  void* gate = nullptr;    // [T, d_ff]
  void* up = nullptr;      // [T, d_ff], of a gated MLP
  float* cos = nullptr;    // [T, head_dim / 2]
  float* sin = nullptr;    // [T, head_dim / 2]
  int64_t qkv_stride = 0;

  // Bytes that Place takes; pure, so that a plan can be made without memory. `dtype` is the
  // kernels' activation dtype.
  static int64_t Bytes(const ModelShape& shape, DType dtype, int64_t tokens);
  // `buffer` has Bytes() and is aligned to 64, as every part will be.
  static Activations Place(const ModelShape& shape, DType dtype, int64_t tokens, std::byte* buffer);
};

// Bytes that Head needs besides, for the normed rows and for those of the embedding's width.
int64_t HeadScratchBytes(const ModelShape& shape, DType dtype, int64_t rows);

// Bytes of the logits of `rows` tokens.
int64_t LogitsBytes(const ModelShape& shape, int64_t rows);

}  // namespace headway

#endif  // HEADWAY_MODEL_ACTIVATIONS_H_
