// What the slots of a generator hold: sequences of the store that reads prompts or, where tokens
// are let go behind each prompt, of the store of what is kept.
#include <utility>

#include "engine/generator.h"
#include "engine/refused.h"

namespace headway {

Status Generator::FillSynthetic(int slot, int64_t tokens, uint64_t seed, double spread) {
  if (slot < 0 || slot >= static_cast<int>(slots_.size()) || tokens < 0 ||
      tokens > lengths_[static_cast<size_t>(slot)]) {
    return Status(StatusCode::kInvalidArgument,
                  "no slot " + std::to_string(slot) + " of " + std::to_string(tokens) + " tokens");
  }
  if (!(spread >= 0.0 && spread <= 4.0)) {
    return Status(StatusCode::kInvalidArgument, "synthetic keys have a spread from 0 to 4");
  }
  Status status = EmptySlot(slot);
  if (status.ok()) status = BeginPrompt(slot);
  if (!status.ok()) return status;
  Slot& filled = slots_[static_cast<size_t>(slot)];
  // Token 0 stands for what was never computed: a prompt of zeros continues it.
  filled.tokens.assign(static_cast<size_t>(tokens), 0);
  filled.rope_hash = RopeOf(tokens + 1).Hash();
  status = executor_.AppendSynthetic(*filled.sequence, tokens, seed, spread);
  if (status.ok() && draft_model_ != nullptr) {
    status = draft_model_->FillSynthetic(static_cast<size_t>(slot), tokens, seed, spread);
  }
  if (status.ok() && salience_ != nullptr) status = ChooseSalient(filled);
  return status.ok() && evictor_ != nullptr ? LetGo(slot, nullptr, {}) : status;
}

void Generator::DropSequence(Slot* slot) {
  if (slot->sequence.has_value() && salience_ != nullptr) salience_->Forget(*slot->sequence);
  if (slot->kept()) evictor_->Forget(*slot->sequence);
  if (slot->sequence.has_value()) StoreOf(*slot).Drop(*slot->sequence);
  if (reading_ == slot - slots_.data()) reading_ = -1;
  *slot = Slot{};
}

Status Generator::EmptySlot(int index) {
  DropSequence(&slots_[static_cast<size_t>(index)]);
  return evictor_ == nullptr ? BeginPrompt(index) : OkStatus();
}

Status Generator::BeginPrompt(int index) {
  Slot& slot = slots_[static_cast<size_t>(index)];
  if (slot.sequence.has_value()) return OkStatus();
  if (evictor_ != nullptr) {
    // The store has room for one.
    if (reading_ >= 0) DropSequence(&slots_[static_cast<size_t>(reading_)]);
    reading_ = index;
  }
  const int x_segments = evictor_ != nullptr ? 0 : x_segments_[static_cast<size_t>(index)];
  Result<kv::SequenceId> sequence = store_.CreateSequence(x_segments);
  if (!sequence.ok()) return sequence.status();
  slot.sequence = *sequence;
  return OkStatus();
}

Status Generator::LetGo(int index, const RopeFrequencies* rope, const Hooks& hooks) {
  Slot& slot = slots_[static_cast<size_t>(index)];
  if (reconstruction_ != nullptr && rope != nullptr) {
    const Status status = reconstruction_->Repeat(*slot.sequence, slot.tokens, *rope, hooks.cancel);
    if (!status.ok()) {
      DropSequence(&slot);
      return status;
    }
  }
  Result<kv::SequenceId> kept = evictor_->Evict(*slot.sequence, index);
  if (!kept.ok()) return kept.status();
  store_.Drop(*slot.sequence);
  reading_ = -1;
  slot.sequence = *kept;
  slot.kept_from = std::ssize(slot.tokens);
  slot.approximate = true;
  return OkStatus();
}

Status Generator::ChooseSalient(const Slot& slot) {
  return salience_->Choose(*slot.sequence, executor_.observed());
}

// What is kept of a prompt serves no part of it.
Result<int64_t> Generator::CutTo(const Slot& slot, int64_t tokens) {
  if (!slot.kept()) return store_.Truncate(*slot.sequence, tokens);
  if (tokens == std::ssize(slot.tokens)) return tokens;
  const int slots = kept_store_->format().page.page_slots;
  if (tokens / slots * slots < slot.kept_from) {
    return Status(StatusCode::kNotFound, "tokens of the prompt were let go");
  }
  return kept_store_->Truncate(*slot.sequence, tokens);
}

bool Generator::MayJoin(const Run& run, const Batch& batch) const {
  if (salience_ != nullptr) return batch.prompt_tokens == 0;  // whose queries are observed
  if (evictor_ == nullptr) return true;
  const Slot& slot = slots_[static_cast<size_t>(run.slot)];
  if (batch.beside && slot.kept()) return false;
  if (!batch.inputs.empty()) return batch.kept && slot.kept();
  return slot.kept() || reading_ < 0 || reading_ == run.slot;
}

// What is scored behind a first part has only what is kept of that, where tokens are let go.
Status Generator::ReadyToScore(size_t begin, size_t end, const RopeFrequencies& rope,
                               const Hooks& hooks) {
  if (begin == 0) {
    Status status = EmptySlot(0);
    return status.ok() ? BeginPrompt(0) : status;
  }
  if (salience_ != nullptr &&
      salience_->Find(*slots_[0].sequence, static_cast<int64_t>(begin)) == nullptr) {
    return ChooseSalient(slots_[0]);
  }
  if (evictor_ == nullptr) return BringUp(0, rope, hooks);
  if (Status s = slots_[0].kept() ? OkStatus() : LetGo(0, &rope, hooks); !s.ok()) return s;
  if (static_cast<int64_t>(end) - slots_[0].kept_from <= room_) return BringUp(0, rope, hooks);
  return Wrong({"a sequence grows by " + std::to_string(room_) +
                    " tokens behind its prompt, and more are to be scored; raise ",
                Option::kEvictRoom});
}

// Why keys that frequencies of this hash have rotated do not fit others of `rope`.
std::string Generator::WhyOthers(uint64_t hash, RopeFrequencies rope) const {
  const bool extends = rope.extend.on();
  rope.extend = {};
  if (extends && hash == rope.Hash()) {
    return "the cached tokens were computed beyond the trained window without Self-Extend";
  }
  const bool reaches = rope.product == RopeProduct::kExact;
  rope.product = reaches ? RopeProduct::kRounded : RopeProduct::kExact;
  if (hash == rope.Hash()) {
    return std::string("the cached tokens were computed in a context that ") +
           (reaches ? "kept within" : "reached beyond") +
           " the window that the model was trained for, and this one " +
           (reaches ? "reaches beyond it" : "does not");
  }
  if (model_.config().rope.type != RopeType::kDynamic) {
    return "the cached tokens were computed with other groups of positions (Self-Extend)";
  }
  return "the cached tokens were computed for a prompt of another length, and this model's RoPE "
         "frequencies depend on it (rope type " +
         std::string(RopeTypeName(model_.config().rope.type)) + ")";
}

}  // namespace headway
