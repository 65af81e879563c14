// Reader: hands the slabs of a step to the kernels in the order in which they were announced, and
// keeps the h2d and disk-read lanes busy with those that come next.
#ifndef HEADWAY_KV_STEP_READER_H_
#define HEADWAY_KV_STEP_READER_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "device/lanes.h"
#include "headway/status.h"
#include "kv/pages/format.h"
#include "kv/step/step_types.h"
#include "kv/tiers/frame_pool.h"
#include "kv/tiers/mover.h"
#include "kv/tiers/promotions.h"
#include "kv/tiers/slabs.h"

namespace headway::kv {

// The device memory that slabs are read into.
struct ReadBuffers {
  std::vector<std::byte*> staging;  // of a slab of keys and values each
  std::vector<std::byte*> gathers;  // of gather_pages of the kind that gathers
  int64_t gather_pages = 0;
  int64_t gather_bytes = 0;
};

// A slab in the order.
struct ReadItem {
  SlabId slab = kNoSlab;
  int segment = 0;
  int pages = 0;         // its first ones, to be read
  int64_t position = 0;  // of its first key
};

class Reader {
 public:
  // `poison` may be null.
  Reader(const CacheFormat& format, Lanes* lanes, Mover* mover, Slabs* slabs,
         const ReadBuffers& buffers, Poison* poison);

  // Appends to the order, and begins to bring the slabs that there is room for. They stay alive
  // until End. A gather holds slabs of one announcement.
  void Announce(std::span<const ReadItem> items);
  Result<SlabView> Next();
  void Finish(const SlabView& view);

  // Ends the order: what was prefetched and not asked for is dropped. Waits for reads from disk
  // that are on their way and returns the first error that a handed out slab turned out to have.
  // Slabs that came up from disk for good are appended to *promoted.
  Status End(std::vector<SlabId>* promoted);

 private:
  struct InFlight {
    bool issued = false;
    bool handed_out = false;
    bool prefetched = false;  // counts against the look-ahead until it is handed out
    Tier from = Tier::kDevice;
    int staging = -1;
    std::byte* data = nullptr;
    Fence ready;
    std::shared_ptr<DiskRead> read;
    int gather = -1;          // of a kind that gathers: the number of its gather
    int64_t gather_page = 0;  // its first page there
    bool ends_gather = false;
  };
  struct Staging {
    std::byte* data = nullptr;
    bool busy = false;
    Fence used;
  };
  struct GatherBuffer {
    std::byte* data = nullptr;
    int gather = -1;     // that it holds
    int unfinished = 0;  // slabs of it
    Fence used;
  };

  // Forgets what was read, unless something of it is still to be finished or waited for: steps that
  // announce a layer at a time stay in a little memory.
  void ForgetRead();
  // Starts what item `index` needs. False when it needs a staging buffer and all are in use.
  bool Issue(size_t index);
  bool IssueCopy(Slab& slab, const ReadItem& item, InFlight* flight);
  void IssueAhead();
  int FreeStaging() const;
  // Of gathers (gather.cc).
  void PlanGathers(size_t first);
  bool IssueGathered(size_t index);
  SlabView ViewOfGathered(size_t index);
  void FinishGathered(const InFlight& flight);
  void EndGathers();
  GatherBuffer& GatherBufferOf(const InFlight& flight) {
    return gather_buffers_[static_cast<size_t>(flight.gather) % gather_buffers_.size()];
  }

  const CacheFormat& format_;
  Lanes* const lanes_;
  Mover* const mover_;
  Slabs* const slabs_;
  Poison* const poison_;
  Promotions promotions_;
  std::vector<Staging> staging_;
  std::vector<GatherBuffer> gather_buffers_;
  const int64_t gather_pages_, gather_bytes_;
  std::vector<CopyPiece> gather_pieces_;  // of the gather that is issued
  std::vector<ReadItem> order_;
  std::vector<InFlight> flights_;  // [order]
  size_t next_ = 0;                // to be handed out
  size_t issued_ = 0;
  size_t ahead_ = 0;       // prefetched, not handed out
  size_t unfinished_ = 0;  // handed out, or failed
  bool moves_ = false;     // some slab of the order does not lie on the device
  int gathers_ = 0;        // of the order
};

}  // namespace headway::kv

#endif  // HEADWAY_KV_STEP_READER_H_
