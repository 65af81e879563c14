// Cache: what the sequences and steps of a store work with: the format, the memory of every tier,
// the slabs in it, and what moves them.
#ifndef HEADWAY_KV_STEP_CACHE_H_
#define HEADWAY_KV_STEP_CACHE_H_

#include <array>
#include <memory>
#include <optional>

#include "device/device.h"
#include "device/lanes.h"
#include "headway/status.h"
#include "kv/pages/format.h"
#include "kv/pages/page_math.h"
#include "kv/pages/slab_layout.h"
#include "kv/pages/streaming_pages.h"
#include "kv/step/reader.h"
#include "kv/step/step_buffers.h"
#include "kv/step/store_options.h"
#include "kv/step/streaming_heads.h"
#include "kv/tiers/disk_tier.h"
#include "kv/tiers/frame_pool.h"
#include "kv/tiers/listed_pages.h"
#include "kv/tiers/mover.h"
#include "kv/tiers/page_cache.h"
#include "kv/tiers/poison.h"
#include "kv/tiers/slabs.h"
#include "kv/tiers/summaries.h"

namespace headway::kv {

struct Cache {
  // Takes all memory that the options name. `file` may be null; everything else outlives the cache.
  static Result<std::unique_ptr<Cache>> Create(const StoreOptions& options, Device* device,
                                               Lanes* lanes, std::shared_ptr<SlabFile> file);
  ~Cache();

  // The memory of its Reader.
  ReadBuffers BuffersOfReads() const;
  // Whether the lanes can still be trusted, and every page that closed so far, which the compute
  // stream has passed, has fitted its encoding.
  Status LaneStatus();
  bool HasUnfitPages() const;

  const StoreOptions options;
  const CacheFormat format;
  const PerSlabKind<SlabLayout> layouts;
  const PageMath math;
  const StreamingPages streaming_pages;
  Lanes& lanes;
  Stream* const compute;
  DiskTier disk;
  std::unique_ptr<Poison> poison;  // null but in tests
  std::unique_ptr<StepBuffers> buffers;
  std::unique_ptr<StreamingHeads> streaming;
  std::unique_ptr<Buffer> staging;
  std::unique_ptr<Buffer> gathers;  // null where no kind gathers
  std::unique_ptr<Buffer> bounce;   // null without a disk tier
  std::unique_ptr<Buffer> listed;   // pages, then lists; null where slabs on disk are read whole
  // By kind and tier; null where slabs of the kind never lie there.
  PerSlabKind<std::array<std::unique_ptr<FramePool>, 2>> pools;
  std::unique_ptr<Summaries> summaries;       // null where the format has none
  std::unique_ptr<PageCache> page_cache;      // null where there is none
  std::unique_ptr<ListedPages> listed_pages;  // in `listed`
  std::optional<Mover> mover;
  std::optional<Slabs> slabs;

 private:
  Cache(const StoreOptions& store_options, Lanes* store_lanes, std::shared_ptr<SlabFile> file);
  Status Allocate(Device* device);
  Status AllocateStaging(Device* device);
  // Frames for the slabs of a kind.
  Status MakePools(SlabKind kind, Device* device);
  SlabHomes HomesOf(SlabKind kind);
};

}  // namespace headway::kv

#endif  // HEADWAY_KV_STEP_CACHE_H_
