// What a context whose model is shared between ranks does on all of them at once.
#include <numeric>
#include <utility>

#include "base/exceptions.h"
#include "engine/context.h"
#include "engine/orders.h"
#include "engine/processes.h"
#include "engine/ranks.h"
#include "engine/refused.h"
#include "engine/saved_part.h"
#include "parallel/group_errors.h"

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
  const std::string order =
      OrderTo(Order::kGenerate, requests, hooks.on_text != nullptr, MaySave(hooks));
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
  const std::string order = OrderTo(Order::kScore, tokens, part.begin, part.end, MaySave(hooks));
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

std::vector<std::vector<double>> Context::Impl::AttendSecondsOfRanks(Progress::Phase phase) const {
  std::vector<std::vector<double>> seconds;
  const auto add = [&](std::span<const int64_t> layers_ns) {
    std::vector<double>& of_rank = seconds.emplace_back();
    for (const int64_t ns : layers_ns) of_rank.push_back(static_cast<double>(ns) * 1e-9);
  };
  const auto of = [phase](const Impl& rank) {
    std::vector<int64_t> ns = rank.trace.attend_ns(phase == Progress::Phase::kDecode);
    ns.resize(static_cast<size_t>(rank.parts.model->shape().layers));
    return ns;
  };
  if (processes == nullptr) {
    add(of(*this));
    for (const std::unique_ptr<Impl>& rank : others) add(of(*rank));
    return seconds;
  }
  const std::vector<int64_t> own = of(*this);
  // What cannot be asked any more has not attended: the next call says why.
  (void)Together(*processes, OrderTo(Order::kAttended, static_cast<int>(phase)), [&] {
    const Result<std::vector<int64_t>> all = processes->Gather(own);
    if (!all.ok()) return all.status();
    for (size_t at = 0; at < all->size(); at += own.size()) {
      add(std::span(*all).subspan(at, own.size()));
    }
    return OkStatus();
  });
  if (seconds.empty()) add(own);
  seconds.resize(static_cast<size_t>(processes->ranks()), std::vector<double>(own.size()));
  return seconds;
}

Result<kv::Manifest> Context::Impl::WriteSession(std::string_view note) {
  const Slot& slot = generator->slots()[0];
  return generator->StoreOf(slot).WriteSession(*slot.sequence, slot.tokens, SessionMeta(note));
}

Status Context::Impl::SaveOnRanks(std::string_view note) {
  const SharedSave::At at = saving.at();
  if (at == SharedSave::At::kInLoneHook) return OkStatus();
  if (at == SharedSave::At::kInCall) {
    return Status(StatusCode::kInvalidArgument,
                  "ranks save their session between calls, or within on_progress");
  }
  const bool in_hook = at == SharedSave::At::kInHook;
  if (in_hook) {
    if (Status s = saving.BeginOnAll(); !s.ok()) return s;
  }
  if (processes != nullptr) {
    if (in_hook) return SaveInProcess(note);
    return Together(*processes, OrderTo(Order::kSave), [&] { return SaveInProcess(note); });
  }
  const auto write = [&](Impl& rank) { return rank.WriteSession(&rank == this ? note : ""); };
  const Status written =
      in_hook ? saving.WriteOnAll(*parts.communicator, [&] { return write(*this); })
              : EachRank("", [&](Impl& rank) {
                  saving.Write(rank.parts.communicator->rank(), [&] { return write(rank); });
                  return OkStatus();
                });
  if (!written.ok()) return written;
  std::vector<kv::LayerHeads> heads = {HeadsInSession().own};
  for (const std::unique_ptr<Impl>& rank : others) heads.push_back(rank->HeadsInSession().own);
  const Result<kv::Manifest> all = saving.Join(heads);
  if (!all.ok()) return all.status();
  return generator->StoreOf(generator->slots()[0]).CommitSession(*all);
}

// Whatever fails on the way, memory, too: a rank comes to both calls, for which the others wait.
Status Context::Impl::SaveInProcess(std::string_view note) {
  Communicator& communicator = *parts.communicator;
  const bool first = communicator.rank() == 0;
  Result<kv::Manifest> own = Guarded([&] { return WriteSession(note); });
  std::string told;
  if (!first) {
    Status offered = own.ok() ? Guarded([&] { return session.file->Offer(*own); }) : OkStatus();
    if (!offered.ok()) own = std::move(offered);
    (void)Guarded([&] {
      told = WordsOfPart(own, HeadsInSession().own);
      return OkStatus();
    });
  }
  Result<std::vector<std::string>> parts_of_all =
      Guarded([&] { return processes->GatherTexts(told); });
  if (!first) {
    const Result<int64_t> outcome = communicator.OfFirst(0);
    session.file->Settle(outcome.ok() ? static_cast<kv::CommitOutcome>(*outcome)
                                      : kv::CommitOutcome::kUnknown);
    return outcome.status();
  }
  Status saved = parts_of_all.status();
  if (saved.ok()) saved = Guarded([&] { return CommitParts(std::move(own), *parts_of_all); });
  const auto outcome = static_cast<int64_t>(session.file->TakeOutcome());
  // Where this fails the group is at its end, which its next call says.
  (void)communicator.OfFirst(outcome);
  return saved;
}

Status Context::Impl::CommitParts(Result<kv::Manifest> own,
                                  const std::vector<std::string>& others_words) {
  std::vector<kv::LayerHeads> heads = {HeadsInSession().own};
  saving.Write(0, [&] { return std::move(own); });
  const auto ranks = static_cast<int>(others_words.size());
  for (int rank = 1; rank < ranks; ++rank) {
    Result<kv::Manifest> part =
        PartOfWords(others_words[static_cast<size_t>(rank)], &heads.emplace_back());
    saving.Write(rank, [&]() -> Result<kv::Manifest> {
      if (!part.ok()) return OfRank(rank, ranks, part.status());
      return std::move(part);
    });
  }
  const Result<kv::Manifest> all = saving.Join(heads);
  if (!all.ok()) return all.status();
  return generator->StoreOf(generator->slots()[0]).CommitSession(*all);
}

Hooks Context::Impl::HooksOf(Impl& rank, const Hooks& hooks) {
  Communicator& communicator = *rank.parts.communicator;
  Hooks own = HooksOfRank(hooks, communicator);
  if (!MaySave(hooks)) return own;
  const auto save = [this, &rank, &communicator] {
    // What fails the first rank hears of, or else the group is at its end.
    if (processes != nullptr) {
      (void)SaveInProcess("");
    } else {
      (void)saving.WriteOnAll(communicator, [&] { return rank.WriteSession(""); });
    }
  };
  const bool first = communicator.rank() == 0;
  own.on_progress = [this, &communicator, &hooks, first, save](const Progress& progress) {
    // While pages come up, which takes each rank as long as it does, there is nothing to save.
    if (progress.phase == Progress::Phase::kRestore) {
      if (first) saving.LeadAlone([&] { hooks.on_progress(progress); });
    } else if (first) {
      saving.Lead(communicator, [&] { hooks.on_progress(progress); });
    } else {
      saving.Follow(communicator, save);
    }
  };
  return own;
}

Status Context::Impl::CheckOneRank(const char* what) const {
  if (!shared()) return OkStatus();
  return Unsupported(
      {std::string(what) + " is measured on one rank; leave out ",
       parts.settings->layer_ranks > 1 ? Option::kLayersOver : Option::kTensorParallel});
}

}  // namespace headway
