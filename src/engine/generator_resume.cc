// How a generator goes on with what another one has left whose cache was lost.
#include <utility>

#include "engine/generator.h"

namespace headway {

void Generator::TakeOut(std::span<const StepInput> inputs, std::span<const int> slot_of) {
  for (size_t i = 0; i < inputs.size(); ++i) {
    std::vector<TokenId>& tokens = slots_[static_cast<size_t>(slot_of[i])].tokens;
    tokens.resize(tokens.size() - inputs[i].tokens.size());
    if (inputs[i].sampler != nullptr) inputs[i].sampler->PutBack();
  }
}

Generator::Unfinished Generator::TakeUnfinished() {
  Unfinished unfinished{std::move(runs_), waiting_, {}, timings_};
  runs_.clear();
  for (Slot& slot : slots_) unfinished.held.push_back(std::move(slot.tokens));
  for (Slot& slot : slots_) DropSequence(&slot);
  return unfinished;
}

// A token that was decoded is read as such again: in chunks the products of its rows would add in
// another order.
Status Generator::ReadHeld(const Run& run, std::span<const TokenId> tokens, const Hooks& hooks) {
  if (Status s = EmptySlot(run.slot); !s.ok()) return s;
  Slot& slot = slots_[static_cast<size_t>(run.slot)];
  slot.rope_hash = run.rope.Hash();
  slot.approximate = executor_.limits().selection.approximates() || salience_ != nullptr;
  const auto prompt = static_cast<size_t>(run.out.prompt_tokens);
  while (slot.tokens.size() < tokens.size()) {
    const size_t at = slot.tokens.size();
    const size_t most = at < prompt ? std::min(prompt - at, static_cast<size_t>(chunk_)) : 1;
    StepInput input{*slot.sequence, tokens.subspan(at, std::min(most, tokens.size() - at)),
                    &run.rope};
    if (Status s = Step({&input, 1}, {&run.slot, 1}, nullptr, hooks.cancel); !s.ok()) return s;
    if (salience_ == nullptr || slot.tokens.size() != prompt) continue;
    if (Status s = ChooseSalient(slot); !s.ok()) return s;
  }
  return run.active ? ReadToDraft(run, hooks) : OkStatus();
}

Result<std::vector<Generation>> Generator::Resume(Unfinished unfinished, const std::string& notice,
                                                  const Hooks& hooks) {
  runs_ = std::move(unfinished.runs);
  waiting_ = unfinished.waiting;
  timings_ = unfinished.timings;
  Status status;
  for (Run& run : runs_) {
    if (run.slot < 0 || run.finished) continue;
    run.out.notices.push_back(notice);
    const std::vector<TokenId>& held = unfinished.held[static_cast<size_t>(run.slot)];
    if (status.ok()) status = ReadHeld(run, held, hooks);
  }
  if (!status.ok() && status.code() != StatusCode::kCancelled) return status;
  return RunAll(hooks);
}

}  // namespace headway
