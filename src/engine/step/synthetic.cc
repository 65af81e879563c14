#include "engine/step/synthetic.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/half.h"
#include "base/random.h"

namespace headway {
namespace {

// Of synthetic keys and values, that differ from each other: drawing takes longer than all else.
constexpr int64_t kDrawnRows = 64;

// Rows of K or V of the activations, from host memory.
Status CopyRows(const StepContext& context, const std::vector<std::byte>& drawn, int64_t rows,
                void* to) {
  const size_t row_bytes = drawn.size() / static_cast<size_t>(rows);
  context.compute.Copy2D(static_cast<std::byte*>(to),
                         static_cast<size_t>(context.ActivationBytes(context.act.qkv_stride)),
                         drawn.data(), row_bytes, row_bytes, static_cast<size_t>(rows));
  return context.compute.Synchronize();
}

}  // namespace

Status DrawUnequalKeys(const StepContext& context, int64_t rows, uint64_t seed, double spread) {
  constexpr int64_t kRun = 16;
  Random random(seed);
  const int64_t width = int64_t{context.shape.kv_heads} * context.shape.head_dim;
  std::vector<float> some(static_cast<size_t>(kDrawnRows * width));
  for (float& value : some) value = random.Normal();
  std::vector<std::byte> drawn(static_cast<size_t>(context.ActivationBytes(rows * width)));
  float size = 1.0f;
  for (int64_t row = 0; row < rows; ++row) {
    if (row % kRun == 0) size = std::exp(static_cast<float>(spread) * random.Normal());
    const float* from = some.data() + row % kDrawnRows * width;
    for (int64_t i = 0; i < width; ++i) {
      StoreFloat(drawn.data(), row * width + i, context.limits.activation_dtype, size * from[i]);
    }
  }
  return CopyRows(context, drawn, rows, context.act.k);
}

Status DrawActivations(const StepContext& context, int64_t rows, uint64_t seed) {
  Random random(seed);
  const Activations& act = context.act;
  const int64_t width = int64_t{context.shape.kv_heads} * context.shape.head_dim;
  const auto row_bytes = static_cast<size_t>(context.ActivationBytes(width));
  std::vector<std::byte> drawn(static_cast<size_t>(rows) * row_bytes);
  const int64_t different = std::min(rows, kDrawnRows);
  for (void* to : {act.k, act.v}) {
    for (int64_t i = 0; i < different * width; ++i) {
      StoreFloat(drawn.data(), i, context.limits.activation_dtype, random.Normal());
    }
    for (int64_t row = different; row < rows; ++row) {
      std::copy_n(drawn.data() + static_cast<size_t>(row - different) * row_bytes, row_bytes,
                  drawn.data() + static_cast<size_t>(row) * row_bytes);
    }
    if (Status s = CopyRows(context, drawn, rows, to); !s.ok()) return s;
  }
  // Any numbers do for X: the values again, over and over.
  const int64_t bytes = context.ActivationBytes(rows * context.shape.d_model);
  for (int64_t at = 0; at < bytes; at += static_cast<int64_t>(drawn.size())) {
    context.compute.Copy(static_cast<std::byte*>(act.normed) + at, drawn.data(),
                         std::min(drawn.size(), static_cast<size_t>(bytes - at)));
  }
  return context.compute.Synchronize();
}

}  // namespace headway
