// Step: the step in progress of a store: room for the pages that it closes, where its tokens go,
// and how it ends. StepReads has what it reads.
//
// step.cc begins and ends a step, step_layer.cc says where its tokens and keys lie in a layer,
// step_close.cc sends closed pages to their slabs.
#ifndef HEADWAY_KV_STEP_STEP_H_
#define HEADWAY_KV_STEP_STEP_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "headway/status.h"
#include "kernels/kernels.h"
#include "kv/pages/page_table.h"
#include "kv/pages/slab_layout.h"
#include "kv/step/step_types.h"

namespace headway::kv {

struct Cache;
struct ClosedRows;
struct Sequence;
struct Slab;
class Sequences;
class StepReads;

// Begin; for each layer: kernels write to Target, attend to slabs and Tail, then CloseLayer; End.
//
// Or a stretch: tokens of some steps that pass through one layer after the other. Each of its steps
// is one of a layer alone; when all layers have had all of them, the sequences are longer.
class Step {
 public:
  // All outlive the step.
  Step(Cache* cache, Sequences* sequences, StepReads* reads)
      : cache_(*cache), sequences_(*sequences), reads_(*reads) {}

  // Reserves every slab that the step will close pages into; when one does not fit, the error names
  // the budget and nothing has changed. With a layer the step is of it alone, behind the tokens
  // that the layer has; a step of a stretch that is refused or given up ends the stretch, of which
  // then nothing is left. No windows, streaming heads or drafts there.
  Status Begin(std::span<const StepEntry> wanted, std::optional<int> layer = {});
  // Where the new tokens of an entry go, for the heads of a group. Valid until CloseLayer of the
  // layer.
  PageRun Target(int entry_index, int layer, int group);
  // Where X of an entry's new tokens goes, [tokens, x_width] in the pages' dtype; null where none
  // of it will be kept. Valid until CloseLayer of the layer.
  std::byte* XTarget(int entry_index, int layer);
  // The keys of those heads behind the last closed page before the step, the new ones included;
  // none where another rank has them.
  KeyRun Tail(int entry_index, int layer, int group);
  // All keys that an entry's queries see in the streaming heads of a layer, in the order of
  // positions, each once: of the sink and of the rest of its last page, recent ones, and the tail's
  // in the sink and behind it.
  // How they are cut depends on the length before the step and the new tokens only. Valid until
  // CloseLayer of the layer.
  std::array<StreamingRange, 5> StreamingRanges(int entry_index, int layer);
  // Slabs that the queries of an entry's new tokens can see in a head group of a layer, oldest
  // first: segments [first, last).
  SegmentSpan Segments(int entry_index, int layer, int group) const;
  // The kernels of this layer are enqueued on the compute stream: closed pages start on their way.
  void CloseLayer(int layer);
  Status End();
  // Gives a begun step up. Sequences in it keep their closed pages of before the step and lose the
  // open ones: they end on a page boundary.
  void Abort();

  // kInvalidArgument while a step is in progress; `what` begins the message.
  Status Refuse(const std::string& what) const;
  // Whether the sequence takes part in a step in progress.
  bool Has(SequenceId sequence) const;

 private:
  // One sequence's part of the step in progress.
  struct Entry {
    int place = 0;  // of the sequence
    int64_t tokens = 0;
    int64_t drafts = 0;       // as StepEntry's
    int64_t before = 0;       // length, of the step's layers
    bool appends = false;     // through the append buffer, not in the open page
    int64_t append_page = 0;  // its first page there, of every head
    int64_t pages = 0;        // that it writes to, of every head
    int64_t closing = 0;      // of these, those that are full then
    // The first page that closes, of every head, in the buffer of encoded pages.
    int64_t encoded_page = 0;
    RopeTable rotated = {};  // as StepEntry's
  };

  Status PlanStep(std::span<const StepEntry> wanted);
  Status CheckStretch(std::span<const StepEntry> wanted) const;
  int end_layer() const { return first_layer_ + layers_; }
  // Slabs that the entry's new pages need in a layer: segments [first, last), of which the first
  // may be one that is there.
  struct Growth {
    int first = 0;
    int last = 0;
  };
  Growth GrowthOf(const Entry& entry, const PageTable& table, int layer) const;
  // The tables of an entry's sequence.
  PageTables& TablesOf(const Entry& entry);
  const PageTables& TablesOf(const Entry& entry) const;
  // The slab must be copied before it is appended to.
  bool MustCopy(const Slab& slab, int pages) const;
  PerSlabKind<int64_t> NewSlabs() const;
  // Whether some new token of the entry has pages of the kind. The open pages are always of keys
  // and values, and where a segment keeps something else also of that.
  bool Keeps(const Entry& entry, SlabKind kind) const;
  // Tail, whoever has it.
  KeyRun AllOfTail(int entry_index, int layer, int group);
  // The first page of an entry's tokens in a layer, of a row.
  std::byte* FirstPage(const Entry& entry, SlabKind kind, int layer, int64_t row) const;
  int64_t RowStride(const Entry& entry, SlabKind kind) const;
  // So many keys and values of a head group from there on.
  PageRun NewPages(const Entry& entry, int layer, int group, int64_t slots) const;
  // As a segment of a group is begun, one behind it ceases to have recent keys.
  void PassBehind(const PageTable& table, int group, int segment);
  Status Grow(const Entry& entry, int layer, int group);
  Status GrowAll();
  void UndoGrowth();
  void EnterLayer(int next);
  // Of the layer that was entered last (step_close.cc):
  void EncodeClosedPages(const Entry& entry);
  void SummarizeClosedPages(const Entry& entry);
  // Whether a kernel moves the entry's pages that close into the slab: of decode, where each slab
  // takes one page, and copies of many heads' pages take longer to begin than to make.
  bool Gathers(const Entry& entry, const Slab& slab) const;
  // Whether nothing of the layer is left to be copied then.
  bool GatherClosedPages();
  void CopyClosedPages(const Entry& entry);
  // Calls visit(slab, first, last, page) for each slab of a group that pages close into: its pages
  // [first, last), which are the entry's closing ones from `page` on.
  template <typename Visit>
  void ForEachClosing(const Entry& entry, int group, const Visit& visit);
  // Of a group, from the entry's closing page `page` on.
  ClosedRows RowsOf(const Entry& entry, SlabKind kind, int group, int64_t page) const;
  void CopyOpenPages(const Entry& entry);
  void CopyStreamingPages(const Entry& entry);
  void FinishEntry(const Entry& entry);
  // All layers have had the tokens of the stretch.
  void FinishStretch(Sequence& sequence);
  Status EntriesStatus();

  // What Begin changed: slab `old` gave way to its copy, or kNoSlab when the slab is new.
  struct Change {
    int place = 0;
    int layer = 0;
    int group = 0;
    int segment = 0;
    SlabId old = kNoSlab;
  };
  Cache& cache_;
  Sequences& sequences_;
  StepReads& reads_;

  bool in_step_ = false;
  bool in_stretch_ = false;           // the step is of a layer alone
  int first_layer_ = 0, layers_ = 0;  // of the step, [first, first + layers)
  int current_ = -1;                  // layer that EnterLayer was called for last
  int next_layer_ = 0;                // that is closed next
  std::vector<Entry> entries_;
  std::vector<Change> changes_;
  std::vector<SlabId> growing_;
};

}  // namespace headway::kv

#endif  // HEADWAY_KV_STEP_STEP_H_
