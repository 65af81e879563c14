// Sequences: the sequences of a store: their making, forking, cutting and dropping.
#ifndef HEADWAY_KV_STEP_SEQUENCES_H_
#define HEADWAY_KV_STEP_SEQUENCES_H_

#include <cstdint>
#include <vector>

#include "headway/status.h"
#include "kv/pages/sequence.h"
#include "kv/step/cache.h"
#include "kv/step/step_types.h"

namespace headway::kv {

// What a page table does with the slabs that it forgets.
inline auto ReleaserOf(Slabs& slabs) {
  return [&slabs](SlabId id) { slabs.Release(id); };
}

// Each sequence has one of max_sequences places, which names its open pages.
class Sequences {
 public:
  explicit Sequences(Cache* cache)
      : cache_(*cache), sequences_(static_cast<size_t>(cache->options.max_sequences)) {}

  // As Store's functions of these names, between steps.
  Result<SequenceId> Create(int x_segments);
  Result<SequenceId> Fork(SequenceId id);
  Result<int64_t> Truncate(SequenceId id, int64_t tokens);
  Status TakeBack(SequenceId id, int64_t tokens);

  Sequence* Find(SequenceId id);
  const Sequence* Find(SequenceId id) const;
  int PlaceOf(const Sequence& sequence) const {
    return static_cast<int>(&sequence - sequences_.data());
  }
  Sequence& at(int place) { return sequences_[static_cast<size_t>(place)]; }
  const Sequence& at(int place) const { return sequences_[static_cast<size_t>(place)]; }

  Status BeginStretch(SequenceId id, int64_t tokens);
  // Cuts each sequence in a stretch back to the whole pages that all its layers have.
  void GiveUpStretches();
  // Cuts the sequence to `tokens`, a multiple of the page's slots.
  void Cut(Sequence& sequence, int64_t tokens);
  void DropSequence(Sequence& sequence);

  // Bytes of streaming heads on the device: of the sequences' memory, and of the tokens there.
  int64_t StreamingBytes() const;
  int64_t StreamingTokenBytes() const;

 private:
  int FreePlace() const;
  // Slabs for the pages up to so many tokens.
  Status Reserve(Sequence* sequence, int64_t tokens);
  // Of segments that have no pages yet.
  void DropReserved(Sequence* sequence);
  void Begin(Sequence& sequence);  // gives it an id and no tokens
  // Closed pages that a sequence holds of each streaming head.
  int64_t StreamingPagesOf(const Sequence& sequence) const;

  Cache& cache_;
  std::vector<Sequence> sequences_;  // [max_sequences]
  int64_t next_id_ = 1;
};

}  // namespace headway::kv

#endif  // HEADWAY_KV_STEP_SEQUENCES_H_
