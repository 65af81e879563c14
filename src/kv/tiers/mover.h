// Mover: copies of slab pages between tiers, each on the lane that it belongs to.
#ifndef HEADWAY_KV_TIERS_MOVER_H_
#define HEADWAY_KV_TIERS_MOVER_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/types.h"
#include "device/device.h"
#include "device/lanes.h"
#include "kv/pages/format.h"
#include "kv/tiers/disk_tier.h"

namespace headway::kv {

// Where a slab lies: `data` on the device and the host, `disk` on disk.
struct Place {
  Tier tier = Tier::kDevice;
  std::byte* data = nullptr;
  std::shared_ptr<DiskCopy> disk;
};

// A read from disk on its way.
struct DiskRead {
  std::atomic<bool> done = false;
  Status status;  // once done
};

// Rows of pages, one page run a row: of a head group first its K rows, then its V rows, groups in
// order. Slabs, open pages and the append buffer have this order in common, so that the pages of a
// group move in one strided copy.
inline int FirstRow(const CacheFormat& format, int layer, int group) {
  return 2 * format.HeadsBefore(layer, group);
}

class Mover {
 public:
  // `bounce` is slab-sized host memory, [bounce_slabs], that goes between disk and device.
  Mover(const CacheFormat& format, Lanes* lanes, DiskTier* disk, std::vector<std::byte*> bounce);

  struct Copied {
    Fence source;                    // behind the last reader of the source
    Fence ready;                     // the pages are in place
    std::shared_ptr<DiskRead> read;  // when the source was on disk
  };
  // Pages [first, first + count) of a slab.
  struct Pages {
    int heads = 0;  // of the slab's group
    int first = 0;  // 0 when the source is on disk
    int count = 0;
  };
  // `written` says when they are in place at `from`, `free` when `to` may be written to. From disk
  // to disk the calling thread waits for the read.
  Copied Copy(const Pages& pages, const Place& from, const Fence& written, const Place& to,
              const Fence& free);

  // The same of X, from one slab in host memory to another.
  Copied CopyX(int pages, const std::byte* from, const Fence& written, std::byte* to,
               const Fence& free);
  // X of new pages, which follow one another at `from`, to a slab behind its first `first` pages;
  // otherwise as Append.
  Fence AppendX(int first, int pages, const std::byte* from, std::byte* to, const Fence& used);

  // Copies rows of new pages to a slab, on the d2h lane, which has been told to wait for the rows:
  // `from` is the first row of the group, rows are row_stride apart; `params`, of encoded pages, as
  // in a slab. `used` is when the slab may be written to. Returns when they are in place.
  Fence Append(const Pages& pages, const std::byte* from, int64_t row_stride,
               const std::byte* params, const Place& to, const Fence& used);

 private:
  struct Bounce {
    std::byte* data;
    Fence used;
  };
  Bounce& NextBounce();
  Lane NextReadLane();
  void CopyPages(Lane lane, const Pages& pages, const std::byte* from, std::byte* to);
  // Reads on `lane` into the slab at `to`, in host memory; returns the ticket.
  int64_t ReadDisk(Lane lane, const Pages& pages, const std::shared_ptr<DiskCopy>& from,
                   std::byte* to, const std::shared_ptr<DiskRead>& read);
  // Writes from the slab at `from`, in host memory.
  Fence WriteDisk(const Pages& pages, const std::byte* from, const Fence& written,
                  const std::shared_ptr<DiskCopy>& to);
  Copied CopyFromDisk(const Pages& pages, const Place& from, const Fence& written, const Place& to,
                      const Fence& free);
  int64_t Bytes(const Pages& pages) const {
    return pages.count * (2 * pages.heads * format_.closed_stride() + format_.param_stride());
  }

  const CacheFormat& format_;
  Lanes* const lanes_;
  DiskTier* const disk_;
  std::vector<Bounce> bounce_;
  size_t next_bounce_ = 0;
  int next_read_ = 0;
};

}  // namespace headway::kv

#endif  // HEADWAY_KV_TIERS_MOVER_H_
