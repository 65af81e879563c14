#include "engine/shared_save.h"

#include <algorithm>
#include <utility>

namespace headway {
namespace {

constexpr int64_t kGoOn = 0, kSave = 1;

// Of one part: a table for each of its heads, with as much of open pages as a table of `some` has.
bool IsWhole(const kv::SavedKept& part, const kv::SavedKept& some, int all,
             const kv::LayerHeads& heads) {
  size_t tables = 0;
  for (const std::vector<int>& layer : heads) {
    for (const int head : layer) {
      if (head < 0 || head >= all) return false;
    }
    tables += layer.size();
  }
  return part.positions.size() == tables &&
         part.open.size() * some.positions.size() == some.open.size() * tables;
}

// That they may be joined: other processes tell of theirs.
Status CheckParts(std::span<const kv::SavedKept> parts, int all,
                  std::span<const kv::LayerHeads> heads) {
  size_t tables = 0;
  const auto some = std::find_if(parts.begin(), parts.end(),
                                 [](const auto& part) { return !part.positions.empty(); });
  bool whole = parts.size() == heads.size() && some != parts.end();
  for (size_t rank = 0; whole && rank < parts.size(); ++rank) {
    tables += parts[rank].positions.size();
    whole =
        heads[rank].size() == heads.front().size() && IsWhole(parts[rank], *some, all, heads[rank]);
  }
  if (whole && tables == heads.front().size() * static_cast<size_t>(all)) return OkStatus();
  return Status(StatusCode::kInternal, "what ranks keep does not make up all heads");
}

}  // namespace

Result<kv::Manifest> SharedSave::Join(std::span<const kv::LayerHeads> heads) {
  for (const std::optional<Result<kv::Manifest>>& part : parts_) {
    if (!part->ok()) return part->status();
  }
  kv::Manifest all = std::move(**parts_.front());
  for (size_t rank = 1; rank < parts_.size(); ++rank) {
    if ((**parts_[rank]).kept.has_value() == all.kept.has_value()) continue;
    return Status(StatusCode::kInternal, "some ranks alone keep a part of the prompt");
  }
  if (all.kept.has_value()) {
    std::vector<kv::SavedKept> kept = {std::move(*all.kept)};
    for (size_t rank = 1; rank < parts_.size(); ++rank) {
      kept.push_back(std::move(*(**parts_[rank]).kept));
    }
    if (Status s = CheckParts(kept, all.format.kv_heads, heads); !s.ok()) return s;
    all.kept = kv::JoinKept(kept, all.format.kv_heads, heads);
  }
  for (size_t rank = 1; rank < parts_.size(); ++rank) {
    kv::Manifest& part = **parts_[rank];
    all.slabs.insert(all.slabs.end(), std::make_move_iterator(part.slabs.begin()),
                     std::make_move_iterator(part.slabs.end()));
  }
  return all;
}

void SharedSave::Lead(Communicator& communicator, const std::function<void()>& hook) {
  leading_ = &communicator;
  at_ = At::kInHook;
  hook();
  at_ = At::kInCall;
  // A rank that has ended ends the next step of the others.
  (void)communicator.OfFirst(kGoOn);
}

void SharedSave::LeadAlone(const std::function<void()>& hook) {
  at_ = At::kInLoneHook;
  hook();
  at_ = At::kInCall;
}

void SharedSave::Follow(Communicator& communicator, const std::function<void()>& save) {
  while (true) {
    const Result<int64_t> told = communicator.OfFirst(kGoOn);
    if (!told.ok() || *told == kGoOn) return;
    save();
  }
}

Status SharedSave::BeginOnAll() { return leading_->OfFirst(kSave).status(); }

Status SharedSave::WriteOnAll(Communicator& communicator, const WritePart& write) {
  Write(communicator.rank(), write);
  return communicator.OfFirst(kGoOn).status();
}

}  // namespace headway
