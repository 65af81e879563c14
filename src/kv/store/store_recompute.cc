// X in a Store: the normed input of a layer's K/V projection, which the first segments of a
// sequence keep in host memory instead of K and V, and from which these are recomputed (KVPR).
#include <string>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "kv/step/reader.h"
#include "kv/store/store.h"
#include "kv/store/store_impl.h"
#include "kv/tiers/mover.h"
#include "kv/tiers/slabs.h"

namespace headway::kv {

// --- Moving

Mover::Copied Mover::CopyX(int pages, const std::byte* from, const Fence& written, std::byte* to,
                           const Fence& free) {
  Fence before = written;
  before.Join(free);
  lanes_->Wait(Lane::kHostToDevice, before);
  lanes_->stream(Lane::kHostToDevice)
      .Copy(to, from, static_cast<size_t>(pages * format_.x_page_bytes()));
  Copied copied;
  copied.source.Add(Lane::kHostToDevice, lanes_->Mark(Lane::kHostToDevice));
  copied.ready = copied.source;
  return copied;
}

Fence Mover::AppendX(int first, int pages, const std::byte* from, std::byte* to,
                     const Fence& used) {
  lanes_->Wait(Lane::kDeviceToHost, used);
  lanes_->stream(Lane::kDeviceToHost)
      .Copy(to + first * format_.x_page_bytes(), from,
            static_cast<size_t>(pages * format_.x_page_bytes()));
  Fence ready;
  ready.Add(Lane::kDeviceToHost, lanes_->Soon(Lane::kDeviceToHost));
  return ready;
}

// --- Slabs

Status Slabs::CheckXRoom(int64_t count) const {
  const int64_t room = x_pool_ == nullptr ? 0 : x_pool_->Room();
  if (count <= room) return OkStatus();
  const Budget& budget = x_pool_->budget();
  return Status(StatusCode::kOutOfBudget,
                "KV cache: " + std::to_string(count) + " more slabs of " +
                    FormatBytes(format_.x_slab_bytes()) +
                    ", of what keys and values are recomputed from, are needed on the host; room "
                    "for " +
                    std::to_string(room) + " (" + budget.name() + ", limit " +
                    FormatBytes(budget.limit()) + "); " +
                    FormatBytes((count - room) * format_.x_slab_bytes()) + " more would do");
}

Result<SlabId> Slabs::NewX(int layer, int group) {
  Fence free;
  Result<std::byte*> frame = x_pool_->Take(&free);
  if (!frame.ok()) return frame.status();
  const SlabId id = NewId();
  Slab& slab = (*this)[id];
  slab = Slab();
  slab.refs = 1;
  slab.layer = layer;
  slab.group = group;
  slab.x = true;
  slab.tier = Tier::kHost;
  slab.data = *frame;
  slab.used = free;
  return id;
}

Result<SlabId> Slabs::CopyOfX(SlabId from, int pages) {
  Result<SlabId> made = NewX((*this)[from].layer, (*this)[from].group);
  if (!made.ok()) return made;
  Slab& source = (*this)[from];
  Slab& copy = (*this)[*made];
  const Mover::Copied copied =
      mover_->CopyX(pages, source.data, source.written, copy.data, copy.used);
  source.used.Join(copied.source);
  copy.written = copied.ready;
  copy.pages = pages;
  copy.last_read = source.last_read;
  return made;
}

int64_t Slabs::CountX() const {
  int64_t count = 0;
  for (const Slab& slab : slabs_) count += slab.refs > 0 && slab.x;
  return count;
}

// --- A step

bool Store::Impl::KeepsX(const Entry& entry) const {
  const Sequence& sequence = sequences[static_cast<size_t>(entry.place)];
  return entry.before < sequence.x_segments * format.segment_tokens();
}

std::byte* Store::XTarget(int entry_index, int layer) {
  Impl& impl = *impl_;
  HEADWAY_CHECK(entry_index >= 0 && entry_index < static_cast<int>(impl.entries.size()));
  const Impl::Entry& entry = impl.entries[static_cast<size_t>(entry_index)];
  if (!impl.KeepsX(entry)) return nullptr;
  impl.EnterLayer(layer);
  std::byte* page = entry.appends ? impl.buffers->AppendX(layer, entry.append_page)
                                  : impl.buffers->OpenX(entry.place, layer);
  return page + impl.format.XBytes(entry.before % impl.math.slots());
}

// --- Reading

// Which slabs of X from `first` on are read together: neighbours in the order, of one layer, as
// many as fit.
void Reader::PlanGathers(size_t first) {
  int64_t filled = 0;
  for (size_t i = first; i < order_.size(); ++i) {
    const Slab& slab = (*slabs_)[order_[i].slab];
    if (!slab.x) continue;
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
bool Reader::IssueX(size_t index) {
  InFlight& flight = flights_[index];
  GatherBuffer& buffer = GatherBufferOf(flight);
  if (buffer.gather != flight.gather) {
    if (buffer.unfinished > 0) return false;
    buffer.gather = flight.gather;
  }
  ++buffer.unfinished;
  const Slab& slab = (*slabs_)[order_[index].slab];
  flight.data = buffer.data + flight.gather_page * format_.x_page_bytes();
  lanes_->Wait(Lane::kHostToDevice, slab.written);
  lanes_->Wait(Lane::kHostToDevice, buffer.used);
  gather_pieces_.push_back(
      {flight.data, slab.data, static_cast<size_t>(order_[index].pages * format_.x_page_bytes())});
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

SlabView Reader::ViewOfX(size_t index) {
  const InFlight& flight = flights_[index];
  if (flight.ends_gather) lanes_->Wait(Lane::kCompute, flight.ready);
  SlabView view;
  view.segment = order_[index].segment;
  view.keys.position = order_[index].segment * format_.segment_tokens();
  view.keys.pages.count = int64_t{order_[index].pages} * format_.page.page_slots;
  view.x = flight.data;
  view.ends_gather = flight.ends_gather;
  view.tier = flight.from;
  view.staging = static_cast<int>(index);
  return view;
}

void Reader::FinishX(const InFlight& flight) {
  GatherBuffer& buffer = GatherBufferOf(flight);
  HEADWAY_CHECK(buffer.gather == flight.gather && buffer.unfinished > 0);
  if (--buffer.unfinished > 0) return;
  buffer.used.Add(Lane::kCompute, lanes_->Mark(Lane::kCompute));
  if (poison_ != nullptr) {
    poison_->Fill(buffer.data, gather_pages_ * format_.x_page_bytes(), &buffer.used);
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
