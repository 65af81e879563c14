#include "engine/shared_save.h"

#include <utility>

namespace headway {
namespace {

constexpr int64_t kGoOn = 0, kSave = 1;

}  // namespace

Result<kv::Manifest> SharedSave::Join(std::span<const kv::LayerHeads> heads) {
  for (const std::optional<Result<kv::Manifest>>& part : parts_) {
    if (!part->ok()) return part->status();
  }
  kv::Manifest all = std::move(**parts_.front());
  if (all.kept.has_value()) {
    std::vector<kv::SavedKept> kept = {std::move(*all.kept)};
    for (size_t rank = 1; rank < parts_.size(); ++rank) {
      kept.push_back(std::move(*(**parts_[rank]).kept));
    }
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
