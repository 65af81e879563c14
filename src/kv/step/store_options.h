// StoreOptions: what a store is made for, what it takes of each tier, and whether it can be made.
#ifndef HEADWAY_KV_STEP_STORE_OPTIONS_H_
#define HEADWAY_KV_STEP_STORE_OPTIONS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "device/budget.h"
#include "headway/status.h"
#include "kernels/kernels.h"
#include "kv/pages/format.h"
#include "kv/pages/page_table.h"
#include "kv/policy/placement.h"

namespace headway::kv {

// What a store of a rank has of the KV heads of a session that ranks share.
struct SessionHeads {
  int all = 0;  // of the session; 0: the store has them all, in their order
  // [layers]: of each head of the store, the session's. A layer may have fewer than the store: what
  // is behind them are zeros, which the session does not hold.
  std::vector<std::vector<int>> own = {};
};

struct StoreOptions {
  CacheFormat format;
  int max_sequences = 1;
  int64_t max_step_tokens = 512;  // tokens of all sequences that one step appends at most
  int staging_slabs = 2;          // device buffers that streamed slabs pass through
  int bounce_slabs = 2;           // host buffers between disk and device; 0 without a disk tier
  // Host memory of so many slabs for single pages of slabs on disk (ListedPages), and that of the
  // lists by which they are read (StepReads::PageLists); 0 without a disk tier, and where slabs on
  // disk are read whole.
  int listed_slabs = 0;
  int64_t list_bytes = 0;
  int64_t device_slabs = 0;  // for which Create takes memory at once
  int64_t host_slabs = 0;
  int64_t alias_host_slabs = 0;  // for measuring: all host slabs are these few, by turns
  // Where the format keeps X: host slabs of it for which Create takes memory at once; tokens of a
  // gather, X that is read and recomputed together, a multiple of the page's slots and at least a
  // segment; and the device buffers that gathers pass through.
  int64_t x_slabs = 0;
  int64_t gather_tokens = 0;
  int gathers = 2;
  int64_t summary_frames = 0;     // slabs with summaries for which Create takes memory at once
  Tier sketches = Tier::kDevice;  // where those of their keys lie: there, or on the host
  // Device memory for copies of blocks of host slabs that are read in place; 0: for none.
  int64_t page_cache_bytes = 0;
  PlacementKind placement = PlacementKind::kFirstFit;
  // Of each sequence, the keys at its begin and at its end that every step reads, which kRecent
  // keeps on the device before others.
  int64_t sink_tokens = 0;
  int64_t recent_tokens = 0;
  Kernels* kernels = nullptr;       // encode and summarise pages that close, on the compute stream;
                                    // where the format does
  Budget* device_budget = nullptr;  // bounds pages, append and staging buffers on the device
  Budget* host_budget = nullptr;    // bounds host slabs, and bounce buffers unless these have
  Budget* bounce_budget = nullptr;  // one of their own
  Budget* disk_budget = nullptr;    // bounds the slab file
  std::string disk_directory;  // of the temporary slab file; empty: no disk tier without a session
  PageTables::Sharing tables = PageTables::Sharing::kLayer;
  SessionHeads session_heads;  // where there is a session; head groups of one head then
  bool poison_freed = false;   // overwrite what is freed with NaNs (tests; takes memory and time)
};

// The fixed parts of what Create takes from each tier, for the planner; slabs come on top.
struct StoreFootprint {
  int64_t open_pages = 0;       // device
  int64_t append_buffer = 0;    // device; with that of encoded pages
  int64_t streaming_heads = 0;  // device
  int64_t staging = 0;          // device
  int64_t summaries = 0;        // device
  int64_t sketches = 0;         // device
  int64_t host_sketches = 0;    // the same where they lie on the host
  int64_t bounce = 0;           // host; with what listed pages and their lists take
};
StoreFootprint FootprintOf(const StoreOptions& options);

// The format of the session's file, which may have more heads than the store.
CacheFormat SessionFormatOf(const StoreOptions& options);

// Every number in range, and no size that wraps.
Status CheckStoreOptions(const StoreOptions& options);

}  // namespace headway::kv

#endif  // HEADWAY_KV_STEP_STORE_OPTIONS_H_
