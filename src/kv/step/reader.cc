#include "kv/step/reader.h"

#include <optional>
#include <utility>

#include "base/check.h"

namespace headway::kv {

Reader::Reader(const CacheFormat& format, Lanes* lanes, Mover* mover, Slabs* slabs,
               const ReadBuffers& buffers, Poison* poison)
    : format_(format),
      lanes_(lanes),
      mover_(mover),
      slabs_(slabs),
      poison_(poison),
      promotions_(lanes, mover, slabs),
      gather_pages_(buffers.gather_pages),
      gather_bytes_(buffers.gather_bytes) {
  for (std::byte* data : buffers.staging) staging_.push_back(Staging{data, false, Fence()});
  for (std::byte* data : buffers.gathers) {
    gather_buffers_.push_back(GatherBuffer{data, -1, 0, Fence()});
  }
}

void Reader::ForgetRead() {
  if (unfinished_ > 0 || next_ < order_.size() || moves_ || gathers_ > 0) return;
  order_.clear();
  flights_.clear();
  next_ = issued_ = 0;
}

void Reader::Announce(std::span<const ReadItem> items) {
  ForgetRead();
  const size_t first = order_.size();
  order_.insert(order_.end(), items.begin(), items.end());
  flights_.resize(order_.size());
  PlanGathers(first);
  IssueAhead();
}

int Reader::FreeStaging() const {
  for (size_t i = 0; i < staging_.size(); ++i) {
    if (!staging_[i].busy) return static_cast<int>(i);
  }
  return -1;
}

bool Reader::Issue(size_t index) {
  const ReadItem& item = order_[index];
  InFlight& flight = flights_[index];
  Slab& slab = (*slabs_)[item.slab];
  flight.from = slab.tier;
  if (slab.tier == Tier::kDevice) {
    flight.data = slab.data;
    flight.ready = slab.written;
  } else if (moves_ = true;
             !(flight.gather >= 0 ? IssueGathered(index) : IssueCopy(slab, item, &flight))) {
    return false;
  }
  slabs_->WasRead(item.slab);
  flight.issued = true;
  return true;
}

bool Reader::IssueCopy(Slab& slab, const ReadItem& item, InFlight* flight) {
  const int staging = FreeStaging();
  std::optional<Slabs::Vacancy> vacancy = slabs_->VacancyAbove(slab);
  const bool to_device = vacancy.has_value() && vacancy->place.tier == Tier::kDevice;
  if (!to_device && staging < 0) {
    if (vacancy.has_value()) slabs_->GiveBack(slab, vacancy->place, vacancy->free);
    return false;
  }
  flight->prefetched = true;
  ++ahead_;
  Place from = slab.place();
  Fence written = slab.written;
  if (vacancy.has_value()) {
    const Mover::Copied up = promotions_.Begin(item.slab, *vacancy);
    flight->data = vacancy->place.data;
    flight->ready = up.ready;
    flight->read = up.read;
    if (to_device) return true;
    from = vacancy->place;
    written = flight->ready;
  }
  Staging& buffer = staging_[static_cast<size_t>(staging)];
  buffer.busy = true;
  const Mover::Copied copied =
      mover_->Copy(slabs_->PagesOf(slab, 0, item.pages), from, written,
                   Place{Tier::kDevice, buffer.data, nullptr}, buffer.used);
  slab.used.Join(copied.source);
  flight->staging = staging;
  flight->data = buffer.data;
  flight->ready = copied.ready;
  if (copied.read != nullptr) flight->read = copied.read;
  return true;
}

void Reader::IssueAhead() {
  while (issued_ < order_.size()) {
    const Slab& slab = (*slabs_)[order_[issued_].slab];
    const bool stages = slab.tier != Tier::kDevice && flights_[issued_].gather < 0;
    if (stages && ahead_ >= staging_.size()) return;
    if (!Issue(issued_)) return;
    ++issued_;
  }
}

Result<SlabView> Reader::Next() {
  if (next_ >= order_.size()) {
    return Status(StatusCode::kInvalidArgument, "KV store: every slab of the order was read");
  }
  const size_t index = next_;
  InFlight& flight = flights_[index];
  if (!flight.issued) {
    if (!Issue(index)) {
      return Status(StatusCode::kInvalidArgument,
                    "KV store: every staging buffer holds a slab that was not finished");
    }
    issued_ = index + 1;
  }
  ++next_;
  ++unfinished_;
  if (flight.prefetched) --ahead_;
  IssueAhead();
  if (flight.gather >= 0) {
    flight.handed_out = true;
    return ViewOfGathered(index);
  }
  lanes_->Wait(Lane::kCompute, flight.ready);
  if (flight.read != nullptr && flight.read->done && !flight.read->status.ok()) {
    if (flight.staging >= 0) {
      Staging& buffer = staging_[static_cast<size_t>(flight.staging)];
      buffer.busy = false;
      buffer.used.Join(flight.ready);
    }
    return flight.read->status;
  }
  flight.handed_out = true;

  const ReadItem& item = order_[index];
  SlabView view;
  view.segment = item.segment;
  view.keys.position = item.position;
  view.keys.pages = RunIn(format_, flight.data, 0, item.pages);
  view.keys.pages.readable = format_.segment_tokens();
  view.tier = flight.from;
  view.staging = static_cast<int>(index);
  return view;
}

void Reader::Finish(const SlabView& view) {
  const auto index = static_cast<size_t>(view.staging);
  HEADWAY_CHECK(view.staging >= 0 && index < next_);
  InFlight& flight = flights_[index];
  --unfinished_;
  if (flight.gather >= 0) return FinishGathered(flight);
  if (flight.staging < 0) {
    (*slabs_)[order_[index].slab].used.Add(Lane::kCompute, lanes_->Soon(Lane::kCompute));
    return;
  }
  Staging& buffer = staging_[static_cast<size_t>(flight.staging)];
  HEADWAY_CHECK(buffer.busy);
  buffer.busy = false;
  buffer.used.Add(Lane::kCompute, lanes_->Mark(Lane::kCompute));
  if (poison_ != nullptr) poison_->Fill(buffer.data, format_.slab_bytes(), &buffer.used);
  IssueAhead();
}

Status Reader::End(std::vector<SlabId>* promoted) {
  Status first_error;
  for (InFlight& flight : flights_) {
    if (flight.staging >= 0) {
      // Unless finished, the buffer may still be written to, and read by kernels.
      Staging& buffer = staging_[static_cast<size_t>(flight.staging)];
      buffer.busy = false;
      buffer.used.Join(flight.ready);
      buffer.used.Add(Lane::kCompute, lanes_->Soon(Lane::kCompute));
    }
    if (flight.read == nullptr) continue;
    lanes_->HostWait(flight.ready);
    if (flight.handed_out && first_error.ok()) first_error = flight.read->status;
  }
  // Errors of slabs that nobody asked for are found again by who does.
  (void)promotions_.End(promoted).ok();
  EndGathers();
  order_.clear();
  flights_.clear();
  next_ = issued_ = ahead_ = unfinished_ = 0;
  moves_ = false;
  gathers_ = 0;
  return first_error;
}

}  // namespace headway::kv
