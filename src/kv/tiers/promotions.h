// Promotions: slabs on their way up, for good. One that comes from disk moves once its read is
// known to be right; until then its slot there is all there is.
#ifndef HEADWAY_KV_TIERS_PROMOTIONS_H_
#define HEADWAY_KV_TIERS_PROMOTIONS_H_

#include <memory>
#include <vector>

#include "device/lanes.h"
#include "headway/status.h"
#include "kv/pages/page_table.h"
#include "kv/tiers/mover.h"
#include "kv/tiers/slabs.h"

namespace headway::kv {

class Promotions {
 public:
  // All outlive it.
  Promotions(Lanes* lanes, Mover* mover, Slabs* slabs)
      : lanes_(*lanes), mover_(*mover), slabs_(*slabs) {}

  // Begins to copy a slab's pages to the vacancy. From host memory the slab has moved at once.
  Mover::Copied Begin(SlabId id, const Slabs::Vacancy& vacancy);
  // Waits for the reads from disk. Slabs that came up are appended to *up, others stay where they
  // were; returns the first error.
  Status End(std::vector<SlabId>* up);

 private:
  struct Promotion {
    SlabId slab = kNoSlab;
    Slabs::Vacancy vacancy;
    Fence ready;
    std::shared_ptr<DiskRead> read;
  };

  Lanes& lanes_;
  Mover& mover_;
  Slabs& slabs_;
  std::vector<Promotion> from_disk_;
};

}  // namespace headway::kv

#endif  // HEADWAY_KV_TIERS_PROMOTIONS_H_
