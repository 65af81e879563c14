// FarMass: reads from a decode step which share of each query head's softmax falls on keys that are
// neither among the first nor among the last ones: what profiles of heads are made of.
#ifndef HEADWAY_ENGINE_STEP_FAR_MASS_H_
#define HEADWAY_ENGINE_STEP_FAR_MASS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "engine/step/batch.h"
#include "engine/step/board.h"
#include "engine/step/step_context.h"

namespace headway {

// Keys that are near to a query, whatever the head.
struct NearKeys {
  int64_t sink = 0;    // the first ones
  int64_t recent = 0;  // the last ones, the query's own among them
};

class FarMass : public AttentionObserver {
 public:
  // Of a batch of one token, in a context of at least two rows; nothing streams by head. `far`
  // [layers, query_heads] is filled layer by layer.
  FarMass(StepContext& context, const Batch& batch, Board& board, const NearKeys& near,
          std::span<float> far);

  void OnRange(int entry, std::span<const kv::HeadRun> heads, const KeyRun& keys) override;
  Status OnLayer(int layer) override;

 private:
  void AddState(const kv::HeadRun& run, const KeyRun& keys, int64_t from, int64_t to);

  StepContext& context_;
  const Batch& batch_;
  Board& board_;
  const NearKeys near_;
  const std::span<float> far_;
  std::vector<bool>
      started_;             // [kv_heads]: the near keys have a state, in the row behind the first
  std::vector<float> lse_;  // [2, query_heads]: of all keys, of the near ones
};

}  // namespace headway

#endif  // HEADWAY_ENGINE_STEP_FAR_MASS_H_
