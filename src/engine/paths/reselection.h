// Reselection: what decode steps do that choose salient blocks anew (SaliencePolicy::reselect). The
// layer's queries score the summaries of all blocks before the window, what they list comes to the
// host, and what is not among a head's salient blocks yet is gathered into its places.
#ifndef HEADWAY_ENGINE_PATHS_RESELECTION_H_
#define HEADWAY_ENGINE_PATHS_RESELECTION_H_

#include <cstdint>
#include <span>
#include <vector>

#include "engine/paths/path.h"
#include "engine/step/salience.h"
#include "kernels/selection.h"

namespace headway {

class Reselection {
 public:
  // Of PathKind::bytes.
  static int64_t Bytes(const ModelShape& shape, const ExecutorLimits& limits);
  explicit Reselection(const PathParts& parts);

  // Chooses for entries of the step in a layer; `far` are the slabs that have something before
  // their windows, held in place, by entry, then head group, then position. Waits for the compute
  // stream to have come so far.
  struct Entry {
    int entry = 0;
    Salience::Chosen* chosen = nullptr;
    std::span<const kv::SlabRead> far;
  };
  void Choose(int layer, std::span<const Entry> entries);

 private:
  // Where things lie in the path's memory.
  struct Places {
    Places(const ModelShape& shape, const ExecutorLimits& limits);

    int64_t capacity = 0;  // blocks of a list
    int64_t counts = 0;    // behind the lists, which begin the memory: [entries, kv_heads]
    int64_t slots = 0;     // that are gathered
    int64_t scratch = 0;   // of each entry
    int64_t scratch_bytes = 0;
    int64_t bytes = 0;
  };

  SelectItem ItemFor(int number, const Entry& entry, const SegmentPlace* segments) const;
  void Gather(int layer, int number, const Entry& entry);
  void AddGathers(int layer, int head, const Entry& entry,
                  std::span<const kv::SalientBlocks::Move> moves);

  StepContext& context_;
  const Batch& batch_;
  Salience& salience_;
  std::byte* const memory_;
  const Places places_;
  const BlockedKeys keys_;  // but for their segments and number
  // Of the layer at hand:
  std::vector<SegmentPlace> segments_;
  std::vector<SelectItem> selects_;
  std::vector<kv::SalientBlocks::Move> moves_;
  std::vector<GatherSlotsItem> gathers_;
  std::vector<int32_t> slots_;  // on their way to the device
};

}  // namespace headway

#endif  // HEADWAY_ENGINE_PATHS_RESELECTION_H_
