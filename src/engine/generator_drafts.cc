// Drafts of a generator's runs: what makes them, what decode steps verify, and what becomes of it.
#include <algorithm>
#include <utility>

#include "engine/generator.h"

namespace headway {

// No page closes with a draft in it: a draft that is wrong is cut off the open page. Where steps
// draft that would read all keys, none does; nor a model that lacks a token of the sequence.
int64_t Generator::MostDrafts(const Run& run) {
  const ExecutorLimits& limits = executor_.limits();
  const Slot& slot = SlotOf(run);
  const int64_t slots = store_.format().page.page_slots;
  const int64_t length = std::ssize(slot.tokens);
  if (limits.selection.drafts() && !limits.selection.LeavesOut(length)) return 0;
  if (draft_model_ != nullptr && !FollowedByModel(run)) return 0;
  const int64_t in_page = slots - 2 - length % slots;
  int64_t end = lengths_[static_cast<size_t>(run.slot)];
  if (slot.kept()) end = std::min(end, slot.kept_from + room_);
  const int64_t in_context = end - length - 1;
  const int64_t wanted = run.request->max_tokens - std::ssize(run.out.tokens) - 1;
  return std::max<int64_t>(0, std::min({limits.drafts, in_page, in_context, wanted}));
}

// Of what the model that drafts has read it knows every token.
bool Generator::FollowedByModel(const Run& run) const {
  const std::span<const TokenId> tokens = SlotOf(run).tokens;
  const auto read = static_cast<size_t>(draft_model_->Length(static_cast<size_t>(run.slot)));
  return draft_model_->Knows(tokens.subspan(std::min(read, tokens.size()))) &&
         draft_model_->Knows(std::span(run.fed));
}

Result<std::vector<Generator::Drafting>> Generator::BeginDrafts(std::vector<Run>& runs) {
  std::vector<Run*> decoding;
  std::vector<int64_t> most;
  for (Run& run : runs) {
    if (!run.active) continue;
    run.fed = {run.out.tokens.back()};
    decoding.push_back(&run);
  }
  std::vector<Drafting> drafting;
  if (executor_.limits().drafts == 0) return drafting;
  for (Run* run : decoding) {
    most.push_back(0);
    if (!agreement_.first()) continue;
    most.back() = MostDrafts(*run);
    if (paces_drafts_) most.back() = run->pace.Next(most.back(), draft_costs_);
  }
  if (Status s = agreement_.Agree(most); !s.ok()) return s;
  for (size_t i = 0; i < decoding.size(); ++i) {
    Run* const run = decoding[i];
    if (most[i] > 0) drafting.push_back({run, most[i], std::ssize(SlotOf(*run).tokens)});
  }
  return drafting;
}

Status Generator::Feed(std::vector<Run>& runs, Batch* batch, const Hooks& hooks) {
  const int64_t begun = env_.NowNanos();
  Result<std::vector<Drafting>> drafting = BeginDrafts(runs);
  if (!drafting.ok()) return drafting.status();
  if (!drafting->empty()) {
    if (Status s = DraftTogether(*drafting, batch, hooks); !s.ok()) return s;
  }
  for (const Drafting& each : *drafting) {
    if (each.run->drafter == nullptr) continue;
    each.run->fed.resize(1);  // its drafts stand for those of steps, if there were any
    if (Status s = each.run->drafter->Propose(each.drafts, &each.run->fed); !s.ok()) return s;
  }
  batch->drafting_seconds = static_cast<double>(env_.NowNanos() - begun) * 1e-9;
  return OkStatus();
}

Status Generator::DraftTogether(std::span<Drafting> drafting, Batch* batch, const Hooks& hooks) {
  if (!ModelDrafts()) {
    return executor_.limits().selection.drafts() ? DraftBySteps(drafting, hooks) : OkStatus();
  }
  Status status;
  if (draft_model_ != nullptr) {
    status = ReadBehind(drafting, batch, hooks);
    if (status.ok()) status = DraftBySteps(drafting, hooks);
  }
  if (status = agreement_.Agree(status); !status.ok()) return status;
  std::vector<std::vector<TokenId>*> fed;
  for (const Drafting& each : drafting) fed.push_back(&each.run->fed);
  return agreement_.AgreeOnGuesses(executor_.limits().drafts, fed);
}

Status Generator::ReadToDraft(const Run& run, const Hooks& hooks) {
  if (!ModelDrafts()) return OkStatus();
  Status read;
  if (draft_model_ != nullptr) {
    read =
        draft_model_->ReadPrompt(static_cast<size_t>(run.slot), SlotOf(run).tokens, hooks.cancel);
  }
  return agreement_.Agree(read);
}

// A sequence for which none was drafted for a while has much to be read, which says nothing of what
// drafts take.
Status Generator::ReadBehind(std::span<const Drafting> drafting, Batch* batch, const Hooks& hooks) {
  const int64_t begun = env_.NowNanos();
  for (const Drafting& each : drafting) {
    const auto slot = static_cast<size_t>(each.run->slot);
    const std::vector<TokenId>& tokens = SlotOf(*each.run).tokens;
    if (each.length - draft_model_->Length(slot) > executor_.limits().drafts) {
      if (Status s = draft_model_->Read(slot, tokens, hooks.cancel); !s.ok()) return s;
    }
    const auto read = static_cast<ptrdiff_t>(draft_model_->Length(slot));
    each.run->certain.assign(tokens.begin() + read, tokens.end());
    each.run->certain.push_back(each.run->fed[0]);
  }
  batch->reading_seconds = static_cast<double>(env_.NowNanos() - begun) * 1e-9;
  return OkStatus();
}

// Steps of the model itself write keys and values where the step that verifies the drafts will
// write its own.
Status Generator::DraftBySteps(std::span<Drafting> drafting, const Hooks& hooks) {
  int64_t most = 0;
  for (const Drafting& each : drafting) {
    each.run->guesses = each.run->sampler;
    most = std::max(most, each.drafts);
  }
  Status status;
  for (int64_t drafted = 0; status.ok() && drafted < most; ++drafted) {
    status = DraftStep(drafting, drafted, hooks);
  }
  for (const Drafting& each : drafting) {
    const Status taken = TakeBackGuesses(each);
    if (status.ok()) status = taken;
  }
  return status;
}

Status Generator::TakeBackGuesses(const Drafting& drafting) {
  if (draft_model_ == nullptr) return TakeBackTo(drafting.run, drafting.length);
  // The token that was picked last is certain, too.
  return draft_model_->TakeBackTo(static_cast<size_t>(drafting.run->slot), drafting.length + 1);
}

StepInput Generator::DraftInput(Run* run, int64_t drafted) const {
  const std::span<const TokenId> last = std::span(run->fed).last(1);
  StepInput input{*SlotOf(*run).sequence, last, &run->rope};
  if (draft_model_ != nullptr) {
    const auto slot = static_cast<size_t>(run->slot);
    input = drafted == 0 ? draft_model_->Certain(slot, run->certain)
                         : draft_model_->Guessed(slot, last);
  } else {
    input.observed = false;
    input.drafting = true;
  }
  run->picked.resize(1);
  input.sampler = &*run->guesses;
  input.sampled = run->picked.data();
  return input;
}

Status Generator::DraftStep(std::span<Drafting> drafting, int64_t drafted, const Hooks& hooks) {
  std::vector<StepInput> inputs;
  std::vector<int> slot_of;
  const auto wants = [&](const Drafting& each) { return each.drafts > drafted; };
  for (const Drafting& each : drafting) {
    if (!wants(each)) continue;
    inputs.push_back(DraftInput(each.run, drafted));
    slot_of.push_back(each.run->slot);
  }
  if (inputs.empty()) return OkStatus();
  const Status status = draft_model_ == nullptr ? Step(inputs, slot_of, nullptr, hooks.cancel)
                                                : draft_model_->Step(inputs, slot_of, hooks.cancel);
  if (!status.ok()) return status;
  for (Drafting& each : drafting) {
    if (!wants(each)) continue;
    const TokenId token = each.run->picked[0];
    if (draft_model_ != nullptr && !draft_model_->Knows({&token, 1})) {
      each.drafts = drafted;
      continue;
    }
    each.run->guesses->Accept(token);
    each.run->fed.push_back(token);
    if (Ends(*each.run, token)) each.drafts = drafted + 1;
  }
  return OkStatus();
}

bool Generator::ClosedPages(const Batch& batch) const {
  const int64_t slots = store_.format().page.page_slots;
  return std::any_of(batch.runs.begin(), batch.runs.end(),
                     [&](const Run* run) { return std::ssize(SlotOf(*run).tokens) % slots == 0; });
}

Status Generator::TakeBackTo(Run* run, int64_t length) {
  Slot& slot = SlotOf(*run);
  const int64_t wrong = std::ssize(slot.tokens) - length;
  if (wrong <= 0) return OkStatus();  // a step that was given up leaves fewer
  slot.tokens.resize(static_cast<size_t>(length));
  return StoreOf(slot).TakeBack(*slot.sequence, wrong);
}

bool Generator::Ends(const Run& run, TokenId token) const {
  const std::vector<TokenId>& eos = model_.config().eos;
  return !run.request->ignore_eos && std::find(eos.begin(), eos.end(), token) != eos.end();
}

void Generator::SampleNext(Run* run, StepInput* input) {
  run->picked.resize(static_cast<size_t>(input->drafts) + 1);
  input->sampler = &*run->sampler;
  input->sampled = run->picked.data();
}

Result<int64_t> Generator::AcceptPicked(const StepInput& input, Run* run, const Hooks& hooks) {
  int64_t right = 0;
  if (input.drafts > 0) {
    right = run->drafter == nullptr ? RightDrafts(input.Drafts(), run->picked)
                                    : run->drafter->Accepted(input.Drafts(), run->picked);
    run->pace.Observe(input.drafts, right);
  }
  run->sampler->Keep(right + 1);
  int64_t accepted = 0;
  do {
    const auto at = static_cast<size_t>(accepted++);
    Accept(accepted <= right ? input.Drafts()[at] : run->picked[at], run, hooks);
  } while (run->active && accepted <= right);
  timings_.drafted_tokens += input.drafts;
  timings_.accepted_drafts += right;
  if (input.drafts == 0) return accepted;
  // Of the last token that was accepted nothing is in the cache.
  const int64_t wrong = input.drafts - (accepted - 1);
  if (Status s = TakeBackTo(run, std::ssize(SlotOf(*run).tokens) - wrong); !s.ok()) return s;
  return accepted;
}

}  // namespace headway
