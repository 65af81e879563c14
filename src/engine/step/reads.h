// Reads: the closed pages that a step's queries see. They come to the paths as ranges, layer by
// layer; what a path wants to be read joins the queue in which the store brings it.
#ifndef HEADWAY_ENGINE_STEP_READS_H_
#define HEADWAY_ENGINE_STEP_READS_H_

#include <cstddef>
#include <vector>

#include "engine/step/batch.h"
#include "engine/step/step_context.h"
#include "headway/status.h"
#include "kv/store/store.h"

namespace headway {

// The closed pages of one segment and head group that the queries of an entry see.
struct SlabRange {
  kv::SlabRead slab;
  bool x = false;  // the store keeps X of it instead of K and V
};

class Reads {
 public:
  Reads(StepContext& context, const Batch& batch) : context_(context), batch_(batch) {}

  // The store has begun a step. With `resident` what is on the device is not announced: the one
  // path that wants it asks for it layer by layer.
  void Begin(bool resident = false);
  bool resident() const { return resident_; }
  // All ranges of a layer: by head group, then entry, then position. Entries that draft see what
  // lies in memory as keys and values: nothing comes from disk for them, or is recomputed.
  void RangesOf(int layer, std::vector<SlabRange>* ranges) const;

  // --- What path number `path` wants of the layer at hand: a slab to be read, in the order in
  // which it will ask for it, and pages that stay on the host for the step.
  void Add(int path, const kv::SlabRead& slab) { queue_.push_back({slab, path}); }
  void Hold(const kv::HostRead& read) { holds_.push_back(read); }
  // The same of a slab that is read where it lies, on the device or the host.
  void HoldInPlace(const kv::SlabRead& slab) { in_place_.push_back(slab); }
  // All paths have said what they want of a layer: head groups are read one after the other, within
  // them the paths.
  void EndLayer();
  // What was added goes to the store, which starts to bring it.
  Status Announce();

  // --- The queue
  // Whether the next slab is for `path` and a head group of a layer.
  bool IsNext(int path, int layer, int group) const;
  // The read that Next answers.
  const kv::SlabRead& Peek() const { return queue_[next_].slab; }
  Result<kv::SlabView> Next();
  // Gives a view back now: all kernels that read it are enqueued.
  void Finish(const kv::SlabView& view) { context_.store.reads().Finish(view); }
  // Gives it back with the next FinishHeld.
  void FinishLater(const kv::SlabView& view) { held_.push_back(view); }
  void FinishHeld();
  // The step is given up.
  void Abort();

 private:
  bool Sees(const BatchEntry& entry, const SlabRange& range) const;
  struct Queued {
    kv::SlabRead slab;
    int path;
  };

  StepContext& context_;
  const Batch& batch_;
  bool resident_ = false;
  std::vector<Queued> queue_;  // of the step
  size_t layer_first_ = 0;     // in queue_, of the layer at hand
  size_t announced_ = 0;       // of queue_
  size_t next_ = 0;            // of queue_
  std::vector<kv::HostRead> holds_;
  std::vector<kv::SlabRead> in_place_;
  std::vector<kv::SlabView> held_;
  std::vector<kv::SlabRead> slabs_;  // that Announce has just announced
};

}  // namespace headway

#endif  // HEADWAY_ENGINE_STEP_READS_H_
