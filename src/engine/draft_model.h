// DraftModel: a small model that guesses what follows the sequences of a generator. For each slot
// it has a sequence of its own, of tokens that are certain: what it guesses goes behind them and is
// taken back when a round of guesses is over.
#ifndef HEADWAY_ENGINE_DRAFT_MODEL_H_
#define HEADWAY_ENGINE_DRAFT_MODEL_H_

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/executor.h"
#include "headway/status.h"
#include "kv/store/store.h"
#include "model/model.h"
#include "model/rope.h"

namespace headway {

class DraftModel {
 public:
  // What it works with; all outlives it. Executor and store take the generator's sequences, and as
  // many drafts.
  struct Parts {
    const Model& model;
    Executor& executor;
    kv::Store& store;
  };
  // Of the tokens those below `vocab` are the verifying model's, too.
  DraftModel(const Parts& parts, size_t slots, TokenId vocab);

  // A slot has read a prompt, and so does its sequence here, but for what it holds of it. One that
  // it does not know is not read, and the sequence is gone.
  Status ReadPrompt(size_t slot, std::span<const TokenId> prompt, const std::atomic<bool>* cancel);
  // Reads what the sequence lacks of the slot's tokens.
  Status Read(size_t slot, std::span<const TokenId> tokens, const std::atomic<bool>* cancel);
  // How many tokens the sequence has.
  int64_t Length(size_t slot) const { return std::ssize(slots_[slot].tokens); }
  // Both models have these: some vocabularies are padded further than others.
  bool Knows(std::span<const TokenId> tokens) const;

  // Inputs of Step: tokens that are certain, one more than drafts at most, and one that is a guess.
  StepInput Certain(size_t slot, std::span<const TokenId> tokens) const;
  StepInput Guessed(size_t slot, std::span<const TokenId> token) const;
  Status Step(std::span<const StepInput> inputs, std::span<const int> slot_of,
              const std::atomic<bool>* cancel);
  // Takes guesses back, up to this length.
  Status TakeBackTo(size_t slot, int64_t length);

  // As Generator's.
  Status FillSynthetic(size_t slot, int64_t tokens, uint64_t seed, double spread);
  void Reset();

 private:
  struct Slot {
    std::optional<kv::SequenceId> sequence;
    RopeFrequencies rope;         // that its keys are rotated with
    std::vector<TokenId> tokens;  // that it holds
  };

  Status BeginAt(size_t slot, int64_t prompt);
  // Keeps what the slot's sequence holds of the prompt.
  void KeepOf(Slot* slot, std::span<const TokenId> prompt);
  void Drop(Slot* slot);

  const Parts parts_;
  const TokenId vocab_;
  std::vector<Slot> slots_;
};

}  // namespace headway

#endif  // HEADWAY_ENGINE_DRAFT_MODEL_H_
