// Store: the KV caches of many sequences over three tiers, and the only code that moves pages.
//
// New K and V of a step are written to device memory: one token at a time into the open page of
// each head, longer runs into an append buffer of whole pages. Pages that close are copied once to
// their slab, whose home tier the placement chose when the slab was begun. Attention reads the
// closed pages slab by slab through a Reader, which brings slabs that are not on the device into
// staging buffers ahead of use, and the newest tokens, the tail, from the append buffer or the open
// page.
//
// One thread calls a Store. Copies run on lanes (h2d, d2h, disk-read, disk-write), ordered against
// the compute lane by events.
#ifndef HEADWAY_KV_STORE_STORE_H_
#define HEADWAY_KV_STORE_STORE_H_

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/env.h"
#include "device/device.h"
#include "device/lanes.h"
#include "headway/status.h"
#include "kernels/kernels.h"
#include "kv/pages/format.h"
#include "kv/policy/placement.h"
#include "kv/session/slab_file.h"
#include "kv/step/step_types.h"
#include "kv/step/store_options.h"

namespace headway::kv {

struct TierUsage {
  int64_t slabs = 0;
  int64_t bytes = 0;         // of slabs, and the memory of streaming heads
  int64_t tokens_bytes = 0;  // bytes of closed pages there
};

class Store {
 public:
  // Kernels run on the lane compute. `session` may be null; when given, it is the disk tier too.
  // Everything outlives the store.
  static Result<std::unique_ptr<Store>> Create(const StoreOptions& options, Env* env,
                                               Device* device, Lanes* lanes,
                                               std::unique_ptr<SlabFile> session);
  ~Store();

  // --- Sequences
  // Its first `x_segments` segments keep X in host memory instead of K and V, where the format
  // does.
  Result<SequenceId> CreateSequence(int x_segments = 0);
  // A sequence with the same closed pages, shared until one of the two appends to a half-filled
  // slab (copy on write), and a copy of the open page.
  Result<SequenceId> Fork(SequenceId sequence);
  void Drop(SequenceId sequence);
  int64_t Length(SequenceId sequence) const;
  // Keeps the first `tokens` rounded down to whole pages, and returns how many that is. kNotFound
  // when a sliding window or streaming heads have let go of pages that the shorter sequence needs;
  // nothing changes then.
  Result<int64_t> Truncate(SequenceId sequence, int64_t tokens);

  // --- A step: BeginStep; for each layer: kernels write to Target, attend to slabs and Tail, then
  // CloseLayer; EndStep.
  //
  // Reserves every slab that the step will close pages into; when one does not fit, the error names
  // the budget and nothing has changed.
  Status BeginStep(std::span<const StepEntry> entries);
  // Where the new tokens of an entry go, for the heads of a group. Valid until CloseLayer of the
  // layer.
  PageRun Target(int entry, int layer, int group);
  // Where X of an entry's new tokens goes, [tokens, x_width] in the pages' dtype; null where none
  // of it will be kept. Valid until CloseLayer of the layer.
  std::byte* XTarget(int entry, int layer);
  // The keys of those heads behind the last closed page before the step, the new ones included.
  KeyRun Tail(int entry, int layer, int group);
  // All keys that an entry's queries see in the streaming heads of a layer, in the order of
  // positions, each once: of the sink and of the rest of its last page, recent ones, and the tail's
  // in the sink and behind it.
  // How they are cut depends on the length before the step and the new tokens only. Valid until
  // CloseLayer of the layer.
  std::array<StreamingRange, 5> StreamingRanges(int entry, int layer);
  // Slabs that the queries of an entry's new tokens can see in a layer, oldest first: segments
  // [first, last).
  using SegmentSpan = kv::SegmentSpan;
  SegmentSpan Segments(int entry, int layer) const;
  // The kernels of this layer are enqueued on the compute stream: closed pages start on their way.
  void CloseLayer(int layer);
  Status EndStep();
  // Gives a begun step up. Sequences in it keep their closed pages of before the step and lose the
  // open ones: they end on a page boundary.
  void AbortStep();

  // --- Reading. Reads are announced at any time within a step, and handed out in the order of
  // their announcement. Slabs that are not on the device are prefetched in that order, from the
  // moment at which they are announced. A refused announcement announces nothing.
  Status Announce(std::span<const SlabRead> reads);
  // These slabs, all of them on the host, stay there for the step.
  Status HoldOnHost(std::span<const HostRead> reads);
  // Begins the order anew: HoldOnHost and Announce alone.
  Status BeginReads(const std::vector<SlabRead>& order, std::span<const HostRead> on_host = {});
  Result<SlabView> NextRead();  // waits on the compute stream, not the thread, where it can
  void FinishRead(const SlabView& view);  // kernels that read it are enqueued

  // --- Reading on the host. Both within a step.
  using SlabPlace = kv::SlabPlace;
  SlabPlace PlaceOf(const SlabRead& slab) const;
  // Where the pages of a slab of BeginReads' `on_host` are.
  KeyRun KeysOnHost(const HostRead& read) const;
  // Runs `work`, which reads those pages, on the cpu lane: behind what the compute stream was given
  // so far and what still writes the pages. What is left over of it when the step ends may go on.
  void RunOnHost(std::span<const HostRead> reads, const WorkCost& cost,
                 std::function<Status()> work);
  // Later work of the compute stream waits for the host's so far.
  void AwaitHost();
  // The first error of the kernels, the copies or the host's work, as far as they have come.
  Status LaneStatus();

  // --- Sessions
  // Writes what is not on disk yet and commits. `tokens` are those of the sequence; hashes and rope
  // state come with `meta` (its format, tokens and slabs are filled in here). After any error the
  // file holds what was saved before.
  Status Save(SequenceId sequence, std::span<const TokenId> tokens, Manifest meta);
  // The sequence that the session's file holds, its slabs on disk until they are read and there is
  // room above. Empty when the session is new.
  Result<SequenceId> Restore();
  bool has_session() const;

  // Waits for all copies, reads and writes under way.
  void Drain();

  // That its copies run on, for copies of others that go among them.
  Lanes& lanes();

  TierUsage Usage(Tier tier) const;
  const CacheFormat& format() const;

 private:
  struct Impl;
  explicit Store(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace headway::kv

#endif  // HEADWAY_KV_STORE_STORE_H_
