// What a context whose model is shared between ranks does on all of them at once.
#include <utility>

#include "engine/context.h"
#include "engine/ranks.h"
#include "headway/refusal.h"

namespace headway {

Status Context::Impl::EachRank(const std::function<Status(Impl& rank)>& work) {
  return group->Run(
      [&](int rank) { return work(rank == 0 ? *this : *others[static_cast<size_t>(rank) - 1]); });
}

Result<std::vector<Generation>> Context::Impl::GenerateOnRanks(std::span<const Request> requests,
                                                               const Hooks& hooks) {
  std::vector<Generation> made;
  const Status status = EachRank([&](Impl& rank) {
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
  const Status status = EachRank([&](Impl& rank) {
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

Status Context::Impl::CheckOneRank(const char* what) const {
  if (group == nullptr) return OkStatus();
  return Status(StatusCode::kUnsupported,
                Refusal{{std::string(what) + " is measured on one rank; leave out ",
                         Option::kTensorParallel}});
}

}  // namespace headway
