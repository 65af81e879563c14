// The path `recompute` (KVPR, Eq. 8): keys and values of a sequence's first segments, of which the
// store keeps X, the normed input of their projection, in half the bytes where every query head has
// a KV head of its own. What they are recomputed into is attended to like a resident slab.
#include <cstddef>
#include <vector>

#include "base/check.h"
#include "engine/executor.h"

namespace headway {

// The step's new X goes to the store.
void Executor::KeepX(int layer) {
  const int64_t width = shape_.d_model;
  const auto element = static_cast<int64_t>(DTypeBytes(shape_.dtype));
  ConvertItem item;
  item.from_dtype = limits_.activation_dtype;
  item.from_stride = width;
  item.to_dtype = shape_.dtype;
  item.width = width;
  int64_t next_row = 0;             // behind the item's
  const std::byte* last = nullptr;  // where its last row goes; null: not to be continued
  const auto flush = [&] {
    if (item.rows > 0) kernels_.Convert(compute_, item);
    item.rows = 0;
  };
  for (int e = 0; e < static_cast<int>(entries_.size()); ++e) {
    const Entry& entry = entries_[static_cast<size_t>(e)];
    std::byte* const to = store_.XTarget(e, layer);
    if (to == nullptr) continue;
    // Single rows that are equally far apart, as in a batch of equal lengths, are one copy.
    if (item.rows > 0 && last != nullptr && entry.tokens == 1 && entry.row == next_row) {
      const std::ptrdiff_t apart = to - last;
      const bool even = item.rows == 1 || apart == item.to_stride * element;
      if (even && apart >= width * element && apart % element == 0) {
        item.to_stride = apart / element;
        ++item.rows;
        ++next_row;
        last = to;
        continue;
      }
    }
    flush();
    item.from = static_cast<const std::byte*>(act_.normed) + ActivationBytes(entry.row * width);
    item.to = to;
    item.to_stride = width;
    item.rows = entry.tokens;
    next_row = entry.row + entry.tokens;
    last = entry.tokens == 1 ? to : nullptr;
  }
  flush();
}

// The rotation angles of a gather's keys, by the positions that they were stored with.
void Executor::AnglesOfGather() {
  const int64_t half = shape_.head_dim / 2;
  int64_t row = 0;  // of the first position that is left
  std::vector<int32_t> positions;
  for (size_t i = 0; i < gather_.size(); ++i) {
    const KeyRun& keys = gather_[i].view.keys;
    for (int64_t t = 0; t < keys.pages.count; ++t) {
      positions.push_back(static_cast<int32_t>(keys.position + t));
    }
    const RopeFrequencies& rope = *entries_[static_cast<size_t>(gather_[i].entry)].rope;
    if (i + 1 < gather_.size()) {
      const RopeFrequencies& next = *entries_[static_cast<size_t>(gather_[i + 1].entry)].rope;
      if (next.inv_freq == rope.inv_freq && next.scale == rope.scale) continue;
    }
    kernels_.RopeAngles(compute_, positions, rope.inv_freq.data(), rope.rotary_dim(), rope.scale,
                        recomputed_.cos + row * half, recomputed_.sin + row * half);
    row += static_cast<int64_t>(positions.size());
    positions.clear();
  }
}

// Keys and values of the gather that was read, and attention to them.
void Executor::Recompute(int layer) {
  const int64_t width = int64_t{shape_.kv_heads} * shape_.head_dim;
  int64_t rows = 0;
  for (const Gathered& gathered : gather_) rows += gathered.view.keys.pages.count;
  HEADWAY_CHECK(rows <= limits_.gather_tokens);
  const void* x = gather_.front().view.x;
  if (recomputed_.x != nullptr) {
    kernels_.Convert(compute_, {.from = x,
                                .from_dtype = shape_.dtype,
                                .from_stride = shape_.d_model,
                                .to = recomputed_.x,
                                .to_dtype = limits_.activation_dtype,
                                .to_stride = shape_.d_model,
                                .rows = rows,
                                .width = shape_.d_model});
    x = recomputed_.x;
  }
  void* const k = recomputed_.kv;
  void* const v = static_cast<std::byte*>(recomputed_.kv) + ActivationBytes(width);
  model_.Kv(kernels_, compute_, {layer, rows, block_}, x, {k, v, 2 * width});
  for (const Gathered& gathered : gather_) store_.FinishRead(gathered.view);

  if (model_.config().rope.type != RopeType::kNone) {
    AnglesOfGather();
    const RopeTable table = {recomputed_.cos, recomputed_.sin, shape_.head_dim};
    kernels_.Rope(compute_, table, rows, shape_.kv_heads, shape_.head_dim, k, 2 * width);
  }
  PageRun pages;
  pages.page_stride = kv::CacheFormat::Padded(static_cast<int64_t>(format_.bytes()));
  pages.head_stride = limits_.gather_tokens / format_.page_slots * pages.page_stride;
  pages.k = recomputed_.pages;
  pages.v = recomputed_.pages + shape_.kv_heads * pages.head_stride;
  pages.count = rows;
  // Not RopeStoreKv, which lets the next kernel begin: decode attention would read these pages
  // ahead of the store, as those of earlier steps that they are.
  const StoreKvItem store = {
      .k = k, .v = v, .kv_stride = 2 * width, .heads = shape_.kv_heads, .to = pages};
  kernels_.StoreKv(compute_, format_, {&store, 1});

  int64_t left = limits_.gather_tokens;
  for (const Gathered& gathered : gather_) {
    KeyRun keys = gathered.view.keys;
    const int64_t count = keys.pages.count;
    keys.pages = pages;
    keys.pages.count = count;
    keys.pages.readable = left;
    AttendRange(gathered.entry, layer, /*group=*/0, keys, /*last=*/false);
    // A prefill state takes its ranges one after the other.
    if (!entries_[static_cast<size_t>(gathered.entry)].decode) Flush(WindowOf(layer));
    const int64_t bytes = count / format_.page_slots * pages.page_stride;
    pages.k += bytes;
    pages.v += bytes;
    left -= count;
  }
  gather_.clear();
  Flush(WindowOf(layer));
}

}  // namespace headway
