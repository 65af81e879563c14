// SessionKeeper: saves a sequence of a store to its session file, and restores it.
#ifndef HEADWAY_KV_STORE_SESSION_KEEPER_H_
#define HEADWAY_KV_STORE_SESSION_KEEPER_H_

#include <cstdint>
#include <span>

#include "headway/status.h"
#include "kv/session/manifest.h"
#include "kv/step/cache.h"
#include "kv/step/sequences.h"
#include "kv/step/step_reads.h"
#include "kv/store/bring_up.h"

namespace headway::kv {

class SessionKeeper {
 public:
  // All outlive it.
  SessionKeeper(Cache* cache, Sequences* sequences, StepReads* reads)
      : cache_(*cache), sequences_(*sequences), reads_(*reads) {}

  // As Store's functions of these names, or with "Session" behind them, between steps.
  Result<Manifest> Write(SequenceId id, std::span<const TokenId> tokens, Manifest meta);
  Status Commit(const Manifest& manifest);
  Result<SequenceId> Restore();
  Status BringUp(SequenceId id, const SlotAngles& angles, WithoutRoom rest,
                 const UpProgress& progress);

 private:
  // Calls visit(slab, segment, its closed pages of this sequence) for what the session holds, until
  // one fails.
  template <typename Visit>
  Status VisitSlabs(const Sequence& sequence, Visit&& visit);
  // Of a sequence of which each head has some tokens: fills in what the manifest says of these, and
  // makes the tables and open pages that it says.
  Status DescribeKept(const Sequence& sequence, SavedKept* kept);
  Status RestoreKept(const SavedKept& kept, Sequence* sequence);
  // The tokens behind the last whole page, as SavedKept::open has them, to or from `bytes`.
  enum class OpenPagesTo { kSession, kSequence };
  Status CopyOpenPages(const Sequence& sequence, OpenPagesTo to, std::byte* bytes);
  // Head groups of a layer that the session has; those behind them are zeros.
  int GroupsInSession(int layer) const;
  // As the session knows a head group of the store.
  int InSession(int layer, int group) const;
  // Makes room in the tables of a sequence whose layers begin at these segments.
  void ResizeTables(std::span<const int> first, Sequence* sequence);
  // Gives the sequence's tables the slabs of the manifest that are of the store's heads, and slabs
  // of zeros behind them.
  Status AdoptSlabs(const Manifest& manifest, Sequence* sequence);
  Status AdoptZeros(Sequence* sequence);
  // Brings a copy of every slab to disk, and waits for it.
  Status WriteSlabs(const Sequence& sequence);
  // Those of a segment, which lie on disk.
  Status BringUpSegment(std::span<const SlabId> slabs, int64_t position, const SlotAngles& angles);

  Cache& cache_;
  Sequences& sequences_;
  StepReads& reads_;
  bool restored_ = false;  // or saved anew: the file's slots have an owner
};

}  // namespace headway::kv

#endif  // HEADWAY_KV_STORE_SESSION_KEEPER_H_
