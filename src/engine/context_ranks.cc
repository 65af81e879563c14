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

Result<std::vector<Generation>> Context::Impl::GenerateOnRanks(std::span<const Request> requests,
                                                               const Hooks& hooks) {
  std::vector<Generation> made;
  const std::string order = OrderTo(Order::kGenerate, requests, hooks.on_text != nullptr);
  const Status status = EachRank(order, [&](Impl& rank) {
    const Hooks own = HooksOfRank(hooks, *rank.parts.communicator);
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
  const Status status = EachRank(order, [&](Impl& rank) {
    const Hooks own = HooksOfRank(hooks, *rank.parts.communicator);
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

Status Context::Impl::CheckOneRank(const char* what) const {
  if (!shared()) return OkStatus();
  return Status(StatusCode::kUnsupported,
                Refusal{{std::string(what) + " is measured on one rank; leave out ",
                         Option::kTensorParallel}});
}

}  // namespace headway
