#include "kv/policy/selection.h"

#include <algorithm>

#include "base/bytes.h"

namespace headway::kv {

int64_t SelectionPolicy::KeysAt(int64_t length) const {
  return std::max(keys, static_cast<int64_t>(growth * static_cast<double>(length)));
}

SelectionBudget BudgetOf(const SelectionPolicy& policy, std::span<const BlockSpan> spans,
                         int64_t q_position) {
  const int64_t slots = policy.summary.block_slots;
  const int64_t recent = q_position + 1 - policy.recent;  // the first recent position
  SelectionBudget budget;
  for (const BlockSpan& span : spans) {
    // Blocks of the span that begin in the sink, and those that end before the recent keys.
    const int64_t sink = CeilDiv(std::max<int64_t>(0, policy.sink - span.position), slots);
    const int64_t old = std::max<int64_t>(0, recent - span.position) / slots;
    budget.far_begin += std::min(sink, span.blocks);
    budget.far_end += std::min(old, span.blocks);
  }
  budget.far_end = std::max(budget.far_begin, budget.far_end);
  const int64_t length = q_position + 1;
  budget.far_blocks =
      std::min(CeilDiv(policy.KeysAt(length), slots), budget.far_end - budget.far_begin);
  budget.share = policy.share;
  budget.candidates = CeilDiv(policy.CandidatesAt(length), slots);
  return budget;
}

SelectionBounds BoundsOf(const SelectionPolicy& policy, int64_t length, int kv_heads) {
  const int64_t slots = policy.summary.block_slots;
  const int64_t heads = policy.share == BudgetShare::kLayer ? kv_heads : 1;
  SelectionBounds bounds;
  bounds.blocks = CeilDiv(length, slots);
  // A sequence with gaps may have a further block at each end of the sink and the recent keys.
  const int64_t always = CeilDiv(policy.sink, slots) + CeilDiv(policy.recent, slots) + 2;
  const auto with = [&](int64_t keys) {
    return std::min(bounds.blocks, always + heads * CeilDiv(keys, slots));
  };
  bounds.capacity = with(policy.KeysAt(length));
  if (policy.looks_twice()) bounds.candidates = with(policy.CandidatesAt(length));
  return bounds;
}

}  // namespace headway::kv
