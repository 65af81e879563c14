// The end of a layer in a step of a Store: pages that closed are encoded and go down to their
// slabs, what is left of the append buffer goes to the open pages.
#include <algorithm>
#include <vector>

#include "kv/store/store.h"
#include "kv/store/store_impl.h"

namespace headway::kv {

void Store::Impl::EncodeClosedPages(const Entry& entry) {
  constexpr SlabKind kKind = SlabKind::kKeysValues;
  std::vector<EncodePagesItem> items;
  for (int group = 0; entry.closing > 0 && group < format.head_groups(current); ++group) {
    const int row = FirstRow(format, current, group);
    const int heads = format.HeadsIn(current, group);
    EncodePagesItem item;
    item.heads = heads;
    item.from = {.k = FirstPage(entry, kKind, current, row),
                 .v = FirstPage(entry, kKind, current, row + heads),
                 .page_stride = format.page_stride(),
                 .head_stride = RowStride(entry, kKind),
                 .count = entry.closing * math.slots()};
    item.to = {.k = buffers->Encoded(current, row, entry.encoded_page),
               .v = buffers->Encoded(current, row + heads, entry.encoded_page),
               .page_stride = format.closed_stride(),
               .head_stride = buffers->encoded_row_stride(),
               .count = item.from.count,
               .params = buffers->EncodedParams(current, group, entry.encoded_page),
               .params_page_stride = format.param_stride(),
               .params_head_stride = format.param_bytes()};
    items.push_back(item);
  }
  if (!items.empty()) options.kernels->EncodePages(*compute, format.page, items);
}

ClosedRows Store::Impl::RowsOf(const Entry& entry, SlabKind kind, int group, int64_t page) const {
  const SlabLayout& layout = Of(layouts, kind);
  const int row = layout.planes[0].by_head ? FirstRow(format, current, group) : 0;
  if (layout.encoded) {
    return {buffers->Encoded(current, row, entry.encoded_page + page),
            buffers->encoded_row_stride(),
            buffers->EncodedParams(current, group, entry.encoded_page + page)};
  }
  return {FirstPage(entry, kind, current, row) + page * layout.open_stride, RowStride(entry, kind),
          nullptr};
}

void Store::Impl::CopyClosedPages(const Entry& entry) {
  for (int group = 0; group < format.head_groups(current); ++group) {
    const PageTable& table = TablesOf(entry).of(current, group);
    const Growth growth = GrowthOf(entry, table, current);
    for (int segment = growth.first; segment < growth.last; ++segment) {
      const int64_t start = int64_t{segment} * format.segment_pages;
      const int64_t page = std::max(table.pages(), start);
      const int64_t end = std::min(table.pages() + entry.closing, start + format.segment_pages);
      Slab& slab = (*slabs)[table.slab(group, segment)];
      slab.pages = static_cast<int>(end - start);
      const SlabPages pages =
          slabs->PagesOf(slab, static_cast<int>(page - start), static_cast<int>(end - page));
      const ClosedRows rows = RowsOf(entry, slab.kind, group, page - table.pages());
      slab.written.Join(mover->Append(pages, rows, slab.place(), slab.behind()));
    }
  }
}

void Store::Impl::CopyOpenPages(const Entry& entry) {
  const int64_t slots = (entry.before + entry.tokens) % math.slots();
  if (!entry.appends || slots == 0) return;
  for (const SlabKind kind : kAllSlabKinds) {
    if (!Keeps(entry, kind)) continue;
    const OpenPages& pages = buffers->of(kind);
    lanes.stream(Lane::kDeviceToHost)
        .Copy2D(pages.Open(entry.place, current, 0), static_cast<size_t>(pages.open_row_stride()),
                pages.Append(current, 0, entry.append_page + entry.pages - 1),
                static_cast<size_t>(pages.append_row_stride()),
                static_cast<size_t>(slots * pages.layout().slot_bytes),
                static_cast<size_t>(pages.layout().open_rows));
  }
}

void Store::CloseLayer(int layer) {
  Impl& impl = *impl_;
  impl.EnterLayer(layer);
  ++impl.layers_closed;
  const auto moves = [&](const Impl::Entry& entry) { return entry.appends || entry.closing > 0; };
  if (std::none_of(impl.entries.begin(), impl.entries.end(), moves)) return;

  if (impl.format.encoded()) {
    impl.lanes.Wait(Lane::kCompute, impl.buffers->append_fence(layer));
    for (const Impl::Entry& entry : impl.entries) impl.EncodeClosedPages(entry);
  }
  Fence computed;
  computed.Add(Lane::kCompute, impl.lanes.Mark(Lane::kCompute));
  impl.lanes.Wait(Lane::kDeviceToHost, computed);
  for (const Impl::Entry& entry : impl.entries) {
    if (!moves(entry)) continue;
    impl.CopyClosedPages(entry);
    impl.CopyStreamingPages(entry);
    impl.CopyOpenPages(entry);
    impl.buffers->open_fence(entry.place, layer)
        .Add(Lane::kDeviceToHost, impl.lanes.Soon(Lane::kDeviceToHost));
  }
  Fence& used = impl.buffers->append_fence(layer);
  used.Add(Lane::kDeviceToHost, impl.lanes.Mark(Lane::kDeviceToHost));
  if (impl.poison != nullptr) {
    for (const SlabKind kind : kAllSlabKinds) {
      if (!Of(impl.layouts, kind).kept) continue;
      const OpenPages& pages = impl.buffers->of(kind);
      impl.poison->Fill(pages.Append(layer, 0, 0), pages.append_half_bytes(), &used);
    }
  }
}

}  // namespace headway::kv
