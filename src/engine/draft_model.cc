#include "engine/draft_model.h"

#include <algorithm>
#include <utility>

namespace headway {

DraftModel::DraftModel(const Parts& parts, size_t slots, TokenId vocab)
    : parts_(parts), vocab_(std::min<TokenId>(vocab, parts.model.shape().vocab)), slots_(slots) {}

bool DraftModel::Knows(std::span<const TokenId> tokens) const {
  return std::all_of(tokens.begin(), tokens.end(), [&](TokenId token) { return token < vocab_; });
}

void DraftModel::Drop(Slot* slot) {
  if (slot->sequence.has_value()) parts_.store.Drop(*slot->sequence);
  *slot = Slot{};
}

void DraftModel::Reset() {
  for (Slot& slot : slots_) Drop(&slot);
}

Status DraftModel::BeginAt(size_t slot, int64_t prompt) {
  const Model& model = parts_.model;
  Slot& begun = slots_[slot];
  RopeFrequencies rope = ComputeRope(model.config().rope, model.shape().head_dim, prompt);
  if (begun.rope.Hash() != rope.Hash()) Drop(&begun);
  begun.rope = std::move(rope);
  if (begun.sequence.has_value()) return OkStatus();
  const Result<kv::SequenceId> sequence = parts_.store.CreateSequence();
  if (!sequence.ok()) return sequence.status();
  begun.sequence = *sequence;
  return OkStatus();
}

void DraftModel::KeepOf(Slot* slot, std::span<const TokenId> prompt) {
  const size_t most = std::min(slot->tokens.size(), prompt.size());
  const auto same =
      std::mismatch(slot->tokens.begin(), slot->tokens.begin() + static_cast<ptrdiff_t>(most),
                    prompt.begin())
          .first;
  if (same == slot->tokens.end()) return;
  const Result<int64_t> kept = parts_.store.Truncate(*slot->sequence, same - slot->tokens.begin());
  // A sliding window may have let go of what that needs.
  if (!kept.ok()) return Drop(slot);
  slot->tokens.resize(static_cast<size_t>(*kept));
}

Status DraftModel::ReadPrompt(size_t slot, std::span<const TokenId> prompt,
                              const std::atomic<bool>* cancel) {
  if (!Knows(prompt)) {
    Drop(&slots_[slot]);
    return OkStatus();
  }
  if (slots_[slot].sequence.has_value()) KeepOf(&slots_[slot], prompt);
  if (Status s = BeginAt(slot, std::ssize(prompt)); !s.ok()) return s;
  return Read(slot, prompt, cancel);
}

Status DraftModel::Read(size_t slot, std::span<const TokenId> tokens,
                        const std::atomic<bool>* cancel) {
  Slot& of = slots_[slot];
  const auto index = static_cast<int>(slot);
  const auto most = static_cast<size_t>(parts_.executor.limits().step_tokens);
  while (of.tokens.size() < tokens.size()) {
    const auto rest = tokens.subspan(of.tokens.size());
    StepInput input{*of.sequence, rest.first(std::min(rest.size(), most)), &of.rope};
    input.observed = false;
    if (Status s = Step({&input, 1}, {&index, 1}, cancel); !s.ok()) return s;
  }
  return OkStatus();
}

StepInput DraftModel::Certain(size_t slot, std::span<const TokenId> tokens) const {
  const Slot& of = slots_[slot];
  StepInput input{*of.sequence, tokens, &of.rope};
  input.observed = false;
  // These few are decoded together, which reads keys once for all; but not where their page closes.
  const int64_t slots = parts_.store.format().page.page_slots;
  if (Length(slot) % slots + std::ssize(tokens) < slots) {
    input.drafts = std::ssize(tokens) - 1;
    input.picks_last = true;
  }
  return input;
}

StepInput DraftModel::Guessed(size_t slot, std::span<const TokenId> token) const {
  const Slot& of = slots_[slot];
  StepInput input{*of.sequence, token, &of.rope};
  input.observed = false;
  input.drafting = true;
  return input;
}

Status DraftModel::Step(std::span<const StepInput> inputs, std::span<const int> slot_of,
                        const std::atomic<bool>* cancel) {
  const auto of = [&](size_t i) -> Slot& { return slots_[static_cast<size_t>(slot_of[i])]; };
  for (size_t i = 0; i < inputs.size(); ++i) {
    of(i).tokens.insert(of(i).tokens.end(), inputs[i].tokens.begin(), inputs[i].tokens.end());
  }
  const Status status = parts_.executor.Step(inputs, nullptr, cancel);
  // A step that was given up leaves each sequence on a page boundary.
  for (size_t i = 0; i < inputs.size(); ++i) {
    of(i).tokens.resize(static_cast<size_t>(parts_.store.Length(*of(i).sequence)));
  }
  if (status.code() != StatusCode::kCorrupt) return status;
  return status.Within({"the model that drafts: "});
}

Status DraftModel::TakeBackTo(size_t slot, int64_t length) {
  const int64_t guesses = Length(slot) - length;
  if (guesses <= 0) return OkStatus();
  slots_[slot].tokens.resize(static_cast<size_t>(length));
  return parts_.store.TakeBack(*slots_[slot].sequence, guesses);
}

Status DraftModel::FillSynthetic(size_t slot, int64_t tokens, uint64_t seed, double spread) {
  Drop(&slots_[slot]);
  if (Status s = BeginAt(slot, tokens + 1); !s.ok()) return s;
  slots_[slot].tokens.assign(static_cast<size_t>(tokens), 0);
  return parts_.executor.AppendSynthetic(*slots_[slot].sequence, tokens, seed, spread);
}

}  // namespace headway
