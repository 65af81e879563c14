// SelectionPolicy: which closed keys a step reads, as a function of positions and of how well
// blocks score (kernels/selection.h).
#ifndef HEADWAY_KV_POLICY_SELECTION_H_
#define HEADWAY_KV_POLICY_SELECTION_H_

#include <cstdint>
#include <span>

#include "kernels/selection.h"

namespace headway::kv {

struct SelectionPolicy {
  SummaryFormat summary;  // without blocks: every key is read
  int64_t keys = 0;       // far keys that a KV head reads, on average with BudgetShare::kLayer
  int64_t sink = 0;       // the first keys of a sequence are always read
  int64_t recent = 0;     // so are the last ones, the query's own among them
  BudgetShare share = BudgetShare::kLayer;
  // Chunks of prompts attend to what is listed of the pages before them, too.
  enum class Prompts : uint8_t { kExact, kSelected };
  Prompts prompts = Prompts::kExact;
  // Beyond the window that a model was trained for: summaries are of keys without their rotation,
  // queries are scored as if every key were so far behind them, and what is listed is moved
  // together (BlockMove). 0: keys are scored, and attended to, where they are.
  int64_t distance = 0;
  // Sequences of up to so many tokens are read whole, where distance is 0.
  int64_t from = 0;

  bool selects() const { return summary.kept(); }
  bool reaches() const { return distance > 0; }
};

// Neighbouring blocks of a sequence.
struct BlockSpan {
  int64_t position = 0;  // of the first key
  int64_t blocks = 0;
};

// The budget of a query at `q_position` over these blocks, counted through: blocks that hold keys
// of the sink or recent ones are read whole. It leaves nothing out where far_blocks is the number
// of all far blocks.
SelectionBudget BudgetOf(const SelectionPolicy& policy, std::span<const BlockSpan> spans,
                         int64_t q_position);

// What the lists of sequences of up to `length` tokens take at most.
struct SelectionBounds {
  int64_t blocks = 0;    // of a head
  int64_t capacity = 0;  // listed blocks of a head
};
SelectionBounds BoundsOf(const SelectionPolicy& policy, int64_t length, int kv_heads);

}  // namespace headway::kv

#endif  // HEADWAY_KV_POLICY_SELECTION_H_
