// Drafts of a generator's runs: what decode steps verify, and what becomes of it.
#include <algorithm>

#include "engine/generator.h"

namespace headway {

// No page closes with a draft in it: a draft that is wrong is cut off the open page.
int64_t Generator::MostDrafts(const Run& run) {
  const int64_t slots = store_.format().page.page_slots;
  const int64_t length = std::ssize(SlotOf(run).tokens);
  const int64_t in_page = slots - 2 - length % slots;
  const int64_t in_context = lengths_[static_cast<size_t>(run.slot)] - length - 1;
  const int64_t wanted = run.request->max_tokens - std::ssize(run.out.tokens) - 1;
  return std::max<int64_t>(0, std::min({executor_.limits().drafts, in_page, in_context, wanted}));
}

Status Generator::Feed(Run* run) {
  run->fed = {run->out.tokens.back()};
  if (run->drafter == nullptr) return OkStatus();
  int64_t most = MostDrafts(*run);
  if (paces_drafts_) most = run->pace.Next(most, draft_costs_);
  return most > 0 ? run->drafter->Propose(most, &run->fed) : OkStatus();
}

void Generator::SampleNext(Run* run, StepInput* input) {
  run->picked.resize(static_cast<size_t>(input->drafts) + 1);
  input->sampler = &*run->sampler;
  input->sampled = run->picked.data();
}

Result<int64_t> Generator::AcceptPicked(const StepInput& input, Run* run, const Hooks& hooks) {
  const int64_t right = input.drafts == 0 ? 0 : run->drafter->Accepted(input.Drafts(), run->picked);
  if (input.drafts > 0) run->pace.Observe(input.drafts, right);
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
  Slot& slot = SlotOf(*run);
  const int64_t wrong = input.drafts - (accepted - 1);
  if (Status s = StoreOf(slot).TakeBack(*slot.sequence, wrong); !s.ok()) return s;
  slot.tokens.resize(slot.tokens.size() - static_cast<size_t>(wrong));
  return accepted;
}

}  // namespace headway
