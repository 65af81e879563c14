#include "model/activations.h"

#include <algorithm>
#include <utility>

#include "base/bytes.h"

namespace headway {

namespace {

constexpr int64_t kAlignment = 64;  // a cache line, and the widest vector of any CPU here

int64_t QkvWidth(const ModelShape& shape) {
  return (int64_t{shape.query_heads} + 2 * int64_t{shape.kv_heads}) * shape.head_dim;
}

// Bytes of `count` elements, whole cache lines.
int64_t LineBytes(int64_t count, DType dtype) {
  return RoundUp(count * static_cast<int64_t>(DTypeBytes(dtype)), kAlignment);
}

}  // namespace

int64_t Activations::Bytes(const ModelShape& shape, DType dtype, int64_t tokens) {
  const int64_t attention = LineBytes(tokens * QkvWidth(shape), dtype) +
                            LineBytes(tokens * shape.query_heads * shape.head_dim, dtype);
  const int64_t mlp = (shape.gated_mlp ? 2 : 1) * LineBytes(tokens * shape.d_ff, dtype);
  return LineBytes(tokens * shape.d_model, DType::kF32) + LineBytes(tokens * shape.d_model, dtype) +
         std::max(attention, mlp) + 2 * LineBytes(tokens * shape.head_dim / 2, DType::kF32);
}

Activations Activations::Place(const ModelShape& shape, DType dtype, int64_t tokens,
                               std::byte* buffer) {
  const auto width = static_cast<int64_t>(DTypeBytes(dtype));
  std::byte* next = buffer;
  const auto take = [&next](int64_t count, DType of) {
    return std::exchange(next, next + LineBytes(count, of));
  };
  const auto floats = [&take](int64_t count) {
    return reinterpret_cast<float*>(take(count, DType::kF32));
  };
  Activations a;
  a.x = floats(tokens * shape.d_model);
  a.normed = take(tokens * shape.d_model, dtype);
  a.cos = floats(tokens * shape.head_dim / 2);
  a.sin = floats(tokens * shape.head_dim / 2);
  std::byte* shared = next;
  a.qkv_stride = QkvWidth(shape);
  std::byte* qkv = take(tokens * a.qkv_stride, dtype);
  a.q = qkv;
  a.k = qkv + shape.query_heads * shape.head_dim * width;
  a.v = qkv + (shape.query_heads + shape.kv_heads) * shape.head_dim * width;
  a.o = take(tokens * shape.query_heads * shape.head_dim, dtype);
  next = shared;
  a.gate = take(tokens * shape.d_ff, dtype);
  if (shape.gated_mlp) a.up = take(tokens * shape.d_ff, dtype);
  return a;
}

int64_t HeadScratchBytes(const ModelShape& shape, DType dtype, int64_t rows) {
  return 2 * LineBytes(rows * shape.d_model, dtype);
}

int64_t LogitsBytes(const ModelShape& shape, int64_t rows) {
  return rows * shape.vocab * static_cast<int64_t>(sizeof(float));
}

}  // namespace headway
