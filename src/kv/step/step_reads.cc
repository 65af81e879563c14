// What a step reads of closed pages: slabs that kernels attend to, in the order in which they were
// announced, and slabs in host memory, which the host's cores attend to in place.
#include <utility>

#include "base/check.h"
#include "kv/step/step.h"

namespace headway::kv {
namespace {

Status Invalid(const std::string& text) {
  return Status(StatusCode::kInvalidArgument, "KV store: " + text);
}

}  // namespace

Result<Step::Found> Step::FindSlab(const SlabRead& read) const {
  if (read.entry < 0 || read.entry >= static_cast<int>(entries_.size()) || read.layer < 0 ||
      read.layer >= cache_.format.layers || read.group < 0 ||
      read.group >= cache_.format.head_groups(read.layer)) {
    return Invalid("a slab to read that the step does not have");
  }
  const PageTable& table =
      TablesOf(entries_[static_cast<size_t>(read.entry)]).of(read.layer, read.group);
  Found found;
  if (read.segment >= 0) found.pages = table.PagesIn(read.segment);
  if (found.pages > 0) {
    found.slab = table.slab(read.group, read.segment);
    found.position = table.PositionOf(int64_t{read.segment} * cache_.format.segment_pages);
  }
  if (found.slab == kNoSlab || read.pages < 0 || read.pages > found.pages) {
    return Invalid("segment " + std::to_string(read.segment) + " of layer " +
                   std::to_string(read.layer) + " has no " +
                   (read.pages > 0 ? std::to_string(read.pages) + " " : "") + "pages to read");
  }
  return found;
}

Status Step::Announce(std::span<const SlabRead> reads) {
  if (!in_step_) return Invalid("slabs are read within a step");
  announced_.clear();
  for (const SlabRead& read : reads) {
    const Result<Found> found = FindSlab(read);
    if (!found.ok()) return found.status();
    announced_.push_back(Reader::Item{
        found->slab, read.segment, read.pages == 0 ? found->pages : read.pages, found->position});
  }
  reader_.Announce(announced_);
  return OkStatus();
}

Status Step::HoldOnHost(std::span<const HostRead> reads) {
  if (!in_step_) return Invalid("slabs are read within a step");
  for (const HostRead& read : reads) {
    const Result<Found> found = FindSlab(read.slab);
    if (!found.ok()) return found.status();
    Slab& slab = (*cache_.slabs)[found->slab];
    if (slab.tier != Tier::kHost || slab.kind != SlabKind::kKeysValues || read.first_page < 0 ||
        read.first_page >= found->pages) {
      return Invalid("a slab that is not on the host cannot be read there");
    }
    slab.held = true;
    cache_.slabs->WasRead(found->slab);
    held_.push_back(found->slab);
  }
  return OkStatus();
}

Status Step::BeginReads(const std::vector<SlabRead>& order, std::span<const HostRead> on_host) {
  if (!in_step_) return Invalid("slabs are read within a step");
  Status status = reader_.End();
  if (!status.ok()) return status;
  EndHolds();
  status = HoldOnHost(on_host);
  return status.ok() ? Announce(order) : status;
}

Result<SlabView> Step::NextRead() { return reader_.Next(); }

void Step::FinishRead(const SlabView& view) { reader_.Finish(view); }

void Step::EndHolds() {
  for (const SlabId id : held_) (*cache_.slabs)[id].held = false;
  held_.clear();
}

SlabPlace Step::PlaceOf(const SlabRead& slab) const {
  const Result<Found> found = FindSlab(slab);
  HEADWAY_CHECK(found.ok());
  const Slab& there = (*cache_.slabs)[found->slab];
  return {there.tier, found->pages, there.kind == SlabKind::kX};
}

KeyRun Step::KeysOnHost(const HostRead& read) const {
  const Result<Found> found = FindSlab(read.slab);
  HEADWAY_CHECK(found.ok());
  const Slab& slab = (*cache_.slabs)[found->slab];
  HEADWAY_CHECK(slab.held && read.first_page < found->pages);
  const CacheFormat& format = cache_.format;
  KeyRun keys;
  keys.position = found->position + read.first_page * cache_.math.slots();
  keys.pages = {.k = slab.data + format.KOffset(0, read.first_page),
                .v = slab.data + format.VOffset(0, read.first_page),
                .page_stride = format.closed_stride(),
                .head_stride = format.head_stride(),
                .count = (found->pages - read.first_page) * cache_.math.slots()};
  if (format.encoded()) {
    keys.pages.params = slab.data + format.ParamOffset(read.first_page);
    keys.pages.params_page_stride = format.param_stride();
    keys.pages.params_head_stride = format.param_bytes();
  }
  return keys;
}

void Step::RunOnHost(std::span<const HostRead> reads, const WorkCost& cost,
                     std::function<Status()> work) {
  Fence queries, pages;
  queries.Add(Lane::kCompute, cache_.lanes.Mark(Lane::kCompute));
  for (const HostRead& read : reads) {
    pages.Join((*cache_.slabs)[FindSlab(read.slab)->slab].written);
  }
  // The queries first: to write new keys the compute lane has mostly waited for the copies of older
  // ones itself.
  cache_.lanes.Wait(Lane::kHostCompute, queries);
  cache_.lanes.Wait(Lane::kHostCompute, pages);
  cache_.lanes.stream(Lane::kHostCompute).HostWork(cost, std::move(work));
  const int64_t done = cache_.lanes.Mark(Lane::kHostCompute);
  for (const HostRead& read : reads) {
    (*cache_.slabs)[FindSlab(read.slab)->slab].used.Add(Lane::kHostCompute, done);
  }
}

void Step::AwaitHost() {
  Fence done;
  done.Add(Lane::kHostCompute, cache_.lanes.Soon(Lane::kHostCompute) - 1);
  cache_.lanes.Wait(Lane::kCompute, done);
}

}  // namespace headway::kv
