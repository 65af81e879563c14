// The end of a layer in a step of a Store: pages that closed are encoded and go down to their
// slabs, what is left of the append buffer goes to the open pages.
#include <algorithm>
#include <vector>

#include "kv/step/cache.h"
#include "kv/step/sequences.h"
#include "kv/step/step.h"
#include "kv/step/summarize.h"

namespace headway::kv {

void Step::EncodeClosedPages(const Entry& entry) {
  std::vector<EncodePagesItem> items;
  for (int group = 0; entry.closing > 0 && group < cache_.format.head_groups(current_); ++group) {
    const int row = FirstRow(cache_.format, current_, group);
    const int heads = cache_.format.HeadsIn(current_, group);
    EncodePagesItem item;
    item.heads = heads;
    item.unfit = cache_.buffers->unfit();
    item.from = NewPages(entry, current_, group, entry.closing * cache_.math.slots());
    item.to = {.k = cache_.buffers->Encoded(current_, row, entry.encoded_page),
               .v = cache_.buffers->Encoded(current_, row + heads, entry.encoded_page),
               .page_stride = cache_.format.closed_stride(),
               .head_stride = cache_.buffers->encoded_row_stride(),
               .count = item.from.count,
               .params = cache_.buffers->EncodedParams(current_, group, entry.encoded_page),
               .params_page_stride = cache_.format.param_stride(),
               .params_head_stride = cache_.format.param_bytes()};
    items.push_back(item);
  }
  if (!items.empty())
    cache_.options.kernels->EncodePages(*cache_.compute, cache_.format.page, items);
}

ClosedRows Step::RowsOf(const Entry& entry, SlabKind kind, int group, int64_t page) const {
  const SlabLayout& layout = Of(cache_.layouts, kind);
  const int row = layout.planes[0].by_head ? FirstRow(cache_.format, current_, group) : 0;
  if (layout.encoded) {
    return {cache_.buffers->Encoded(current_, row, entry.encoded_page + page),
            cache_.buffers->encoded_row_stride(),
            cache_.buffers->EncodedParams(current_, group, entry.encoded_page + page)};
  }
  return {FirstPage(entry, kind, current_, row) + page * layout.open_stride, RowStride(entry, kind),
          nullptr};
}

template <typename Visit>
void Step::ForEachClosing(const Entry& entry, int group, const Visit& visit) {
  const PageTable& table = TablesOf(entry).of(current_, group);
  const Growth growth = GrowthOf(entry, table, current_);
  for (int segment = growth.first; segment < growth.last; ++segment) {
    const int64_t start = int64_t{segment} * cache_.format.segment_pages;
    const int64_t page = std::max(table.pages(), start);
    const int64_t end =
        std::min(table.pages() + entry.closing, start + cache_.format.segment_pages);
    visit((*cache_.slabs)[table.slab(group, segment)], static_cast<int>(page - start),
          static_cast<int>(end - start), page - table.pages());
  }
}

// Of the keys in their own dtype, before they are encoded.
void Step::SummarizeClosedPages(const Entry& entry) {
  constexpr SlabKind kKind = SlabKind::kKeysValues;
  const CacheFormat& format = cache_.format;
  PagesToSummarize pages(cache_);
  for (int group = 0; entry.closing > 0 && group < format.head_groups(current_); ++group) {
    ForEachClosing(entry, group, [&](Slab& slab, int first, int last, int64_t page) {
      if (slab.frames.summary == nullptr || slab.summarised != first) return;
      slab.summarised = last;
      const PageRun keys{.k = FirstPage(entry, kKind, current_, FirstRow(format, current_, group)) +
                              page * format.page_stride(),
                         .page_stride = format.page_stride(),
                         .head_stride = RowStride(entry, kKind),
                         .count = (last - first) * cache_.math.slots()};
      const int64_t angles = page * cache_.math.slots() * (entry.rotated.rotary_dim / 2);
      pages.Add(slab, keys, first,
                {entry.rotated.cos + angles, entry.rotated.sin + angles, entry.rotated.rotary_dim});
    });
  }
  pages.Summarize();
}

bool Step::Gathers(const Entry& entry, const Slab& slab) const {
  const PageFormat& page = cache_.format.page;
  return !entry.appends && slab.tier == Tier::kDevice && slab.kind == SlabKind::kKeysValues &&
         cache_.options.kernels != nullptr && !cache_.format.encoded() &&
         page.head_dim * static_cast<int>(DTypeBytes(page.dtype)) % 16 == 0;
}

bool Step::GatherClosedPages() {
  const CacheFormat& format = cache_.format;
  bool all = format.pattern.StreamingIn(current_) == 0;
  std::vector<GatherSlotsItem> items;
  std::vector<Slab*> slabs;
  const auto gather = [&](const Entry& entry, int group, Slab& slab, int first) {
    const PageRun to = RunIn(format, slab.data, first, 1);
    const PageRun from = NewPages(entry, current_, group, to.count);
    for (int head = 0; head < format.HeadsIn(current_, group); ++head) {
      const HeadRun run = {head, 1, head};
      items.push_back({.from = PagesOf(from, run), .count = to.count, .to = PagesOf(to, run)});
    }
    slab.pages = first + 1;
    slabs.push_back(&slab);
    cache_.lanes.Wait(Lane::kCompute, slab.behind());
  };
  for (const Entry& entry : entries_) {
    all = all && !entry.appends;
    for (int group = 0; entry.closing == 1 && group < format.head_groups(current_); ++group) {
      ForEachClosing(entry, group, [&](Slab& slab, int first, int, int64_t) {
        if (Gathers(entry, slab)) {
          gather(entry, group, slab, first);
        } else {
          all = false;
        }
      });
    }
  }
  if (items.empty()) return all;
  cache_.options.kernels->GatherSlots(*cache_.compute, format.page, items);
  for (Slab* slab : slabs) slab->written.Add(Lane::kCompute, cache_.lanes.Soon(Lane::kCompute));
  return all;
}

void Step::CopyClosedPages(const Entry& entry) {
  for (int group = 0; group < cache_.format.head_groups(current_); ++group) {
    ForEachClosing(entry, group, [&](Slab& slab, int first, int last, int64_t page) {
      if (Gathers(entry, slab)) return;
      slab.pages = last;
      const SlabPages pages = cache_.slabs->PagesOf(slab, first, last - first);
      const ClosedRows rows = RowsOf(entry, slab.kind, group, page);
      slab.written.Join(cache_.mover->Append(pages, rows, slab.place(), slab.behind()));
    });
  }
}

void Step::CopyOpenPages(const Entry& entry) {
  const int64_t slots = (entry.before + entry.tokens) % cache_.math.slots();
  if (!entry.appends || slots == 0) return;
  for (const SlabKind kind : kAllSlabKinds) {
    if (!Keeps(entry, kind)) continue;
    const OpenPages& pages = cache_.buffers->of(kind);
    cache_.lanes.stream(Lane::kDeviceToHost)
        .Copy2D(pages.Open(entry.place, current_, 0), static_cast<size_t>(pages.open_row_stride()),
                pages.Append(current_, 0, entry.append_page + entry.pages - 1),
                static_cast<size_t>(pages.append_row_stride()),
                static_cast<size_t>(slots * pages.layout().slot_bytes),
                static_cast<size_t>(pages.layout().open_rows));
  }
}

// Sink pages go where they stay; the area of recent pages that is not in use takes those that are
// kept, from the other one and from the pages that the step closed.
void Step::CopyStreamingPages(const Entry& entry) {
  const int64_t before = cache_.math.ClosedPages(entry.before);
  const int64_t after = cache_.math.ClosedPages(entry.before + entry.tokens);
  const auto rows = 2 * static_cast<size_t>(cache_.format.pattern.StreamingIn(current_));
  if (rows == 0 || after == before) return;
  const Sequence& sequence = sequences_.at(entry.place);
  Stream& stream = cache_.lanes.stream(Lane::kDeviceToHost);
  const auto copy = [&](std::byte* to, const std::byte* from, int64_t from_stride, int64_t pages) {
    if (pages <= 0) return;
    stream.Copy2D(to, static_cast<size_t>(cache_.streaming->row_stride()), from,
                  static_cast<size_t>(from_stride),
                  static_cast<size_t>(pages * cache_.format.page_stride()), rows);
  };
  const int row = FirstRow(cache_.format, current_, cache_.format.StreamingGroup(current_));
  constexpr SlabKind kKind = SlabKind::kKeysValues;
  const int64_t new_stride = RowStride(entry, kKind);
  const auto new_page = [&](int64_t page) {
    return FirstPage(entry, kKind, current_, row) + (page - before) * cache_.format.page_stride();
  };
  const auto at = [&](std::byte* area, int64_t page) {
    return area + page * cache_.format.page_stride();
  };

  const int64_t sink = cache_.streaming_pages.sink();
  copy(at(cache_.streaming->Sink(entry.place, current_), before), new_page(before), new_stride,
       std::min(after, sink) - before);
  const int64_t first = cache_.streaming_pages.FirstKept(sequence.recent_first, after);
  std::byte* from = cache_.streaming->Recent(entry.place, current_, sequence.recent_area);
  std::byte* to = cache_.streaming->Recent(entry.place, current_, 1 - sequence.recent_area);
  copy(to, at(from, first - sequence.recent_first), cache_.streaming->row_stride(), before - first);
  const int64_t first_new = std::max(first, before);
  copy(at(to, first_new - first), new_page(first_new), new_stride, after - first_new);
}

void Step::CloseLayer(int layer) {
  EnterLayer(layer);
  ++next_layer_;
  const auto moves = [&](const Entry& entry) { return entry.appends || entry.closing > 0; };
  if (std::none_of(entries_.begin(), entries_.end(), moves)) return;

  if (cache_.format.encoded()) {
    cache_.lanes.Wait(Lane::kCompute, cache_.buffers->append_fence(layer));
    for (const Entry& entry : entries_) EncodeClosedPages(entry);
  }
  if (cache_.summaries != nullptr) {
    for (const Entry& entry : entries_) SummarizeClosedPages(entry);
  }
  if (GatherClosedPages()) return;
  Fence computed;
  computed.Add(Lane::kCompute, cache_.lanes.Mark(Lane::kCompute));
  cache_.lanes.Wait(Lane::kDeviceToHost, computed);
  for (const Entry& entry : entries_) {
    if (!moves(entry)) continue;
    CopyClosedPages(entry);
    CopyStreamingPages(entry);
    CopyOpenPages(entry);
    cache_.buffers->open_fence(entry.place, layer)
        .Add(Lane::kDeviceToHost, cache_.lanes.Soon(Lane::kDeviceToHost));
  }
  Fence& used = cache_.buffers->append_fence(layer);
  used.Add(Lane::kDeviceToHost, cache_.lanes.Mark(Lane::kDeviceToHost));
  if (cache_.poison != nullptr) {
    for (const SlabKind kind : kAllSlabKinds) {
      if (!Of(cache_.layouts, kind).kept) continue;
      const OpenPages& pages = cache_.buffers->of(kind);
      cache_.poison->Fill(pages.Append(layer, 0, 0), pages.append_half_bytes(), &used);
    }
  }
}

}  // namespace headway::kv
