// The attention of a layer: ranges of keys, each with its partial state, and their merge.
#include <cmath>
#include <vector>

#include "base/check.h"
#include "engine/executor.h"
#include "kernels/items.h"

namespace headway {

Status Executor::Attention(int layer) {
  layer_merges_.clear();
  const bool with_host = !HostReads(layer).empty();
  if (with_host) StartHost(layer);
  for (int group = 0; group < store_.format().head_groups(layer); ++group) {
    BeginStates();
    if (Status s = AttendSegments(layer, group); !s.ok()) return s;
    for (int e = 0; e < static_cast<int>(entries_.size()); ++e) {
      AttendRange(e, layer, group, store_.Tail(e, layer, group), /*last=*/true);
    }
    Flush(WindowOf(layer));
    if (with_host) AddMerges(RunsOf(layer, group), true);
  }
  // Without the host all groups have as many parts.
  if (!with_host) AddMerges(slab_runs_[static_cast<size_t>(layer)], false);
  if (store_.format().pattern.StreamingIn(layer) > 0) AttendStreaming(layer);
  if (with_host) {
    host_->StreamWaits(compute_);
    store_.AwaitHost();
  }
  if (!layer_merges_.empty()) kernels_.Merge(compute_, shape_.head_dim, layer_merges_);
  return probe_ == nullptr ? OkStatus() : FinishProbe(layer);
}

int64_t Executor::WindowOf(int layer) const {
  const std::vector<int64_t>& windows = model_.config().windows;
  return windows.empty() ? 0 : windows[static_cast<size_t>(layer)];
}

// A group of heads has no states yet.
void Executor::BeginStates() {
  for (Entry& entry : entries_) {
    entry.parts = 0;
    entry.started = false;
  }
  if (probe_ != nullptr) probe_->started = false;
}

Status Executor::AttendSegments(int layer, int group) {
  for (; next_read_ < reads_.size(); ++next_read_) {
    const kv::SlabRead& read = reads_[next_read_];
    if (read.layer != layer || read.group != group) break;
    Result<kv::SlabView> view = store_.NextRead();
    if (!view.ok()) return view.status();
    if (view->x != nullptr) {
      gather_.push_back({read.entry, *view});
      if (view->ends_gather) Recompute(layer);
      continue;
    }
    AttendRange(read.entry, layer, group, view->keys, /*last=*/false);
    views_.push_back(*view);
    // A prefill state takes its ranges one after the other, and a staging buffer is wanted back;
    // decode items of resident slabs wait to be launched together.
    if (!entries_[static_cast<size_t>(read.entry)].decode || view->tier != Tier::kDevice) {
      Flush(WindowOf(layer));
    }
  }
  return OkStatus();
}

// The heads of a group against one range of keys. Decode cuts it at fixed boundaries, each piece
// with a state of its own.
void Executor::AttendRange(int entry_index, int layer, int group, const KeyRun& keys, bool last) {
  Entry& entry = entries_[static_cast<size_t>(entry_index)];
  const int64_t width = QWidth();
  int64_t parts = 0;
  for (const kv::HeadRun& run : RunsOf(layer, group)) {
    const int64_t head = int64_t{run.head} * shape_.group();  // query head
    AttentionItem item;
    item.q = static_cast<const std::byte*>(act_.q) +
             ActivationBytes(entry.row * act_.qkv_stride + head * shape_.head_dim);
    item.q_stride = act_.qkv_stride;
    item.tokens = entry.tokens;
    item.q_position = entry.position;
    item.heads = run.heads;
    item.keys = keys;
    item.keys.pages = PagesOf(keys.pages, run);
    item.o_stride = width;
    item.lse_stride = shape_.query_heads;
    if (entry.decode) {
      const int64_t part = entry_index * max_parts_ + entry.parts;
      item.split = entry.split;
      item.o = part_o_ + part * width + head * shape_.head_dim;
      item.o_part_stride = width;
      item.lse = part_lse_ + part * shape_.query_heads + head;
      item.lse_part_stride = shape_.query_heads;
      parts = PartsOf(item);
    } else {
      item.o = o_ + entry.row * width + head * shape_.head_dim;
      item.lse = lse_ + entry.row * shape_.query_heads + head;
      item.merge = entry.started;
      if (last && o_ != act_.o) {
        item.result = static_cast<std::byte*>(act_.o) +
                      ActivationBytes(entry.row * width + head * shape_.head_dim);
        item.result_stride = width;
      }
    }
    items_.push_back(item);
  }
  entry.started = true;
  entry.parts += static_cast<int>(parts);
  HEADWAY_CHECK(entry.parts <= max_parts_);
  if (probe_ != nullptr) ProbeRange(layer, group, keys);
}

// Enqueues the items so far.
void Executor::Flush(int64_t window) {
  if (!items_.empty()) {
    AttentionParams params;
    params.scale = 1.0f / std::sqrt(static_cast<float>(shape_.head_dim));
    params.window = window;
    kernels_.Attend(compute_, format_, shape_.group(), params, items_);
    items_.clear();
  }
  for (const kv::SlabView& view : views_) store_.FinishRead(view);
  views_.clear();
}

// Leaves the partial states of decode entries, of heads that have as many parts as those attended
// to last, and those of the host to the layer's Merge into act_.o.
void Executor::AddMerges(std::span<const kv::HeadRun> runs, bool with_host) {
  const int64_t width = QWidth();
  for (int e = 0; e < static_cast<int>(entries_.size()); ++e) {
    const Entry& entry = entries_[static_cast<size_t>(e)];
    if (!entry.decode) continue;
    for (const kv::HeadRun& run : runs) {
      const int64_t head = int64_t{run.head} * shape_.group();  // query head
      MergeItem item;
      item.part_o = part_o_ + e * max_parts_ * width + head * shape_.head_dim;
      item.o_part_stride = width;
      item.part_lse = part_lse_ + e * max_parts_ * shape_.query_heads + head;
      item.lse_part_stride = shape_.query_heads;
      item.parts = entry.parts;
      if (with_host && on_host_[static_cast<size_t>(e)]) {
        item.extra_o = host_->o(e) + head * shape_.head_dim;
        item.extra_lse = host_->lse(e) + head;
      }
      item.rows = int64_t{run.heads} * shape_.group();
      item.o = static_cast<std::byte*>(act_.o) +
               ActivationBytes(entry.row * width + head * shape_.head_dim);
      if (probe_ != nullptr) item.lse = lse_ + head;
      layer_merges_.push_back(item);
    }
  }
}

}  // namespace headway
