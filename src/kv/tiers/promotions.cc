#include "kv/tiers/promotions.h"

namespace headway::kv {

Mover::Copied Promotions::Begin(SlabId id, const Slabs::Vacancy& vacancy) {
  Slab& slab = slabs_[id];
  Mover::Copied copied = mover_.Copy(slabs_.PagesOf(slab, 0, slab.pages), slab.place(),
                                     slab.written, vacancy.place, vacancy.free);
  slab.used.Join(copied.source);
  if (copied.read == nullptr) {
    slabs_.Rehome(slab, vacancy.place);
    slab.written.Join(copied.ready);
    slab.used = vacancy.free;
  } else {
    slab.promoting = true;
    from_disk_.push_back({id, vacancy, copied.ready, copied.read});
  }
  return copied;
}

Status Promotions::End(std::vector<SlabId>* up) {
  Status first_error;
  for (const Promotion& promotion : from_disk_) {
    Slab& slab = slabs_[promotion.slab];
    const Slabs::Vacancy& vacancy = promotion.vacancy;
    slab.promoting = false;
    lanes_.HostWait(promotion.ready);
    if (promotion.read->status.ok()) {
      slabs_.Rehome(slab, vacancy.place);
      slab.written.Join(promotion.ready);
      slab.used.Join(vacancy.free);
      up->push_back(promotion.slab);
      continue;
    }
    if (first_error.ok()) first_error = promotion.read->status;
    Fence used = slab.behind();
    used.Join(promotion.ready);
    slabs_.GiveBack(slab, vacancy.place, used);
  }
  from_disk_.clear();
  return first_error;
}

}  // namespace headway::kv
