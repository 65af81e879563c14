// KeptHeads: sequences whose heads have let go of tokens (eviction), and the keys that these are
// chosen from.
#ifndef HEADWAY_KV_STORE_KEPT_HEADS_H_
#define HEADWAY_KV_STORE_KEPT_HEADS_H_

#include <cstdint>
#include <vector>

#include "headway/status.h"
#include "kv/step/cache.h"
#include "kv/step/sequences.h"

namespace headway::kv {

class KeptHeads {
 public:
  // Both outlive it.
  KeptHeads(Cache* cache, Sequences* sequences);

  // As Store's functions of eviction, between steps.
  Result<std::vector<KeyRun>> KeysOf(SequenceId id, int layer, int head, int64_t from);
  void FinishKeys(SequenceId id, int layer, int head);
  Result<SequenceId> Create(int64_t length);
  Status Keep(SequenceId id, int layer, int head, KeptTokens tokens, const ClosedRows& rows);
  PageRun OpenPageOf(SequenceId id, int layer, int head);

 private:
  // Where a head of the model is in the cache.
  struct HeadPlace {
    int group = -1;  // none: a streaming head
    HeadRun run;     // of this head alone
  };
  const HeadPlace& PlaceOf(int layer, int head) const;

  Cache& cache_;
  Sequences& sequences_;
  std::vector<std::vector<HeadPlace>> places_;  // [layers][heads of the model]
};

}  // namespace headway::kv

#endif  // HEADWAY_KV_STORE_KEPT_HEADS_H_
