// The steps of a Store as streaming heads see them: which keys they have, and where their pages go.
#include <algorithm>
#include <array>

#include "base/check.h"
#include "kv/store/store.h"
#include "kv/store/store_impl.h"

namespace headway::kv {

// Sink pages go where they stay; the area of recent pages that is not in use takes those that are
// kept, from the other one and from the pages that the step closed.
void Store::Impl::CopyStreamingPages(const Entry& entry) {
  const int64_t before = math.ClosedPages(entry.before);
  const int64_t after = math.ClosedPages(entry.before + entry.tokens);
  const auto rows = 2 * static_cast<size_t>(format.pattern.StreamingIn(current));
  if (rows == 0 || after == before) return;
  const Sequence& sequence = sequences[static_cast<size_t>(entry.place)];
  Stream& stream = lanes.stream(Lane::kDeviceToHost);
  const auto copy = [&](std::byte* to, const std::byte* from, int64_t from_stride, int64_t pages) {
    if (pages <= 0) return;
    stream.Copy2D(to, static_cast<size_t>(streaming->row_stride()), from,
                  static_cast<size_t>(from_stride),
                  static_cast<size_t>(pages * format.page_stride()), rows);
  };
  const int row = FirstRow(format, current, format.StreamingGroup(current));
  constexpr SlabKind kKind = SlabKind::kKeysValues;
  const int64_t new_stride = RowStride(entry, kKind);
  const auto new_page = [&](int64_t page) {
    return FirstPage(entry, kKind, current, row) + (page - before) * format.page_stride();
  };
  const auto at = [&](std::byte* area, int64_t page) { return area + page * format.page_stride(); };

  const int64_t sink = streaming_pages.sink();
  copy(at(streaming->Sink(entry.place, current), before), new_page(before), new_stride,
       std::min(after, sink) - before);
  const int64_t first = streaming_pages.FirstKept(sequence.recent_first, after);
  std::byte* from = streaming->Recent(entry.place, current, sequence.recent_area);
  std::byte* to = streaming->Recent(entry.place, current, 1 - sequence.recent_area);
  copy(to, at(from, first - sequence.recent_first), streaming->row_stride(), before - first);
  const int64_t first_new = std::max(first, before);
  copy(at(to, first_new - first), new_page(first_new), new_stride, after - first_new);
}

std::array<StreamingRange, 5> Store::StreamingRanges(int entry_index, int layer) {
  const CacheFormat& format = impl_->format;
  const StreamingPages& pages = impl_->streaming_pages;
  const int64_t slots = impl_->math.slots();
  const KeyRun tail = Tail(entry_index, layer, format.StreamingGroup(layer));
  const Impl::Entry& entry = impl_->entries[static_cast<size_t>(entry_index)];
  const Sequence& sequence = impl_->sequences[static_cast<size_t>(entry.place)];
  const int heads = format.pattern.StreamingIn(layer);
  HEADWAY_CHECK(heads > 0);
  // Keys [begin, end) of a run of pages whose first holds the key at `origin`.
  const auto part = [&](KeyRun run, int64_t origin, int64_t begin, int64_t end) {
    if (begin >= end) return KeyRun();
    HEADWAY_CHECK(begin >= origin);
    const int64_t page = (begin - origin) / slots;
    run.pages.k += page * run.pages.page_stride;
    run.pages.v += page * run.pages.page_stride;
    run.pages.first_slot = (begin - origin) % slots;
    run.pages.count = end - begin;
    run.pages.readable -= page * slots;
    run.position = begin;
    return run;
  };
  const auto closed_run = [&](std::byte* area, int64_t area_pages) {
    KeyRun run;
    const int64_t stride = impl_->streaming->row_stride();
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
  const KeyRun sinks = closed_run(impl_->streaming->Sink(entry.place, layer), pages.sink());
  const KeyRun recent = closed_run(
      impl_->streaming->Recent(entry.place, layer, sequence.recent_area), pages.recent());
  const int64_t recent_origin = sequence.recent_first * slots;
  return {{{part(sinks, 0, 0, std::min(sink, closed)), false},
           {part(sinks, 0, oldest, std::min(sink_end, closed)), windowed},
           {part(recent, recent_origin, std::max(sink_end, oldest), closed), windowed},
           {part(tail, closed, closed, std::min(sink, end)), false},
           {part(tail, closed, std::max(closed, oldest), end), windowed}}};
}

}  // namespace headway::kv
