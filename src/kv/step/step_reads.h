// StepReads: what a step reads of closed pages: slabs that kernels attend to, in the order in which
// they were announced, and slabs in host memory, which the host's cores attend to in place.
#ifndef HEADWAY_KV_STEP_STEP_READS_H_
#define HEADWAY_KV_STEP_STEP_READS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "device/device.h"
#include "headway/status.h"
#include "kernels/kernels.h"
#include "kv/pages/page_table.h"
#include "kv/step/resident_ranges.h"
#include "kv/step/step_types.h"
#include "kv/tiers/listed_pages.h"
#include "kv/tiers/page_cache.h"

namespace headway::kv {

struct Cache;
struct ReadItem;
class Reader;
class Sequences;

class StepReads {
 public:
  // Both outlive it.
  StepReads(Cache* cache, const Sequences* sequences);
  ~StepReads();

  // --- Slabs for kernels. Reads are announced at any time within a step, and handed out in the
  // order of their announcement. Slabs that are not on the device are prefetched in that order,
  // from the moment at which they are announced. A refused announcement announces nothing.
  Status Announce(std::span<const SlabRead> reads);
  Result<SlabView> Next();            // waits on the compute stream, not the thread, where it can
  void Finish(const SlabView& view);  // kernels that read it are enqueued

  // --- Slabs on the device or the host, for kernels that read parts of them where they lie.
  // They stay there for the step. Slabs on disk may be held likewise where single pages of them can
  // be read; in place are then only their summaries.
  Status HoldInPlace(std::span<const SlabRead> reads);
  // Where a slab that is held, and its summaries lie.
  SegmentPlace InPlace(const SlabRead& read) const;
  // Its keys, those of all heads of the group.
  KeyRun KeysInPlace(const SlabRead& read) const;
  // What kernels that read them may keep blocks of host slabs in; without lines where there is
  // none. A decode step says for how many tokens it does that.
  BlockCache block_cache(PageCache::Readers readers) const;
  void CountCachedTokens(int64_t tokens);
  // What that holds of the step's reads so far may give way to its later ones. A decode step has
  // room for all layers' reads; a chunk of a prompt may have more reads than there are lines.
  void LetLinesGo();
  // Later work of the compute stream finds their pages written.
  void AwaitInPlace(std::span<const SlabRead> reads);
  // The kernels that read them are enqueued on the compute stream.
  void FinishInPlace(std::span<const SlabRead> reads);

  // Of an entry's sequence, within a step, below max_sequences: its own for as long as it lives.
  int PlaceOfEntry(int entry) const { return places_[static_cast<size_t>(entry)]; }

  // No slab of any sequence is elsewhere: there is nothing to bring ahead of use.
  bool AllOnDevice() const;
  // Then mostly, all that the queries of an entry's new tokens can see of closed pages in a layer,
  // at once, without an announcement (ResidentRanges), until slabs go or move.
  bool HasResidentRanges() const { return resident_.Usable(); }
  std::span<const ResidentRange> RangesOnDevice(int entry, int layer);
  // The kernels that read them are enqueued on the compute stream.
  void FinishOnDevice();

  // --- Single pages of slabs on disk that are held, for kernels that read memory of the host.
  bool ReadsPages() const;
  // Place i is that of page i % segment_pages in frame i / segment_pages.
  std::span<std::byte* const> PageFrames() const;
  // Memory of the host that kernels read, too: StoreOptions::list_bytes, on 64.
  std::byte* PageLists() const;
  // All that the compute stream was given so far has run.
  void AwaitCompute();
  // Rounds of pages, of which two may be under way (ListedPages). Begins one, whose places are
  // written to *places, once the kernels of the one before the last have run; waits for the first
  // one; its kernels are enqueued.
  void BeginPages(std::span<const PageRead> pages, std::vector<int>* places);
  Status AwaitPages();
  void FinishPages();

  // --- Slabs for the host's cores, within a step.
  // These slabs, all of them on the host, stay there for the step.
  Status HoldOnHost(std::span<const HostRead> reads);
  SlabPlace PlaceOf(const SlabRead& slab) const;
  // Where the pages of a slab that is held on the host are.
  KeyRun KeysOnHost(const HostRead& read) const;
  // Runs `work`, which reads those pages, on the cpu lane: behind what the compute stream was given
  // so far and what still writes the pages. What is left over of it when the step ends may go on.
  void RunOnHost(std::span<const HostRead> reads, const WorkCost& cost,
                 std::function<Status()> work);
  // Later work of the compute stream waits for the host's so far.
  void AwaitHost();

  // The first error of the kernels, the copies or the host's work, as far as they have come. Also
  // between steps.
  Status LaneStatus() const;

  // --- Between steps: makes the summaries that pages of slabs on disk do not have yet. Slabs are
  // read once, whole, through the staging buffers, and stay where they are, but for those that the
  // placement brings up as they are read. After an error none has any more than before.
  Status SummarizeOnDisk(std::span<const SlabId> slabs);

  // --- For Step: a step of the sequences at these places begins, or ends in whatever way. What was
  // announced and not asked for is dropped; the error is that of a slab that was handed out.
  void Begin(std::vector<int> places);
  Status End();

 private:
  // The slab that a read of the step means, and its closed pages of before the step. kNoSlab, or no
  // pages, where there is none; kInvalidArgument for what the step does not have.
  struct Found {
    SlabId slab = kNoSlab;
    int pages = 0;
    int64_t position = 0;  // of its first key
  };
  Result<Found> FindSlab(const SlabRead& read) const;
  void Hold(SlabId id);

  Cache& cache_;
  const Sequences& sequences_;
  const std::unique_ptr<Reader> reader_;
  ResidentRanges resident_;
  std::vector<int> places_;                  // [entries of the step in progress]
  std::vector<ReadItem> announced_;          // by the call of Announce at hand
  std::vector<ListedPages::Wanted> wanted_;  // by the call of BeginPages at hand
  std::vector<SlabId> held_;                 // that are read in place in this step
  std::vector<SlabId> promoted_;             // from disk, by the step that ends
};

}  // namespace headway::kv

#endif  // HEADWAY_KV_STEP_STEP_READS_H_
