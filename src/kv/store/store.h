// Store: the KV caches of many sequences over three tiers, and the only code that moves pages.
//
// New K and V of a step are written to device memory: one token at a time into the open page of
// each head, longer runs into an append buffer of whole pages. Pages that close are copied once to
// their slab, whose home tier the placement chose when the slab was begun. Attention reads the
// closed pages slab by slab through StepReads, which brings slabs that are not on the device into
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
#include <vector>

#include "base/env.h"
#include "device/device.h"
#include "device/lanes.h"
#include "headway/status.h"
#include "kv/pages/format.h"
#include "kv/session/slab_file.h"
#include "kv/step/step.h"
#include "kv/step/step_reads.h"
#include "kv/step/step_types.h"
#include "kv/step/store_options.h"
#include "kv/store/bring_up.h"
#include "kv/tiers/listed_pages.h"
#include "kv/tiers/mover.h"

namespace headway::kv {

struct TierUsage {
  int64_t slabs = 0;
  int64_t bytes = 0;         // of slabs, and the memory of streaming heads
  int64_t tokens_bytes = 0;  // bytes of closed pages there
};

class Store {
 public:
  // Kernels run on the lane compute. `session` may be null; when given, it is the disk tier too,
  // perhaps that of other stores (StoreOptions::session_heads). Everything else outlives the store.
  static Result<std::unique_ptr<Store>> Create(const StoreOptions& options, Env* env,
                                               Device* device, Lanes* lanes,
                                               std::shared_ptr<SlabFile> session);
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
  // Within a stretch, of one layer.
  int64_t LengthIn(SequenceId sequence, int layer) const;
  // Before a stretch (Step) of so many of its tokens. The pages have slabs then, which are begun
  // segment by segment, so that each layer has as many on each tier; not where older slabs give way
  // to new ones, for which there may be no room before they fill. kOutOfBudget where some do not
  // fit; nothing has changed then.
  Status BeginStretch(SequenceId sequence, int64_t tokens);
  // The same sequences, where not all of the stretch has been read.
  void GiveUpStretches();
  // Keeps the first `tokens` rounded down to whole pages, and returns how many that is. kNotFound
  // when a sliding window or streaming heads have let go of pages that the shorter sequence needs;
  // nothing changes then.
  Result<int64_t> Truncate(SequenceId sequence, int64_t tokens);
  // Takes the last `tokens` back, of those that the sequence's last steps have appended as drafts
  // (StepEntry). Nothing is copied or freed: they are in the open page.
  Status TakeBack(SequenceId sequence, int64_t tokens);

  // --- Eviction, between steps: a sequence of which each head has some tokens is made of one that
  // has all, by kernels on the compute lane. `head` is one of the model.
  // The keys of a head from position `from` on or some before it, range by range, where they lie in
  // memory that kernels read; the last range is of the tokens behind the last whole page.
  // kUnsupported where some lie on disk.
  Result<std::vector<KeyRun>> KeysOf(SequenceId sequence, int layer, int head, int64_t from = 0);
  // All kernels that read them are enqueued.
  void FinishKeys(SequenceId sequence, int layer, int head);
  // A sequence of so many tokens, of whose whole pages no head has any yet. The options' tables are
  // those of each group, which has one head.
  Result<SequenceId> CreateKept(int64_t length);
  // Gives a head of it these tokens. `rows` are those of K and of V of the head, as closed pages
  // are, which kernels may still be writing, and which may be written to again by kernels that are
  // enqueued later.
  Status Keep(SequenceId sequence, int layer, int head, KeptTokens tokens, const ClosedRows& rows);
  // EncodePagesItem::unfit of the rows that heads are given; null but for lossless pages.
  int32_t* unfit() const;
  // Of lossless pages some do not fit: no step succeeds any more.
  bool HasUnfitPages() const;
  // Where its tokens behind the last whole page go.
  PageRun OpenPageOf(SequenceId sequence, int layer, int head);

  // --- The step in progress, one at a time. From its Begin to its End or Abort, Fork, Truncate,
  // Save and Restore are refused, and its sequences must not be dropped.
  Step& step();
  // What it reads.
  StepReads& reads();

  // --- Sessions
  // Writes what is not on disk yet and commits. `tokens` are those of the sequence; hashes and rope
  // state come with `meta` (its format, tokens and slabs are filled in here), and of a sequence
  // with some tokens of a prompt its words and that prompt's tokens. After any error the file holds
  // what was saved before.
  Status Save(SequenceId sequence, std::span<const TokenId> tokens, Manifest meta);
  // The same of stores that share a session, in two parts: each writes what it has and describes
  // it; then one of them commits one of the descriptions with the slabs of all.
  Result<Manifest> WriteSession(SequenceId sequence, std::span<const TokenId> tokens,
                                Manifest meta);
  Status CommitSession(const Manifest& manifest);
  // The sequence that the session's file holds, its slabs on disk until they are read and there is
  // room above. Empty when the session is new.
  Result<SequenceId> Restore();
  // Brings the sequence's slabs that lie on disk up into memory for good, the newest first, and has
  // their summaries made without the rotation of `angles`. `rest` says what becomes of those that
  // memory does not hold, which may stay only where nothing rotates. kCancelled where `progress`
  // says so; after any error, some may have come up.
  Status BringUp(SequenceId sequence, const SlotAngles& angles, WithoutRoom rest,
                 const UpProgress& progress);
  bool has_session() const;

  // Waits for all copies, reads and writes under way.
  void Drain();

  int64_t Bytes(Tier tier) const;  // TierUsage::bytes, which every step may ask for
  TierUsage Usage(Tier tier) const;
  // Blocks of host slabs that steps have read in place so far, where there is a page cache; waits
  // for the compute lane.
  PageCache::Reads PageCacheReads() const;
  // Single pages of slabs on disk that steps have read so far.
  ListedPages::Reads DiskPageReads() const;
  const CacheFormat& format() const;

 private:
  struct Impl;
  explicit Store(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace headway::kv

#endif  // HEADWAY_KV_STORE_STORE_H_
