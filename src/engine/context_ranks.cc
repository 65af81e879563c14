// What a context whose model is shared between ranks does on all of them at once.
#include <numeric>
#include <utility>

#include "engine/context.h"
#include "engine/orders.h"
#include "engine/processes.h"
#include "engine/ranks.h"
#include "headway/refusal.h"

namespace headway {

Context::~Context() {
  if (impl_ == nullptr || !impl_->shared_id.has_value()) return;
  // Without the other ranks there is nothing to close.
  (void)Together(*impl_->processes, impl_->OrderTo(Order::kClose), [] { return OkStatus(); });
}

Status Context::Impl::EachRank(const std::string& order,
                               const std::function<Status(Impl& rank)>& work) {
  if (processes != nullptr) return Together(*processes, order, [&] { return work(*this); });
  if (group == nullptr) return work(*this);
  return group->Run(
      [&](int rank) { return work(rank == 0 ? *this : *others[static_cast<size_t>(rank) - 1]); });
}

Status Context::Impl::CallRanks(const std::string& order,
                                const std::function<Status(Impl& rank)>& work) {
  saving.set_at(SharedSave::At::kInCall);
  const Status status = EachRank(order, work);
  saving.set_at(SharedSave::At::kBetweenCalls);
  return status;
}

Result<std::vector<Generation>> Context::Impl::GenerateOnRanks(std::span<const Request> requests,
                                                               const Hooks& hooks) {
  std::vector<Generation> made;
  const std::string order = OrderTo(Order::kGenerate, requests, hooks.on_text != nullptr);
  const Status status = CallRanks(order, [&](Impl& rank) {
    const Hooks own = HooksOf(rank, hooks);
    Result<std::vector<Generation>> of_rank = rank.generator->Generate(requests, own);
    if (of_rank.ok() && &rank == this) made = std::move(*of_rank);
    return of_rank.status();
  });
  if (!status.ok()) return status;
  return made;
}

Result<Context::ScoreResult> Context::Impl::ScoreOnRanks(std::span<const TokenId> tokens,
                                                         const ScorePart& part,
                                                         const Hooks& hooks) {
  ScoreResult made;
  const std::string order = OrderTo(Order::kScore, tokens, part.begin, part.end);
  const Status status = CallRanks(order, [&](Impl& rank) {
    const Hooks own = HooksOf(rank, hooks);
    ScorePart of_rank = part;
    if (&rank != this) of_rank.logits = nullptr;
    const Result<ScoreResult> score = rank.generator->Score(tokens, of_rank, own);
    if (score.ok() && &rank == this) made = *score;
    return score.status();
  });
  if (!status.ok()) return status;
  return made;
}

int64_t Context::Impl::TierBytesOfRanks(Tier tier) const {
  int64_t bytes = TierBytes(tier);
  for (const std::unique_ptr<Impl>& rank : others) bytes += rank->TierBytes(tier);
  if (processes == nullptr) return bytes;
  Result<std::vector<int64_t>> all(std::vector<int64_t>{});
  // What cannot be counted any more is not there: the next call says why.
  (void)Together(*processes, OrderTo(Order::kTierBytes, static_cast<int>(tier)), [&] {
    all = processes->Gather({&bytes, 1});
    return all.status();
  });
  return all.ok() ? std::accumulate(all->begin(), all->end(), int64_t{0}) : 0;
}

std::vector<double> Context::Impl::AttendSecondsOfRanks() const {
  std::vector<int64_t> ns = {trace.attend_ns()};
  for (const std::unique_ptr<Impl>& rank : others) ns.push_back(rank->trace.attend_ns());
  if (processes != nullptr) {
    // What cannot be asked any more has not attended: the next call says why.
    (void)Together(*processes, OrderTo(Order::kAttended), [&] {
      Result<std::vector<int64_t>> all = processes->Gather({ns.data(), 1});
      if (all.ok()) ns = std::move(*all);
      return all.status();
    });
  }
  std::vector<double> seconds;
  for (const int64_t of_rank : ns) seconds.push_back(static_cast<double>(of_rank) * 1e-9);
  return seconds;
}

Result<kv::Manifest> Context::Impl::WriteSession(std::string_view note) {
  const Slot& slot = generator->slots()[0];
  return generator->StoreOf(slot).WriteSession(*slot.sequence, slot.tokens, SessionMeta(note));
}

Status Context::Impl::SaveOnRanks(std::string_view note) {
  const auto write = [&](Impl& rank) { return rank.WriteSession(&rank == this ? note : ""); };
  Status written;
  switch (saving.at()) {
    case SharedSave::At::kInLoneHook:
      return OkStatus();
    case SharedSave::At::kInCall:
      return Status(StatusCode::kInvalidArgument,
                    "ranks save their session between calls, or within on_progress");
    case SharedSave::At::kInHook:
      written = saving.WriteOnAll([&] { return write(*this); });
      break;
    case SharedSave::At::kBetweenCalls:
      written = EachRank("", [&](Impl& rank) {
        saving.Write(rank.parts.communicator->rank(), [&] { return write(rank); });
        return OkStatus();
      });
      break;
  }
  if (!written.ok()) return written;
  std::vector<kv::LayerHeads> heads = {HeadsInSession().own};
  for (const std::unique_ptr<Impl>& rank : others) heads.push_back(rank->HeadsInSession().own);
  const Result<kv::Manifest> all = saving.Join(heads);
  if (!all.ok()) return all.status();
  return generator->StoreOf(generator->slots()[0]).CommitSession(*all);
}

Hooks Context::Impl::HooksOf(Impl& rank, const Hooks& hooks) {
  Hooks own = HooksOfRank(hooks, *rank.parts.communicator);
  if (session.file == nullptr || !hooks.on_progress) return own;
  const bool first = &rank == this;
  own.on_progress = [this, &rank, &hooks, first](const Progress& progress) {
    // While pages come up, which takes each rank as long as it does, there is nothing to save.
    if (progress.phase == Progress::Phase::kRestore) {
      if (first) saving.LeadAlone([&] { hooks.on_progress(progress); });
    } else if (first) {
      saving.Lead(*parts.communicator, [&] { hooks.on_progress(progress); });
    } else {
      saving.Follow(*rank.parts.communicator, [&] { return rank.WriteSession(""); });
    }
  };
  return own;
}

Status Context::Impl::CheckOneRank(const char* what) const {
  if (!shared()) return OkStatus();
  return Status(StatusCode::kUnsupported,
                Refusal{{std::string(what) + " is measured on one rank; leave out ",
                         Option::kTensorParallel}});
}

}  // namespace headway
