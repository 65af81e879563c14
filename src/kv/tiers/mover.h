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
#include "kv/pages/slab_layout.h"
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

// Pages [first, first + count) of a slab.
struct SlabPages {
  const SlabLayout* layout = nullptr;  // of the slab's kind
  int heads = 0;                       // of the slab's group
  int first = 0;                       // 0 when the source is on disk
  int count = 0;

  int64_t bytes() const;  // with padding
};

// New pages that have closed, row by row as a slab has them; `params`, of encoded pages, as in a
// slab.
struct ClosedRows {
  const std::byte* rows = nullptr;
  int64_t row_stride = 0;
  const std::byte* params = nullptr;
};

class Mover {
 public:
  // `bounce` is memory of a slab of K and V each, on the host, that goes between disk and device.
  Mover(Lanes* lanes, DiskTier* disk, const std::vector<std::byte*>& bounce);

  struct Copied {
    Fence source;                    // behind the last reader of the source
    Fence ready;                     // the pages are in place
    std::shared_ptr<DiskRead> read;  // when the source was on disk
  };
  // `written` says when they are in place at `from`, `free` when `to` may be written to. From disk
  // to disk the calling thread waits for the read.
  Copied Copy(const SlabPages& pages, const Place& from, const Fence& written, const Place& to,
              const Fence& free);

  // Copies new pages to a slab, on the d2h lane, which has been told to wait for them. `used` is
  // when the slab may be written to. Returns when they are in place.
  Fence Append(const SlabPages& pages, const ClosedRows& from, const Place& to, const Fence& used);

  // Writes pages of zeros to a slot. Returns when they are in place.
  Fence WriteZeros(const SlabPages& pages, const std::shared_ptr<DiskCopy>& to);

 private:
  struct Bounce {
    std::byte* data;
    Fence used;
  };
  Bounce& NextBounce();
  Lane NextReadLane();
  // Reads on `lane` into the slab at `to`, in host memory; returns the ticket.
  int64_t ReadDisk(Lane lane, const SlabPages& pages, const std::shared_ptr<DiskCopy>& from,
                   std::byte* to, const std::shared_ptr<DiskRead>& read);
  // Writes from the slab at `from`, in host memory.
  Fence WriteDisk(const SlabPages& pages, const std::byte* from, const Fence& written,
                  const std::shared_ptr<DiskCopy>& to);
  Copied CopyFromDisk(const SlabPages& pages, const Place& from, const Fence& written,
                      const Place& to, const Fence& free);
  Lanes* const lanes_;
  DiskTier* const disk_;
  std::vector<Bounce> bounce_;
  size_t next_bounce_ = 0;
  int next_read_ = 0;
};

}  // namespace headway::kv

#endif  // HEADWAY_KV_TIERS_MOVER_H_
