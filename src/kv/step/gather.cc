// Gathers of a Reader: neighbouring slabs of a kind that gathers (X, say) lie one behind the other
// in a buffer of their own, are copied by one call, and are finished together.
#include <utility>

#include "base/check.h"
#include "kv/step/reader.h"

namespace headway::kv {

// Which slabs from `first` on are read together: neighbours in the order, of one layer, as
// many as fit.
void Reader::PlanGathers(size_t first) {
  int64_t filled = 0;
  for (size_t i = first; i < order_.size(); ++i) {
    const Slab& slab = (*slabs_)[order_[i].slab];
    if (!slabs_->LayoutOf(slab).gathers) continue;
    InFlight& flight = flights_[i];
    const bool follows = i > first && flights_[i - 1].gather >= 0 &&
                         (*slabs_)[order_[i - 1].slab].layer == slab.layer &&
                         filled + order_[i].pages <= gather_pages_;
    if (!follows) {
      ++gathers_;
      filled = 0;
    } else {
      flights_[i - 1].ends_gather = false;
    }
    flight.gather = gathers_ - 1;
    flight.gather_page = filled;
    flight.ends_gather = true;
    filled += order_[i].pages;
  }
}

// The slabs of a gather are copied together, with the last of them.
bool Reader::IssueGathered(size_t index) {
  InFlight& flight = flights_[index];
  GatherBuffer& buffer = GatherBufferOf(flight);
  if (buffer.gather != flight.gather) {
    if (buffer.unfinished > 0) return false;
    buffer.gather = flight.gather;
  }
  ++buffer.unfinished;
  const Slab& slab = (*slabs_)[order_[index].slab];
  const int64_t page_bytes = slabs_->LayoutOf(slab).closed_shared_bytes;
  flight.data = buffer.data + flight.gather_page * page_bytes;
  lanes_->Wait(Lane::kHostToDevice, slab.written);
  lanes_->Wait(Lane::kHostToDevice, buffer.used);
  gather_pieces_.push_back(
      {flight.data, slab.data, static_cast<size_t>(order_[index].pages * page_bytes)});
  if (!flight.ends_gather) return true;
  lanes_->stream(Lane::kHostToDevice).CopyAll(gather_pieces_);
  const int64_t ticket = lanes_->Mark(Lane::kHostToDevice);
  for (size_t i = index + 1 - gather_pieces_.size(); i <= index; ++i) {
    flights_[i].ready.Add(Lane::kHostToDevice, ticket);
    (*slabs_)[order_[i].slab].used.Add(Lane::kHostToDevice, ticket);
  }
  gather_pieces_.clear();
  return true;
}

SlabView Reader::ViewOfGathered(size_t index) {
  const InFlight& flight = flights_[index];
  if (flight.ends_gather) lanes_->Wait(Lane::kCompute, flight.ready);
  SlabView view;
  view.segment = order_[index].segment;
  view.keys.position = order_[index].position;
  view.keys.pages.count = int64_t{order_[index].pages} * format_.page.page_slots;
  view.x = flight.data;
  view.ends_gather = flight.ends_gather;
  view.tier = flight.from;
  view.staging = static_cast<int>(index);
  return view;
}

void Reader::FinishGathered(const InFlight& flight) {
  GatherBuffer& buffer = GatherBufferOf(flight);
  HEADWAY_CHECK(buffer.gather == flight.gather && buffer.unfinished > 0);
  if (--buffer.unfinished > 0) return;
  buffer.used.Add(Lane::kCompute, lanes_->Mark(Lane::kCompute));
  if (poison_ != nullptr) {
    poison_->Fill(buffer.data, gather_bytes_, &buffer.used);
  }
  IssueAhead();
}

void Reader::EndGathers() {
  HEADWAY_CHECK(gather_pieces_.empty());
  for (GatherBuffer& buffer : gather_buffers_) {
    // Unless finished, kernels may still read it.
    if (buffer.unfinished > 0) buffer.used.Add(Lane::kCompute, lanes_->Soon(Lane::kCompute));
    buffer.gather = -1;
    buffer.unfinished = 0;
  }
}

}  // namespace headway::kv
