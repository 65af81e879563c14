// Step: the step in progress of a store: room for the pages that it closes, where its tokens go,
// what it reads, and how it ends. What Store's functions of these names promise holds here.
//
// step.cc begins and ends a step, step_layer.cc says where its tokens and keys lie in a layer,
// step_close.cc sends closed pages to their slabs, step_reads.cc reads them.
#ifndef HEADWAY_KV_STEP_STEP_H_
#define HEADWAY_KV_STEP_STEP_H_

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "headway/status.h"
#include "kernels/kernels.h"
#include "kv/step/cache.h"
#include "kv/step/reader.h"
#include "kv/step/sequences.h"
#include "kv/step/step_types.h"

namespace headway::kv {

class Step {
 public:
  // Both outlive the step.
  Step(Cache* cache, Sequences* sequences)
      : cache_(*cache),
        sequences_(*sequences),
        reader_(cache->format, &cache->lanes, &*cache->mover, &*cache->slabs,
                cache->BuffersOfReads(), cache->poison.get()) {}

  // kInvalidArgument while a step is in progress; `what` begins the message.
  Status Refuse(const std::string& what) const;
  // Whether the sequence at a place takes part.
  bool Has(int place) const;

  Status Begin(std::span<const StepEntry> wanted);
  PageRun Target(int entry_index, int layer, int group);
  std::byte* XTarget(int entry_index, int layer);
  KeyRun Tail(int entry_index, int layer, int group);
  std::array<StreamingRange, 5> StreamingRanges(int entry_index, int layer);
  SegmentSpan Segments(int entry_index, int layer) const;
  void CloseLayer(int layer);
  Status End();
  void Abort();

  Status Announce(std::span<const SlabRead> reads);
  Status HoldOnHost(std::span<const HostRead> reads);
  Status BeginReads(const std::vector<SlabRead>& order, std::span<const HostRead> on_host);
  Result<SlabView> NextRead();
  void FinishRead(const SlabView& view);

  SlabPlace PlaceOf(const SlabRead& slab) const;
  KeyRun KeysOnHost(const HostRead& read) const;
  void RunOnHost(std::span<const HostRead> reads, const WorkCost& cost,
                 std::function<Status()> work);
  void AwaitHost();

 private:
  // One sequence's part of the step in progress.
  struct Entry {
    int place = 0;  // of the sequence
    int64_t tokens = 0;
    int64_t before = 0;       // length
    bool appends = false;     // through the append buffer, not in the open page
    int64_t append_page = 0;  // its first page there, of every head
    int64_t pages = 0;        // that it writes to, of every head
    int64_t closing = 0;      // of these, those that are full then
    int64_t encoded_page =
        0;  // the first that closes in the buffer of encoded pages, of every head
  };

  Status PlanStep(std::span<const StepEntry> wanted);
  // Slabs that the entry's new pages need in a layer: segments [first, last), of which the first
  // may be one that is there.
  struct Growth {
    int first = 0;
    int last = 0;
  };
  Growth GrowthOf(const Entry& entry, const PageTable& table, int layer) const;
  // The tables of an entry's sequence.
  PageTables& TablesOf(const Entry& entry) { return sequences_.at(entry.place).tables; }
  const PageTables& TablesOf(const Entry& entry) const { return sequences_.at(entry.place).tables; }
  // The slab must be copied before it is appended to.
  bool MustCopy(const Slab& slab, int pages) const;
  PerSlabKind<int64_t> NewSlabs() const;
  // Whether some new token of the entry has pages of the kind. The open pages are always of keys
  // and values, and where a segment keeps something else also of that.
  bool Keeps(const Entry& entry, SlabKind kind) const;
  // The first page of an entry's tokens in a layer, of a row.
  std::byte* FirstPage(const Entry& entry, SlabKind kind, int layer, int64_t row) const;
  int64_t RowStride(const Entry& entry, SlabKind kind) const;
  Status Grow(const Entry& entry, int layer, int group);
  Status GrowAll();
  void UndoGrowth();
  void EnterLayer(int next);
  // Of the layer that was entered last (step_close.cc):
  void EncodeClosedPages(const Entry& entry);
  void CopyClosedPages(const Entry& entry);
  // Of a group, from the entry's closing page `page` on.
  ClosedRows RowsOf(const Entry& entry, SlabKind kind, int group, int64_t page) const;
  void CopyOpenPages(const Entry& entry);
  void CopyStreamingPages(const Entry& entry);
  void FinishEntry(const Entry& entry);
  Status EntriesStatus();

  // The slab that a read of the step means, and its closed pages of before the step. kNoSlab, or no
  // pages, where there is none; kInvalidArgument for what the step does not have.
  struct Found {
    SlabId slab = kNoSlab;
    int pages = 0;
    int64_t position = 0;  // of its first key
  };
  Result<Found> FindSlab(const SlabRead& read) const;
  void EndHolds();

  // What BeginStep changed: slab `old` gave way to its copy, or kNoSlab when the slab is new.
  struct Change {
    int place = 0;
    int layer = 0;
    int group = 0;
    int segment = 0;
    SlabId old = kNoSlab;
  };
  Cache& cache_;
  Sequences& sequences_;
  Reader reader_;

  bool in_step_ = false;
  int current_ = -1;  // layer that EnterLayer was called for last
  int layers_closed_ = 0;
  std::vector<Entry> entries_;
  std::vector<Change> changes_;
  std::vector<SlabId> growing_;
  std::vector<Reader::Item> announced_;  // by the call of Announce at hand
  std::vector<SlabId> held_;             // that the host reads in this step
};

}  // namespace headway::kv

#endif  // HEADWAY_KV_STEP_STEP_H_
