// Batch: the entries of a step, one a sequence, and the rows that their tokens have in the
// activations.
#ifndef HEADWAY_ENGINE_STEP_BATCH_H_
#define HEADWAY_ENGINE_STEP_BATCH_H_

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/step/input.h"
#include "engine/step/step_context.h"

namespace headway {

struct BatchEntry {
  kv::SequenceId sequence = 0;
  int64_t row = 0;  // of its first token
  int64_t tokens = 0;
  int64_t drafts = 0;    // of the tokens the last ones; StepInput's
  int64_t position = 0;  // of its first token
  const RopeFrequencies* rope = nullptr;
  int64_t split = 0;             // decode: keys of a partial state
  int64_t split_in_windows = 0;  // the same in layers that have one
  bool observed = true;          // StepInput's
  bool drafting = false;         // the same
  // One token, and drafts behind it: its states are kept apart and merged at the end.
  bool decode = false;
};

class Batch {
 public:
  explicit Batch(const StepContext& context) : context_(context) {}

  // The entries of the next step, of a layer alone within a stretch; the store has not begun it.
  void Begin(std::span<const StepInput> inputs, std::optional<int> layer = {});
  // Their angles go to the activations.
  void RopeAngles() const;

  int size() const { return static_cast<int>(entries_.size()); }
  const BatchEntry& operator[](int entry) const { return entries_[static_cast<size_t>(entry)]; }
  std::span<const BatchEntry> entries() const { return entries_; }
  std::span<const TokenId> ids() const { return ids_; }
  std::span<const int32_t> positions() const { return positions_; }
  int64_t tokens() const { return static_cast<int64_t>(ids_.size()); }
  // Some entry's logits are looked at: the step ends when they are there.
  bool wants_logits() const { return wants_logits_; }
  bool all_decode() const {
    return std::all_of(entries_.begin(), entries_.end(),
                       [](const BatchEntry& entry) { return entry.decode; });
  }
  // Each has one query, as where decode steps verify no drafts.
  bool all_single() const {
    return std::all_of(entries_.begin(), entries_.end(),
                       [](const BatchEntry& entry) { return entry.tokens == 1; });
  }

 private:
  // Keys of a partial state, `least` or more.
  int64_t Split(int64_t least) const;

  const StepContext& context_;
  std::vector<BatchEntry> entries_;
  std::vector<TokenId> ids_;        // [tokens]
  std::vector<int32_t> positions_;  // [tokens]
  bool wants_logits_ = false;
};

}  // namespace headway

#endif  // HEADWAY_ENGINE_STEP_BATCH_H_
