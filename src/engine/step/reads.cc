#include "engine/step/reads.h"

#include <algorithm>

namespace headway {

void Reads::Begin(bool resident) {
  resident_ = resident;
  queue_.clear();
  holds_.clear();
  in_place_.clear();
  layer_first_ = announced_ = next_ = 0;
}

void Reads::RangesOf(int layer, std::vector<SlabRange>* ranges) const {
  ranges->clear();
  for (int group = 0; group < context_.store.format().head_groups(layer); ++group) {
    for (int entry = 0; entry < batch_.size(); ++entry) {
      const kv::SegmentSpan span = context_.store.step().Segments(entry, layer, group);
      for (int segment = span.first; segment < span.last; ++segment) {
        const SlabRange range = {{entry, layer, group, segment}, segment < span.x_last};
        if (Sees(batch_[entry], range)) ranges->push_back(range);
      }
    }
  }
}

bool Reads::Sees(const BatchEntry& entry, const SlabRange& range) const {
  if (!entry.drafting) return true;
  return !range.x && context_.store.reads().PlaceOf(range.slab).tier != Tier::kDisk;
}

void Reads::EndLayer() {
  const auto by_group = [](const Queued& a, const Queued& b) {
    return a.slab.group < b.slab.group;
  };
  const auto first = queue_.begin() + static_cast<ptrdiff_t>(layer_first_);
  if (!std::is_sorted(first, queue_.end(), by_group)) {
    std::stable_sort(first, queue_.end(), by_group);
  }
  layer_first_ = queue_.size();
}

Status Reads::Announce() {
  slabs_.clear();
  for (; announced_ < queue_.size(); ++announced_) slabs_.push_back(queue_[announced_].slab);
  Status status = context_.store.reads().HoldOnHost(holds_);
  if (status.ok()) status = context_.store.reads().HoldInPlace(in_place_);
  holds_.clear();
  in_place_.clear();
  return status.ok() ? context_.store.reads().Announce(slabs_) : status;
}

bool Reads::IsNext(int path, int layer, int group) const {
  if (next_ == queue_.size()) return false;
  const Queued& next = queue_[next_];
  return next.path == path && next.slab.layer == layer && next.slab.group == group;
}

Result<kv::SlabView> Reads::Next() {
  ++next_;
  return context_.store.reads().Next();
}

void Reads::FinishHeld() {
  for (const kv::SlabView& view : held_) context_.store.reads().Finish(view);
  held_.clear();
  if (resident_) context_.store.reads().FinishOnDevice();
}

void Reads::Abort() { held_.clear(); }

}  // namespace headway
