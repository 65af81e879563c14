// ListedPages: host memory for single pages of slabs that lie on disk, which kernels read some
// blocks of. A page stays there until its place is wanted for another one, so that one which is
// listed in step after step is read once. Pages are known by their slab's version: none is ever
// cleared.
#ifndef HEADWAY_KV_TIERS_LISTED_PAGES_H_
#define HEADWAY_KV_TIERS_LISTED_PAGES_H_

#include <array>
#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "device/lanes.h"
#include "headway/status.h"
#include "kv/pages/format.h"
#include "kv/tiers/disk_tier.h"
#include "kv/tiers/mover.h"
#include "kv/tiers/slabs.h"

namespace headway::kv {

class ListedPages {
 public:
  // A page of a slab on disk, of all heads of its group.
  struct Wanted {
    Slab* slab = nullptr;
    int page = 0;
  };
  // So far.
  struct Reads {
    int64_t found = 0;  // pages that a round wanted and that were there
    int64_t read = 0;
    int64_t bytes = 0;  // of those, with padding
  };

  // `frames` are memory of a slab of keys and values each. All outlive it.
  ListedPages(const CacheFormat& format, Lanes* lanes, DiskTier* disk,
              std::vector<std::byte*> frames);

  // Place i is that of page i % segment_pages in frame i / segment_pages.
  std::span<std::byte* const> frames() const { return frames_; }

  // Rounds follow one another: each is begun, awaited, and finished; one more may begin meanwhile.
  // Two rounds have no more pages than there are places. When one begins, the kernels of finished
  // ones have run.
  // Begins to read those pages that are not there. The places of all are written to *places.
  void Begin(std::span<const Wanted> pages, std::vector<int>* places);
  // Waits for the round that was begun first of those that are not finished.
  Status Await();
  void Finish() { ++finished_; }
  // Finishes all rounds, whatever has become of them.
  void End();

  const Reads& reads() const { return reads_; }

 private:
  struct Entry {
    uint64_t name = 0;  // of the page that is there; 0: none
    int64_t round = 0;  // that wanted it last
    std::list<int>::iterator at;
  };
  struct Round {
    Fence ready;
    std::shared_ptr<DiskRead> read;  // null where nothing was
    std::vector<uint64_t> names;     // of what it reads
  };
  uint64_t NameOf(const Wanted& page) const {
    return uint64_t{page.slab->version} * static_cast<uint64_t>(format_.segment_pages) +
           static_cast<uint64_t>(page.page);
  }
  // Takes the place that was wanted least recently.
  int TakePlace(uint64_t name);
  void Read(std::vector<SlabFile::PageRead> pages, std::span<const Wanted> of, Round* round);
  void Forget(uint64_t name);
  Round& Oldest() { return rounds_[static_cast<size_t>((finished_ + 1) % 2)]; }

  const CacheFormat& format_;
  Lanes* const lanes_;
  DiskTier* const disk_;
  const std::vector<std::byte*> frames_;
  std::vector<Entry> entries_;                // [places]
  std::list<int> order_;                      // of places, by when they were wanted last
  std::unordered_map<uint64_t, int> places_;  // by name
  std::array<Round, 2> rounds_;               // by number
  int64_t begun_ = 0, finished_ = 0;          // numbers of rounds
  int next_lane_ = 0;
  Reads reads_;
};

}  // namespace headway::kv

#endif  // HEADWAY_KV_TIERS_LISTED_PAGES_H_
