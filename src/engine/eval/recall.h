// How much of the far attention a selector's lists hold, beside oracles that list as many blocks.
#ifndef HEADWAY_ENGINE_EVAL_RECALL_H_
#define HEADWAY_ENGINE_EVAL_RECALL_H_

#include <span>

#include "engine/eval/divergence.h"
#include "headway/context.h"
#include "headway/status.h"

namespace headway::eval {

// The last `compared` tokens of each window, read one a step in slot 0; sums over all windows.
// Progress counts the windows' tokens.
Result<SelectionRecall> MeasureRecall(Context& context, const SpreadWindows& windows,
                                      const Hooks& hooks);

// Shares of the far attention of some heads, 0 to 1. All are 1 where there is none.
struct RecallShares {
  double listed = 1.0;
  double best_of_head = 1.0;   // by an oracle for each head
  double best_of_layer = 1.0;  // by one for all heads of a layer
  double far = 0.0;            // the share of all attention that is far, of an average head
  double blocks = 1.0;         // of the far blocks, those that are listed
};
RecallShares SharesOf(std::span<const SelectionRecall::Head> heads, int64_t steps);

}  // namespace headway::eval

#endif  // HEADWAY_ENGINE_EVAL_RECALL_H_
