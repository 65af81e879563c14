// What a Store is made of. store.cc holds its making and its sequences, store_step.cc the steps,
// store_close.cc the pages that they close, store_streaming.cc the steps of streaming heads,
// store_host.cc what the host's cores read, store_session.cc saving and restoring.
#ifndef HEADWAY_KV_STORE_STORE_IMPL_H_
#define HEADWAY_KV_STORE_STORE_IMPL_H_

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "device/lanes.h"
#include "kv/pages/page_math.h"
#include "kv/pages/sequence.h"
#include "kv/pages/streaming_pages.h"
#include "kv/step/reader.h"
#include "kv/step/step_buffers.h"
#include "kv/step/streaming_heads.h"
#include "kv/store/store.h"
#include "kv/tiers/disk_tier.h"
#include "kv/tiers/frame_pool.h"
#include "kv/tiers/mover.h"
#include "kv/tiers/slabs.h"

namespace headway::kv {

// Every number in range, and no size that wraps.
Status CheckOptions(const StoreOptions& options);

struct Store::Impl {
  Impl(const StoreOptions& store_options, Lanes* store_lanes, std::unique_ptr<SlabFile> file,
       bool session);
  ~Impl();
  Status Allocate(Device* device);
  Status AllocateStaging(Device* device);
  // Frames for the slabs of a kind.
  Status MakePools(SlabKind kind, Device* device);
  SlabHomes HomesOf(SlabKind kind);

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

  // --- sequences (store.cc)
  Sequence* Find(SequenceId id);
  const Sequence* Find(SequenceId id) const;
  int PlaceOf(const Sequence& sequence) const {
    return static_cast<int>(&sequence - sequences.data());
  }
  int FreePlace() const;
  void Begin(Sequence& sequence);  // gives it an id and no tokens
  // What a page table does with the slabs that it forgets.
  auto Releaser() {
    return [this](SlabId id) { slabs->Release(id); };
  }
  // Cuts the sequence to `tokens`, a multiple of the page's slots.
  void Cut(Sequence& sequence, int64_t tokens);
  void DropSequence(Sequence& sequence);
  Status RefuseInStep(const char* what) const;
  // Closed pages that a sequence holds of each streaming head.
  int64_t StreamingPagesOf(const Sequence& sequence) const;

  // --- steps (store_step.cc)
  // Whether the lanes can still be trusted.
  Status LaneStatus();
  Status PlanStep(std::span<const StepEntry> wanted);
  // Slabs that the entry's new pages need in a layer: segments [first, last), of which the first
  // may be one that is there.
  struct Growth {
    int first = 0;
    int last = 0;
  };
  Growth GrowthOf(const Entry& entry, const PageTable& table, int layer) const;
  // The tables of an entry's sequence.
  PageTables& TablesOf(const Entry& entry) {
    return sequences[static_cast<size_t>(entry.place)].tables;
  }
  const PageTables& TablesOf(const Entry& entry) const {
    return sequences[static_cast<size_t>(entry.place)].tables;
  }
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
  // Of the layer that was entered last (store_close.cc):
  void EncodeClosedPages(const Entry& entry);
  void CopyClosedPages(const Entry& entry);
  // Of a group, from the entry's closing page `page` on.
  ClosedRows RowsOf(const Entry& entry, SlabKind kind, int group, int64_t page) const;
  void CopyOpenPages(const Entry& entry);
  void CopyStreamingPages(const Entry& entry);  // store_streaming.cc
  void FinishEntry(const Entry& entry);
  Status StepStatus();

  // The slab that a read of the step means, and its closed pages of before the step. kNoSlab, or no
  // pages, where there is none; kInvalidArgument for what the step does not have.
  struct Found {
    SlabId slab = kNoSlab;
    int pages = 0;
    int64_t position = 0;  // of its first key
  };
  Result<Found> FindSlab(const SlabRead& read) const;
  void EndHolds();  // store_host.cc

  // --- sessions (store_session.cc)
  // Calls visit(slab, segment, its closed pages of this sequence) until one fails.
  template <typename Visit>
  Status VisitSlabs(const Sequence& sequence, Visit&& visit);
  // Brings a copy of every slab to disk, and waits for it.
  Status WriteSlabs(const Sequence& sequence);

  const StoreOptions options;
  const CacheFormat format;
  const PerSlabKind<SlabLayout> layouts;
  const PageMath math;
  const StreamingPages streaming_pages;
  const bool is_session;
  Lanes& lanes;
  Stream* const compute;
  DiskTier disk;
  std::unique_ptr<Poison> poison;
  std::unique_ptr<StepBuffers> buffers;
  std::unique_ptr<StreamingHeads> streaming;
  std::unique_ptr<Buffer> staging;
  std::unique_ptr<Buffer> gathers;  // null where no kind gathers
  std::unique_ptr<Buffer> bounce;
  // By kind and tier; null where slabs of the kind never lie there.
  PerSlabKind<std::array<std::unique_ptr<FramePool>, 2>> pools;
  std::optional<Mover> mover;
  std::optional<Slabs> slabs;
  std::optional<Reader> reader;

  std::vector<Sequence> sequences;  // [max_sequences]
  int64_t next_id = 1;

  bool in_step = false;
  int current = -1;  // layer that EnterLayer was called for last
  int layers_closed = 0;
  std::vector<Entry> entries;
  // What BeginStep changed: slab `old` gave way to its copy, or kNoSlab when the slab is new.
  struct Change {
    int place = 0;
    int layer = 0;
    int group = 0;
    int segment = 0;
    SlabId old = kNoSlab;
  };
  std::vector<Change> changes;
  std::vector<SlabId> growing;
  std::vector<Reader::Item> announced;  // by the call of Announce at hand
  std::vector<SlabId> held;             // that the host reads in this step

  bool restored = false;  // or saved anew: the file's slots have an owner
};

}  // namespace headway::kv

#endif  // HEADWAY_KV_STORE_STORE_IMPL_H_
