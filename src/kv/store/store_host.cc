// What the host's cores read of a Store: slabs in host memory, in place.
#include <utility>

#include "base/check.h"
#include "kv/store/store.h"
#include "kv/store/store_impl.h"

namespace headway::kv {

void Store::Impl::EndHolds() {
  for (const SlabId id : held) (*slabs)[id].held = false;
  held.clear();
}

Store::SlabPlace Store::PlaceOf(const SlabRead& slab) const {
  const Result<Impl::Found> found = impl_->FindSlab(slab);
  HEADWAY_CHECK(found.ok());
  const Slab& there = (*impl_->slabs)[found->slab];
  return {there.tier, found->pages, there.kind == SlabKind::kX};
}

KeyRun Store::KeysOnHost(const HostRead& read) const {
  const Result<Impl::Found> found = impl_->FindSlab(read.slab);
  HEADWAY_CHECK(found.ok());
  const Slab& slab = (*impl_->slabs)[found->slab];
  HEADWAY_CHECK(slab.held && read.first_page < found->pages);
  const CacheFormat& format = impl_->format;
  KeyRun keys;
  keys.position = found->position + read.first_page * impl_->math.slots();
  keys.pages = {.k = slab.data + format.KOffset(0, read.first_page),
                .v = slab.data + format.VOffset(0, read.first_page),
                .page_stride = format.closed_stride(),
                .head_stride = format.head_stride(),
                .count = (found->pages - read.first_page) * impl_->math.slots()};
  if (format.encoded()) {
    keys.pages.params = slab.data + format.ParamOffset(read.first_page);
    keys.pages.params_page_stride = format.param_stride();
    keys.pages.params_head_stride = format.param_bytes();
  }
  return keys;
}

void Store::RunOnHost(std::span<const HostRead> reads, const WorkCost& cost,
                      std::function<Status()> work) {
  Lanes& lanes = impl_->lanes;
  Fence queries, pages;
  queries.Add(Lane::kCompute, lanes.Mark(Lane::kCompute));
  for (const HostRead& read : reads) {
    pages.Join((*impl_->slabs)[impl_->FindSlab(read.slab)->slab].written);
  }
  // The queries first: to write new keys the compute lane has mostly waited for the copies of older
  // ones itself.
  lanes.Wait(Lane::kHostCompute, queries);
  lanes.Wait(Lane::kHostCompute, pages);
  lanes.stream(Lane::kHostCompute).HostWork(cost, std::move(work));
  const int64_t done = lanes.Mark(Lane::kHostCompute);
  for (const HostRead& read : reads) {
    (*impl_->slabs)[impl_->FindSlab(read.slab)->slab].used.Add(Lane::kHostCompute, done);
  }
}

Status Store::LaneStatus() { return impl_->lanes.status(); }

void Store::AwaitHost() {
  Fence done;
  done.Add(Lane::kHostCompute, impl_->lanes.Soon(Lane::kHostCompute) - 1);
  impl_->lanes.Wait(Lane::kCompute, done);
}

}  // namespace headway::kv
