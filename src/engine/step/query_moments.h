// QueryMoments: sums over a prompt's queries before their rotation, and over their products, in
// each layer: how queries are distributed, by which eviction expects those to come
// (kv/policy/eviction.h).
#ifndef HEADWAY_ENGINE_STEP_QUERY_MOMENTS_H_
#define HEADWAY_ENGINE_STEP_QUERY_MOMENTS_H_

#include <cstdint>

#include "engine/step/batch.h"
#include "engine/step/limits.h"
#include "engine/step/step_context.h"
#include "model/rope.h"

namespace headway {

class QueryMoments {
 public:
  // Bytes that it takes; pure.
  static int64_t Bytes(const ModelShape& shape, const ExecutorLimits& limits);
  // Takes them from `memory`.
  QueryMoments(StepContext& context, const Batch& batch, Memory* memory);

  // Adds the queries of the batch's only entry, which are not rotated yet.
  void Take(int layer);

  // Of a layer, on the device: [query_heads, head_dim] and [query_heads, head_dim, head_dim].
  const float* SumsOf(int layer) const { return At(layer); }
  const float* ProductsOf(int layer) const { return At(layer) + context_.QWidth(); }
  // Queries of each head that are added up: all but those of the first tokens, which are unlike the
  // others.
  int64_t count() const;
  // Whether all tokens of a sequence of so many were seen.
  bool AllOf(kv::SequenceId sequence, int64_t length) const {
    return sequence == sequence_ && length == end_;
  }
  // By which these queries are rotated.
  const RopeFrequencies& rope() const { return rope_; }

 private:
  float* At(int layer) const;

  StepContext& context_;
  const Batch& batch_;
  float* memory_ = nullptr;  // [layers, query_heads * head_dim * (1 + head_dim)]
  kv::SequenceId sequence_ = -1;
  int64_t end_ = 0;  // behind its last token; 0 where tokens before were not seen
  RopeFrequencies rope_;
};

}  // namespace headway

#endif  // HEADWAY_ENGINE_STEP_QUERY_MOMENTS_H_
