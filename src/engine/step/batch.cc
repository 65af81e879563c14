#include "engine/step/batch.h"

#include <algorithm>

#include "base/bytes.h"
#include "base/check.h"
#include "kernels/fitted_split.h"

namespace headway {

void Batch::Begin(std::span<const StepInput> inputs, std::optional<int> layer) {
  const ExecutorLimits& limits = context_.limits;
  entries_.clear();
  ids_.clear();
  positions_.clear();
  wants_logits_ = false;
  int64_t keys = 0;
  for (const StepInput& input : inputs) {
    BatchEntry entry;
    entry.sequence = input.sequence;
    entry.row = tokens();
    entry.tokens = static_cast<int64_t>(input.tokens.size());
    entry.position = context_.store.LengthIn(input.sequence, layer.value_or(0));
    entry.drafts = input.drafts;
    entry.decode = entry.tokens == 1 + entry.drafts;
    entry.rope = input.rope;
    entry.observed = input.observed;
    entry.drafting = input.drafting;
    // Heads that keep few keys of a long text count as those of a text of so many keys.
    const int64_t length = entry.position + entry.tokens;
    keys += limits.keys > 0 ? std::min(length, limits.keys) : length;
    HEADWAY_CHECK(entry.drafts == 0 || (entry.decode && entry.drafts <= limits.drafts));
    HEADWAY_CHECK(entry.tokens >= 1 && entry.position + entry.tokens <= limits.length);
    ids_.insert(ids_.end(), input.tokens.begin(), input.tokens.end());
    for (int64_t t = 0; t < entry.tokens; ++t) {
      positions_.push_back(static_cast<int32_t>(entry.position + t));
    }
    entries_.push_back(entry);
    wants_logits_ = wants_logits_ || input.WantsLogits();
  }
  // All sequences are attended to at once.
  const int64_t least =
      RoundUp(context_.kernels.DecodeSplit(keys, context_.shape.kv_heads), limits.page_slots);
  const int64_t split = Split(least);
  for (BatchEntry& entry : entries_) {
    entry.split = split;
    entry.split_in_windows = least;
  }
  HEADWAY_CHECK(tokens() <= limits.step_tokens);
  HEADWAY_CHECK(size() <= limits.entries);
}

// Where heads have other keys than their sequence, how many parts these are is not known.
int64_t Batch::Split(int64_t least) const {
  const ExecutorLimits& limits = context_.limits;
  const int64_t at_once = context_.kernels.PartsAtOnce();
  if (at_once == 0 || limits.streaming_heads || limits.keys > 0 || limits.salience.chooses() ||
      limits.self_extend.on() || limits.sharing_ranks > 1) {
    return least;
  }
  std::vector<int64_t> lengths;
  for (const BatchEntry& entry : entries_) {
    if (entry.decode) lengths.push_back(entry.position + entry.tokens);
  }
  return FittedSplit(lengths, {.kv_heads = context_.shape.kv_heads,
                               .segment = limits.segment_tokens,
                               .page_slots = limits.page_slots,
                               .least = least,
                               .at_once = at_once});
}

// Neighbours with the same frequencies go together: a call takes longer to begin than to make the
// angles of a batch.
void Batch::RopeAngles() const {
  const int64_t half = context_.model.rotary_dim() / 2;
  const Activations& act = context_.act;
  for (size_t first = 0, end = 0; first < entries_.size(); first = end) {
    const RopeFrequencies& rope = *entries_[first].rope;
    int64_t tokens = 0;
    for (; end < entries_.size() && *entries_[end].rope == rope; ++end) {
      tokens += entries_[end].tokens;
    }
    if (rope.inv_freq.empty()) continue;
    const int64_t row = entries_[first].row;
    const auto here = positions().subspan(static_cast<size_t>(row), static_cast<size_t>(tokens));
    context_.kernels.RopeAngles(context_.compute,
                                AnglesOf(rope, here, act.cos + row * half, act.sin + row * half));
  }
}

}  // namespace headway
