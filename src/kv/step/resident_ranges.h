// ResidentRanges: where the closed pages of sequences lie whose slabs are all on the device, known
// from step to step. Decodes of many sequences whose heads keep tokens of their own have tens of
// thousands of slabs, and would look each of them up in each step.
#ifndef HEADWAY_KV_STEP_RESIDENT_RANGES_H_
#define HEADWAY_KV_STEP_RESIDENT_RANGES_H_

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/kernels.h"
#include "kv/pages/sequence.h"
#include "kv/step/cache.h"

namespace headway::kv {

// The closed pages of a segment of a head group.
struct ResidentRange {
  int group = 0;
  KeyRun keys;  // of the heads of the group
};

class ResidentRanges {
 public:
  // The cache outlives it.
  explicit ResidentRanges(Cache* cache);

  // Whether ranges can be had: all slabs hold keys and values on the device, each query sees all of
  // them, and no placement asks which of them were read.
  bool Usable() const;
  // Those of a layer of the sequence at a place, by group, then in the order of positions. Later
  // work of the compute stream finds them written. Until the sequence closes pages, or slabs go or
  // move.
  std::span<const ResidentRange> Of(const Sequence& sequence, int place, int layer);

 private:
  struct Known {
    int64_t sequence = -1;
    int64_t closed = 0;   // pages of the sequence
    int64_t changes = 0;  // of the slabs
    std::vector<ResidentRange> ranges;
  };
  void Find(const Sequence& sequence, int layer, std::vector<ResidentRange>* ranges) const;

  Cache& cache_;
  std::vector<Known> known_;  // [layers, max_sequences]: a step asks layer by layer
};

}  // namespace headway::kv

#endif  // HEADWAY_KV_STEP_RESIDENT_RANGES_H_
