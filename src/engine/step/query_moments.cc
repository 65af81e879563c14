#include "engine/step/query_moments.h"

#include <algorithm>

#include "base/check.h"

namespace headway {

int64_t QueryMoments::Bytes(const ModelShape& shape, const ExecutorLimits& limits) {
  if (!limits.query_moments) return 0;
  return FloatBytes(int64_t{shape.layers} * shape.query_heads * shape.head_dim *
                    (1 + shape.head_dim));
}

QueryMoments::QueryMoments(StepContext& context, const Batch& batch, Memory* memory)
    : context_(context),
      batch_(batch),
      memory_(memory->Floats(Bytes(context.shape, context.limits))) {}

float* QueryMoments::At(int layer) const {
  return memory_ + layer * context_.QWidth() * (1 + context_.shape.head_dim);
}

void QueryMoments::Take(int layer) {
  if (!context_.limits.query_moments) return;
  HEADWAY_CHECK(batch_.size() == 1);
  const BatchEntry& entry = batch_[0];
  if (layer == 0) {
    const bool seen = entry.position == 0 || AllOf(entry.sequence, entry.position);
    end_ = seen ? entry.position + entry.tokens : 0;
    sequence_ = entry.sequence;
    rope_ = *entry.rope;
  }
  const int64_t skipped =
      std::clamp<int64_t>(context_.limits.moments_from - entry.position, 0, entry.tokens);
  const QueryMomentsItem item = {.q = context_.QueryAt(entry.row + skipped, 0),
                                 .q_stride = context_.act.qkv_stride,
                                 .rows = entry.tokens - skipped,
                                 .adds = entry.position > 0,
                                 .sums = At(layer),
                                 .products = At(layer) + context_.QWidth()};
  context_.kernels.QueryMoments(context_.compute, context_.format, context_.shape.query_heads,
                                {&item, 1});
}

int64_t QueryMoments::count() const {
  return std::max<int64_t>(0, end_ - context_.limits.moments_from);
}

}  // namespace headway
