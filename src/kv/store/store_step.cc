// The steps of a Store: room for new pages, where they are written, how a step ends, and what it
// reads.
#include <algorithm>
#include <limits>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "headway/refusal.h"
#include "kv/store/store.h"
#include "kv/store/store_impl.h"

namespace headway::kv {
namespace {

// Positions are int32_t in kernels.
constexpr int64_t kMaxLength = std::numeric_limits<int32_t>::max();

Status Invalid(const std::string& text) {
  return Status(StatusCode::kInvalidArgument, "KV store: " + text);
}

}  // namespace

// --- Beginning

Status Store::Impl::PlanStep(std::span<const StepEntry> wanted) {
  entries.clear();
  if (wanted.empty()) return Invalid("a step needs at least one sequence");
  int64_t tokens = 0, append_page = 0, encoded_page = 0;
  for (const StepEntry& want : wanted) {
    const Sequence* sequence = Find(want.sequence);
    if (sequence == nullptr) return Invalid("no sequence " + std::to_string(want.sequence));
    Entry entry;
    entry.place = PlaceOf(*sequence);
    for (const Entry& other : entries) {
      if (other.place == entry.place) {
        return Invalid("sequence " + std::to_string(want.sequence) + " is twice in a step");
      }
    }
    if (want.tokens < 1 || want.tokens > options.max_step_tokens - tokens) {
      return Invalid("a step of " + std::to_string(want.tokens) + " tokens for sequence " +
                     std::to_string(want.sequence) + "; a step takes 1 to " +
                     std::to_string(options.max_step_tokens) + " tokens in all");
    }
    if (want.tokens > kMaxLength - sequence->length) {
      return Invalid("sequence " + std::to_string(want.sequence) + " would be longer than " +
                     std::to_string(kMaxLength) + " tokens");
    }
    tokens += want.tokens;
    entry.tokens = want.tokens;
    entry.before = sequence->length;
    entry.appends = want.tokens > 1;
    entry.pages = CeilDiv(entry.before % math.slots() + entry.tokens, math.slots());
    if (entry.appends) {
      entry.append_page = append_page;
      append_page += entry.pages;
    }
    entry.encoded_page = encoded_page;
    encoded_page += math.ClosedPages(entry.before + entry.tokens) - math.ClosedPages(entry.before);
    entries.push_back(entry);
  }
  HEADWAY_CHECK(std::max(append_page, encoded_page) <= buffers->append_pages());
  return OkStatus();
}

Store::Impl::Growth Store::Impl::GrowthOf(const Entry& entry, int layer) const {
  const int64_t before = math.ClosedPages(entry.before);
  const int64_t after = math.ClosedPages(entry.before + entry.tokens);
  Growth growth;
  if (after == before) return growth;
  growth.last = math.Segments(after);
  // What no later query will see is not stored at all.
  growth.first = std::max(static_cast<int>(before / format.segment_pages),
                          math.FirstKept(layer, entry.before + entry.tokens));
  growth.first = std::min(growth.first, growth.last);
  return growth;
}

bool Store::Impl::MustCopy(const Slab& slab, int pages) const {
  return slab.refs > 1 || (slab.tier == Tier::kDisk && pages < slab.disk->sealed);
}

PerSlabKind<int64_t> Store::Impl::NewSlabs() const {
  PerSlabKind<int64_t> count = {};
  for (const Entry& entry : entries) {
    const Sequence& sequence = sequences[static_cast<size_t>(entry.place)];
    const int there = math.Segments(math.ClosedPages(entry.before));
    for (int layer = 0; layer < format.layers; ++layer) {
      const Growth growth = GrowthOf(entry, layer);
      for (int segment = growth.first; segment < growth.last; ++segment) {
        Of(count, sequence.KindOf(segment)) += format.head_groups(layer);
      }
      if (growth.first >= growth.last || growth.first >= there) continue;
      const int pages = math.PagesIn(growth.first, math.ClosedPages(entry.before));
      for (int group = 0; group < format.head_groups(layer); ++group) {
        const SlabId id = SlabsOf(sequence, layer, group)[static_cast<size_t>(growth.first)];
        const Slab& slab = (*slabs)[id];
        if (!MustCopy(slab, pages)) --Of(count, slab.kind);
      }
    }
  }
  return count;
}

Status Store::Impl::Grow(const Entry& entry, int layer, int group) {
  Sequence& sequence = sequences[static_cast<size_t>(entry.place)];
  std::vector<SlabId>& ids = SlabsOf(sequence, layer, group);
  const Growth growth = GrowthOf(entry, layer);
  for (int segment = growth.first; segment < growth.last; ++segment) {
    const SlabId old =
        segment < static_cast<int>(ids.size()) ? ids[static_cast<size_t>(segment)] : kNoSlab;
    SlabId id = old;
    const int pages = math.PagesIn(segment, math.ClosedPages(entry.before));
    if (old == kNoSlab || MustCopy((*slabs)[old], pages)) {
      Result<SlabId> made = old == kNoSlab ? slabs->New(sequence.KindOf(segment), layer, group)
                                           : slabs->CopyOf(old, pages);
      if (!made.ok()) return made.status();
      id = *made;
      if (segment >= static_cast<int>(ids.size())) {
        ids.resize(static_cast<size_t>(segment) + 1, kNoSlab);
      }
      ids[static_cast<size_t>(segment)] = id;
      changes.push_back(Change{entry.place, layer, group, segment, old});
    } else {
      slabs->Cut(id, pages);
    }
    (*slabs)[id].growing = true;
    growing.push_back(id);
  }
  return OkStatus();
}

Status Store::Impl::GrowAll() {
  const PerSlabKind<int64_t> needed = NewSlabs();
  Status status;
  for (const SlabKind kind : kAllSlabKinds) {
    if (status.ok() && Of(needed, kind) > 0) status = slabs->CheckRoom(kind, Of(needed, kind));
  }
  if (!status.ok()) return status;
  for (const Entry& entry : entries) {
    for (int layer = 0; layer < format.layers; ++layer) {
      for (int group = 0; group < format.head_groups(layer); ++group) {
        status = Grow(entry, layer, group);
        if (!status.ok()) return status;
      }
    }
  }
  return OkStatus();
}

void Store::Impl::UndoGrowth() {
  for (const SlabId id : growing) (*slabs)[id].growing = false;
  for (const Change& change : changes) {
    Sequence& sequence = sequences[static_cast<size_t>(change.place)];
    SlabId& id = SlabsOf(sequence, change.layer, change.group)[static_cast<size_t>(change.segment)];
    slabs->Release(std::exchange(id, change.old));
  }
  for (const Entry& entry : entries) {
    Sequence& sequence = sequences[static_cast<size_t>(entry.place)];
    const auto segments = static_cast<size_t>(math.Segments(math.ClosedPages(entry.before)));
    for (std::vector<SlabId>& ids : sequence.slabs) ids.resize(segments, kNoSlab);
  }
}

Status Store::Impl::LaneStatus() {
  const Status status = lanes.status();
  if (status.ok()) return status;
  return status.Within(
      {"an earlier error has ended this context; open it again (what its session saved before is "
       "kept): "});
}

Status Store::BeginStep(std::span<const StepEntry> wanted) {
  Impl& impl = *impl_;
  Status status = impl.RefuseInStep("a step cannot begin");
  if (status.ok()) status = impl.LaneStatus();
  if (status.ok()) status = impl.PlanStep(wanted);
  if (!status.ok()) return status;
  impl.changes.clear();
  impl.growing.clear();
  status = impl.GrowAll();
  if (!status.ok()) {
    impl.UndoGrowth();
    return status;
  }
  for (const Impl::Change& change : impl.changes) {
    if (change.old != kNoSlab) impl.slabs->Release(change.old);
  }
  impl.in_step = true;
  impl.slabs->BeginStep();
  impl.current = -1;
  impl.layers_closed = 0;
  return OkStatus();
}

// --- A layer

bool Store::Impl::Keeps(const Entry& entry, SlabKind kind) const {
  if (kind == SlabKind::kKeysValues) return true;
  const Sequence& sequence = sequences[static_cast<size_t>(entry.place)];
  return sequence.KindOf(static_cast<int>(entry.before / format.segment_tokens())) == kind;
}

std::byte* Store::Impl::FirstPage(const Entry& entry, SlabKind kind, int layer, int64_t row) const {
  const OpenPages& pages = buffers->of(kind);
  return entry.appends ? pages.Append(layer, row, entry.append_page)
                       : pages.Open(entry.place, layer, row);
}

int64_t Store::Impl::RowStride(const Entry& entry, SlabKind kind) const {
  const OpenPages& pages = buffers->of(kind);
  return entry.appends ? pages.append_row_stride() : pages.open_row_stride();
}

void Store::Impl::EnterLayer(int next) {
  if (current == next) return;
  HEADWAY_CHECK(in_step && next == layers_closed && next < format.layers);
  current = next;
  for (const Entry& entry : entries) {
    lanes.Wait(Lane::kCompute, buffers->open_fence(entry.place, current));
    if (entry.appends) lanes.Wait(Lane::kCompute, buffers->append_fence(current));
    const int64_t open_slots = entry.before % math.slots();
    if (!entry.appends || open_slots == 0) continue;
    for (const SlabKind kind : kAllSlabKinds) {
      if (!Keeps(entry, kind)) continue;
      const OpenPages& pages = buffers->of(kind);
      compute->Copy2D(pages.Append(current, 0, entry.append_page),
                      static_cast<size_t>(pages.append_row_stride()),
                      pages.Open(entry.place, current, 0),
                      static_cast<size_t>(pages.open_row_stride()),
                      static_cast<size_t>(open_slots * pages.layout().slot_bytes),
                      static_cast<size_t>(pages.layout().open_rows));
    }
  }
}

PageRun Store::Target(int entry_index, int layer, int group) {
  KeyRun tail = Tail(entry_index, layer, group);
  const Impl::Entry& entry = impl_->entries[static_cast<size_t>(entry_index)];
  tail.pages.first_slot = entry.before % impl_->math.slots();
  tail.pages.count = entry.tokens;
  return tail.pages;
}

std::byte* Store::XTarget(int entry_index, int layer) {
  Impl& impl = *impl_;
  HEADWAY_CHECK(entry_index >= 0 && entry_index < static_cast<int>(impl.entries.size()));
  const Impl::Entry& entry = impl.entries[static_cast<size_t>(entry_index)];
  if (!impl.Keeps(entry, SlabKind::kX)) return nullptr;
  impl.EnterLayer(layer);
  return impl.FirstPage(entry, SlabKind::kX, layer, 0) +
         impl.format.XBytes(entry.before % impl.math.slots());
}

KeyRun Store::Tail(int entry_index, int layer, int group) {
  constexpr SlabKind kKind = SlabKind::kKeysValues;
  const Impl& impl = *impl_;
  const CacheFormat& format = impl.format;
  HEADWAY_CHECK(entry_index >= 0 && entry_index < static_cast<int>(impl.entries.size()));
  HEADWAY_CHECK(group >= 0 && group <= format.StreamingGroup(layer));
  impl_->EnterLayer(layer);
  const Impl::Entry& entry = impl.entries[static_cast<size_t>(entry_index)];
  const int row = FirstRow(format, layer, group);
  const int64_t pages_there = entry.appends ? impl.buffers->append_pages() - entry.append_page : 1;
  KeyRun tail;
  tail.pages = {.k = impl.FirstPage(entry, kKind, layer, row),
                .v = impl.FirstPage(entry, kKind, layer, row + format.HeadsIn(layer, group)),
                .page_stride = format.page_stride(),
                .head_stride = impl.RowStride(entry, kKind),
                .count = entry.before % impl.math.slots() + entry.tokens,
                .readable = pages_there * impl.math.slots()};
  tail.position = impl.math.ClosedTokens(entry.before);
  return tail;
}

Store::SegmentSpan Store::Segments(int entry_index, int layer) const {
  HEADWAY_CHECK(entry_index >= 0 && entry_index < static_cast<int>(impl_->entries.size()));
  const Impl::Entry& entry = impl_->entries[static_cast<size_t>(entry_index)];
  SegmentSpan span;
  span.last = impl_->math.Segments(impl_->math.ClosedPages(entry.before));
  span.first = std::min(span.last, impl_->math.FirstVisible(layer, entry.before));
  span.x_last = std::clamp(impl_->sequences[static_cast<size_t>(entry.place)].x_segments,
                           span.first, span.last);
  return span;
}

// --- Ending

void Store::Impl::FinishEntry(const Entry& entry) {
  Sequence& sequence = sequences[static_cast<size_t>(entry.place)];
  sequence.length = entry.before + entry.tokens;
  const int64_t closed = math.ClosedPages(sequence.length);
  if (closed > math.ClosedPages(entry.before)) {
    sequence.recent_first = streaming_pages.FirstKept(sequence.recent_first, closed);
    sequence.recent_area = 1 - sequence.recent_area;
  }
  const int segments = math.Segments(math.ClosedPages(sequence.length));
  for (int layer = 0; layer < format.layers; ++layer) {
    if (format.WindowOf(layer) == 0) continue;
    int& freed = sequence.freed[static_cast<size_t>(layer)];
    const int kept = std::min(segments, math.FirstKept(layer, sequence.length));
    if (kept <= freed) continue;
    for (int group = 0; group < format.head_groups(layer); ++group) {
      std::vector<SlabId>& ids = SlabsOf(sequence, layer, group);
      ids.resize(static_cast<size_t>(segments), kNoSlab);
      Release(ids, freed, kept);
    }
    freed = kept;
  }
}

// Errors of lanes, and of writes to disk of slabs that the step's sequences own.
Status Store::Impl::StepStatus() {
  Status status = lanes.status();
  if (!status.ok() || !disk.has_failed()) return status;
  for (const Entry& entry : entries) {
    const Sequence& sequence = sequences[static_cast<size_t>(entry.place)];
    for (const std::vector<SlabId>& ids : sequence.slabs) {
      for (const SlabId id : ids) {
        if (id == kNoSlab || (*slabs)[id].tier != Tier::kDisk) continue;
        status = (*slabs)[id].disk->Check((*slabs)[id].pages);
        if (!status.ok()) return status;
      }
    }
  }
  return OkStatus();
}

Status Store::EndStep() {
  Impl& impl = *impl_;
  HEADWAY_CHECK(impl.in_step && impl.layers_closed == impl.format.layers);
  Status status = impl.reader->End();
  if (status.ok()) status = impl.StepStatus();
  if (!status.ok()) {
    AbortStep();
    return status;
  }
  impl.EndHolds();
  for (const SlabId id : impl.growing) (*impl.slabs)[id].growing = false;
  for (const Impl::Entry& entry : impl.entries) impl.FinishEntry(entry);
  impl.in_step = false;
  return OkStatus();
}

void Store::AbortStep() {
  Impl& impl = *impl_;
  if (!impl.in_step) return;
  // Whatever the reads brought is dropped with the step.
  Status ignored = impl.reader->End();
  (void)ignored;
  impl.EndHolds();
  for (const SlabId id : impl.growing) (*impl.slabs)[id].growing = false;
  for (const Impl::Entry& entry : impl.entries) {
    impl.Cut(impl.sequences[static_cast<size_t>(entry.place)],
             impl.math.ClosedTokens(entry.before));
  }
  impl.in_step = false;
}

// --- Reading

Result<Store::Impl::Found> Store::Impl::FindSlab(const SlabRead& read) const {
  if (read.entry < 0 || read.entry >= static_cast<int>(entries.size()) || read.layer < 0 ||
      read.layer >= format.layers || read.group < 0 ||
      read.group >= format.head_groups(read.layer)) {
    return Invalid("a slab to read that the step does not have");
  }
  const Entry& entry = entries[static_cast<size_t>(read.entry)];
  Found found;
  found.pages = read.segment < 0 ? 0 : math.PagesIn(read.segment, math.ClosedPages(entry.before));
  if (found.pages > 0) {
    found.slab = SlabsOf(sequences[static_cast<size_t>(entry.place)], read.layer,
                         read.group)[static_cast<size_t>(read.segment)];
  }
  if (found.slab == kNoSlab || read.pages < 0 || read.pages > found.pages) {
    return Invalid("segment " + std::to_string(read.segment) + " of layer " +
                   std::to_string(read.layer) + " has no " +
                   (read.pages > 0 ? std::to_string(read.pages) + " " : "") + "pages to read");
  }
  return found;
}

Status Store::Announce(std::span<const SlabRead> reads) {
  Impl& impl = *impl_;
  if (!impl.in_step) return Invalid("slabs are read within a step");
  impl.announced.clear();
  for (const SlabRead& read : reads) {
    const Result<Impl::Found> found = impl.FindSlab(read);
    if (!found.ok()) return found.status();
    impl.announced.push_back(
        Reader::Item{found->slab, read.segment, read.pages == 0 ? found->pages : read.pages});
  }
  impl.reader->Announce(impl.announced);
  return OkStatus();
}

Status Store::HoldOnHost(std::span<const HostRead> reads) {
  Impl& impl = *impl_;
  if (!impl.in_step) return Invalid("slabs are read within a step");
  for (const HostRead& read : reads) {
    const Result<Impl::Found> found = impl.FindSlab(read.slab);
    if (!found.ok()) return found.status();
    Slab& slab = (*impl.slabs)[found->slab];
    if (slab.tier != Tier::kHost || slab.kind != SlabKind::kKeysValues || read.first_page < 0 ||
        read.first_page >= found->pages) {
      return Invalid("a slab that is not on the host cannot be read there");
    }
    slab.held = true;
    impl.slabs->WasRead(found->slab);
    impl.held.push_back(found->slab);
  }
  return OkStatus();
}

Status Store::BeginReads(const std::vector<SlabRead>& order, std::span<const HostRead> on_host) {
  Impl& impl = *impl_;
  if (!impl.in_step) return Invalid("slabs are read within a step");
  Status status = impl.reader->End();
  if (!status.ok()) return status;
  impl.EndHolds();
  status = HoldOnHost(on_host);
  return status.ok() ? Announce(order) : status;
}

Result<SlabView> Store::NextRead() { return impl_->reader->Next(); }

void Store::FinishRead(const SlabView& view) { impl_->reader->Finish(view); }

}  // namespace headway::kv
