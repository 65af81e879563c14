// SharedSave: how ranks save into the one session that they share. Each writes what it has and
// describes it; the first one commits all of it at once.
#ifndef HEADWAY_ENGINE_SHARED_SAVE_H_
#define HEADWAY_ENGINE_SHARED_SAVE_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "base/exceptions.h"
#include "headway/status.h"
#include "kv/session/manifest.h"
#include "parallel/communicator.h"

namespace headway {

class SharedSave {
 public:
  // A rank's part of the session, once it is in the file.
  using WritePart = std::function<Result<kv::Manifest>()>;

  void SetRanks(int ranks) { parts_.resize(static_cast<size_t>(ranks)); }
  // Of each rank, between two steps of all. What `write` throws is an error of the rank's: the
  // others wait for it where all have written.
  void Write(int rank, const WritePart& write) {
    parts_[static_cast<size_t>(rank)] = Guarded(write);
  }
  // Once all have: the first one's description with what all have, or the first error. `heads` are
  // those of each rank.
  Result<kv::Manifest> Join(std::span<const kv::LayerHeads> heads);

  // Within a call that runs on all ranks, at a point that they all come to. The first one's `hook`
  // may call BeginOnAll; then the others go on.
  void Lead(Communicator& communicator, const std::function<void()>& hook);
  // On the others, until the first one goes on: `save` is their part of a save.
  void Follow(Communicator& communicator, const std::function<void()>& save);
  // The first one's `hook` is called while ranks are not at one point, but hold what was saved.
  void LeadAlone(const std::function<void()>& hook);

  // Where the first one is.
  enum class At : uint8_t {
    kBetweenCalls,
    kInCall,
    kInHook,  // of Lead
    kInLoneHook,
  };
  At at() const { return at_; }
  void set_at(At at) { at_ = at; }
  // In Lead: has the others call `save`.
  Status BeginOnAll();
  // What ranks of one process do then, the first one behind BeginOnAll: all have written behind it.
  Status WriteOnAll(Communicator& communicator, const WritePart& write);

 private:
  std::vector<std::optional<Result<kv::Manifest>>> parts_;  // [ranks]
  At at_ = At::kBetweenCalls;
  Communicator* leading_ = nullptr;  // of Lead
};

}  // namespace headway

#endif  // HEADWAY_ENGINE_SHARED_SAVE_H_
