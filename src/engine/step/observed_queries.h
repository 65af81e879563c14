// ObservedQueries: the last queries of a prompt in each layer, by which eviction decides what heads
// keep of it (kv/policy/eviction.h).
#ifndef HEADWAY_ENGINE_STEP_OBSERVED_QUERIES_H_
#define HEADWAY_ENGINE_STEP_OBSERVED_QUERIES_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/step/batch.h"
#include "engine/step/limits.h"
#include "engine/step/step_context.h"
#include "model/model.h"

namespace headway {

class ObservedQueries {
 public:
  // Bytes that it takes; pure.
  static int64_t Bytes(const ModelShape& shape, const ExecutorLimits& limits);
  // Takes them from `memory`.
  ObservedQueries(StepContext& context, const Batch& batch, Memory* memory);

  // Keeps the last queries of the batch's last entry that is observed; they are rotated.
  void Take(int layer);

  // The queries that there are of a layer, at most limits.observed_queries, as one or two runs in
  // the order of positions: they are kept in a ring.
  struct Run {
    const std::byte* q = nullptr;  // activations [rows, query_heads, head_dim]
    int64_t rows = 0;
    int64_t position = 0;  // of the first
  };
  std::array<Run, 2> Of(int layer) const;
  // Items for the logits of those queries of a KV head's group that are at positions [begin, end),
  // against these runs of the head's keys: a row each, `stride` apart, whose columns are positions
  // from `first` on.
  struct Logits {
    float* at = nullptr;
    int64_t stride = 0;
    int64_t first = 0;
  };
  std::vector<KeyLogitsItem> LogitsItems(int layer, int head, std::span<const KeyRun> keys,
                                         int64_t begin, int64_t end, const Logits& logits) const;
  // The first position of those that there are, and the one behind the last.
  int64_t begin() const;
  int64_t end() const { return end_; }
  // Whether they are the last ones of a sequence of so many tokens.
  bool EndOf(kv::SequenceId sequence, int64_t length) const {
    return sequence == sequence_ && length == end_;
  }

 private:
  std::byte* Row(int layer, int64_t position) const;

  StepContext& context_;
  const Batch& batch_;
  std::byte* memory_ = nullptr;  // [layers, rows, query_heads, head_dim]
  kv::SequenceId sequence_ = -1;
  int64_t first_ = 0;  // positions [first_, end_) were seen one behind the other
  int64_t end_ = 0;
};

}  // namespace headway

#endif  // HEADWAY_ENGINE_STEP_OBSERVED_QUERIES_H_
