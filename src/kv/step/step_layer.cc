// A layer of a step: where the new tokens of an entry go, and which of its keys lie on the device.
#include <algorithm>
#include <array>

#include "base/check.h"
#include "kernels/items.h"
#include "kv/step/cache.h"
#include "kv/step/sequences.h"
#include "kv/step/step.h"

namespace headway::kv {

bool Step::Keeps(const Entry& entry, SlabKind kind) const {
  if (kind == SlabKind::kKeysValues) return true;
  const Sequence& sequence = sequences_.at(entry.place);
  return sequence.KindOf(static_cast<int>(entry.before / cache_.format.segment_tokens())) == kind;
}

std::byte* Step::FirstPage(const Entry& entry, SlabKind kind, int layer, int64_t row) const {
  const OpenPages& pages = cache_.buffers->of(kind);
  return entry.appends ? pages.Append(layer, row, entry.append_page)
                       : pages.Open(entry.place, layer, row);
}

int64_t Step::RowStride(const Entry& entry, SlabKind kind) const {
  const OpenPages& pages = cache_.buffers->of(kind);
  return entry.appends ? pages.append_row_stride() : pages.open_row_stride();
}

PageRun Step::NewPages(const Entry& entry, int layer, int group, int64_t slots) const {
  constexpr SlabKind kKind = SlabKind::kKeysValues;
  const int row = FirstRow(cache_.format, layer, group);
  return {.k = FirstPage(entry, kKind, layer, row),
          .v = FirstPage(entry, kKind, layer, row + cache_.format.HeadsIn(layer, group)),
          .page_stride = cache_.format.page_stride(),
          .head_stride = RowStride(entry, kKind),
          .count = slots};
}

void Step::EnterLayer(int next) {
  if (current_ == next) return;
  HEADWAY_CHECK(in_step_ && next == next_layer_ && next < end_layer());
  current_ = next;
  for (const Entry& entry : entries_) {
    cache_.lanes.Wait(Lane::kCompute, cache_.buffers->open_fence(entry.place, current_));
    if (entry.appends) cache_.lanes.Wait(Lane::kCompute, cache_.buffers->append_fence(current_));
    const int64_t open_slots = entry.before % cache_.math.slots();
    if (!entry.appends || open_slots == 0) continue;
    for (const SlabKind kind : kAllSlabKinds) {
      if (!Keeps(entry, kind)) continue;
      const OpenPages& pages = cache_.buffers->of(kind);
      cache_.compute->Copy2D(pages.Append(current_, 0, entry.append_page),
                             static_cast<size_t>(pages.append_row_stride()),
                             pages.Open(entry.place, current_, 0),
                             static_cast<size_t>(pages.open_row_stride()),
                             static_cast<size_t>(open_slots * pages.layout().slot_bytes),
                             static_cast<size_t>(pages.layout().open_rows));
    }
  }
}

PageRun Step::Target(int entry_index, int layer, int group) {
  KeyRun tail = AllOfTail(entry_index, layer, group);
  const Entry& entry = entries_[static_cast<size_t>(entry_index)];
  tail.pages.first_slot = entry.before % cache_.math.slots();
  tail.pages.count = entry.tokens;
  return tail.pages;
}

std::byte* Step::XTarget(int entry_index, int layer) {
  HEADWAY_CHECK(entry_index >= 0 && entry_index < static_cast<int>(entries_.size()));
  const Entry& entry = entries_[static_cast<size_t>(entry_index)];
  if (!Keeps(entry, SlabKind::kX)) return nullptr;
  EnterLayer(layer);
  return FirstPage(entry, SlabKind::kX, layer, 0) +
         cache_.format.XBytes(entry.before % cache_.math.slots());
}

KeyRun Step::Tail(int entry_index, int layer, int group) {
  KeyRun tail = AllOfTail(entry_index, layer, group);
  const Entry& entry = entries_[static_cast<size_t>(entry_index)];
  const bool streams = group == cache_.format.StreamingGroup(layer);
  const PageTables& tables = TablesOf(entry);
  if (!streams && !tables.all_grow() && !tables.of(layer, group).grows()) tail.pages.count = 0;
  return tail;
}

KeyRun Step::AllOfTail(int entry_index, int layer, int group) {
  HEADWAY_CHECK(entry_index >= 0 && entry_index < static_cast<int>(entries_.size()));
  HEADWAY_CHECK(group >= 0 && group <= cache_.format.StreamingGroup(layer));
  EnterLayer(layer);
  const Entry& entry = entries_[static_cast<size_t>(entry_index)];
  const int64_t pages_there =
      entry.appends ? cache_.buffers->append_pages() - entry.append_page : 1;
  KeyRun tail;
  tail.pages = NewPages(entry, layer, group, entry.before % cache_.math.slots() + entry.tokens);
  tail.pages.readable = pages_there * cache_.math.slots();
  tail.position = cache_.math.ClosedTokens(entry.before);
  return tail;
}

SegmentSpan Step::Segments(int entry_index, int layer, int group) const {
  HEADWAY_CHECK(entry_index >= 0 && entry_index < static_cast<int>(entries_.size()));
  const Entry& entry = entries_[static_cast<size_t>(entry_index)];
  SegmentSpan span;
  span.last = cache_.math.Segments(TablesOf(entry).of(layer, group).pages());
  span.first = std::min(span.last, cache_.math.FirstVisible(layer, entry.before));
  span.x_last = std::clamp(sequences_.at(entry.place).x_segments, span.first, span.last);
  return span;
}

std::array<StreamingRange, 5> Step::StreamingRanges(int entry_index, int layer) {
  const CacheFormat& format = cache_.format;
  const StreamingPages& pages = cache_.streaming_pages;
  const int64_t slots = cache_.math.slots();
  const KeyRun tail = Tail(entry_index, layer, format.StreamingGroup(layer));
  const Entry& entry = entries_[static_cast<size_t>(entry_index)];
  const Sequence& sequence = sequences_.at(entry.place);
  const int heads = format.pattern.StreamingIn(layer);
  HEADWAY_CHECK(heads > 0);
  // The keys at positions [begin, end), of a run that begins at or before them.
  const auto part = [&](const KeyRun& run, int64_t begin, int64_t end) {
    if (begin >= end) return KeyRun();
    HEADWAY_CHECK(begin >= run.position);
    return KeysOf(format.page, run, 0, begin - run.position, end - begin);
  };
  const auto closed_run = [&](std::byte* area, int64_t area_pages, int64_t first_page) {
    KeyRun run;
    run.position = first_page * slots;
    const int64_t stride = cache_.streaming->row_stride();
    run.pages = {.k = area,
                 .v = area + heads * stride,
                 .page_stride = format.page_stride(),
                 .head_stride = stride,
                 .readable = area_pages * slots};
    return run;
  };
  const int64_t sink = format.pattern.sink;
  const int64_t closed = tail.position;
  const int64_t end = tail.position + tail.pages.count;
  const int64_t sink_end = pages.sink() * slots;
  // The oldest key that the first of the new tokens' queries sees beside the sink; the only query
  // of a decode step needs no window behind it.
  const int64_t oldest = std::max(sink, entry.before - format.pattern.recent + 1);
  const bool windowed = entry.tokens > 1;
  const KeyRun sinks = closed_run(cache_.streaming->Sink(entry.place, layer), pages.sink(), 0);
  const KeyRun recent =
      closed_run(cache_.streaming->Recent(entry.place, layer, sequence.recent_area), pages.recent(),
                 sequence.recent_first);
  return {{{part(sinks, 0, std::min(sink, closed)), false},
           {part(sinks, oldest, std::min(sink_end, closed)), windowed},
           {part(recent, std::max(sink_end, oldest), closed), windowed},
           {part(tail, closed, std::min(sink, end)), false},
           {part(tail, std::max(closed, oldest), end), windowed}}};
}

}  // namespace headway::kv
