// The path `host` in decode steps: what the host's cores attend to while the rest streams.
#include <algorithm>
#include <utility>
#include <vector>

#include "base/check.h"
#include "engine/executor.h"

namespace headway {

// Which slabs are read in which order, and what of them the host reads instead: of the slabs in
// its memory that decode entries read, the share that the plan gives it, layer by layer.
void Executor::PlanReads() {
  reads_.clear();
  next_read_ = 0;
  host_reads_.clear();
  host_first_.assign(static_cast<size_t>(shape_.layers) + 1, 0);
  const double share = host_ == nullptr || probe_ != nullptr ? 0.0 : host_share();
  double carry = 0.0;
  for (int layer = 0; layer < shape_.layers; ++layer) {
    const size_t first = reads_.size();
    for (int group = 0; group < store_.format().head_groups(layer); ++group) {
      // X first: recomputing goes on while the rest streams.
      for (const bool x : {true, false}) {
        if (x && !recomputes()) continue;
        for (int entry = 0; entry < static_cast<int>(entries_.size()); ++entry) {
          const kv::Store::SegmentSpan span = store_.Segments(entry, layer);
          const int last = x ? span.x_last : span.last;
          for (int segment = x ? span.first : span.x_last; segment < last; ++segment) {
            reads_.push_back({entry, layer, group, segment});
          }
        }
      }
    }
    if (share > 0.0) SplitReads(share, first, &carry);
    host_first_[static_cast<size_t>(layer) + 1] = host_reads_.size();
  }
}

// Of the reads from `first` on, those of one layer.
void Executor::SplitReads(double share, size_t first, double* carry) {
  std::vector<HostSlab> slabs;
  std::vector<size_t> at;  // in reads_
  for (size_t i = first; i < reads_.size(); ++i) {
    const kv::SlabRead& read = reads_[i];
    if (!entries_[static_cast<size_t>(read.entry)].decode) continue;
    const kv::Store::SlabPlace place = store_.PlaceOf(read);
    if (place.tier != Tier::kHost || place.x) continue;
    slabs.push_back({place.pages, store_.format().HeadsIn(read.layer, read.group)});
    at.push_back(i);
  }
  std::vector<int> streamed;
  SplitLayer(share, slabs, carry, &streamed);
  std::vector<bool> gone(reads_.size() - first);
  for (size_t i = 0; i < at.size(); ++i) {
    if (streamed[i] == slabs[i].pages) continue;
    kv::SlabRead& read = reads_[at[i]];
    host_reads_.push_back({read, streamed[i]});
    if (streamed[i] == 0) {
      gone[at[i] - first] = true;
    } else {
      read.pages = streamed[i];
    }
  }
  size_t kept = first;
  for (size_t i = first; i < reads_.size(); ++i) {
    if (!gone[i - first]) reads_[kept++] = reads_[i];
  }
  reads_.resize(kept);
}

std::span<const kv::HostRead> Executor::HostReads(int layer) const {
  const size_t first = host_first_[static_cast<size_t>(layer)];
  return std::span(host_reads_).subspan(first, host_first_[static_cast<size_t>(layer) + 1] - first);
}

// Sends the queries down and has the host begin.
void Executor::StartHost(int layer) {
  const std::span<const kv::HostRead> reads = HostReads(layer);
  on_host_.assign(entries_.size(), false);
  for (const kv::HostRead& read : reads) on_host_[static_cast<size_t>(read.slab.entry)] = true;
  host_->Begin();
  // Entries whose rows follow one another go down together.
  const auto row_bytes = static_cast<size_t>(ActivationBytes(QWidth()));
  for (int e = 0, end = 0; e < static_cast<int>(entries_.size()); e = std::max(e + 1, end)) {
    for (end = e; end < static_cast<int>(entries_.size()) && on_host_[static_cast<size_t>(end)];) {
      ++end;
    }
    if (end == e) continue;
    const int64_t q = entries_[static_cast<size_t>(e)].row * act_.qkv_stride;
    compute_.Copy2D(host_->Queries(e), row_bytes,
                    static_cast<const std::byte*>(act_.q) + ActivationBytes(q),
                    static_cast<size_t>(ActivationBytes(act_.qkv_stride)), row_bytes,
                    static_cast<size_t>(end - e));
  }
  // Reads are in the order of groups, then entries, then positions.
  size_t next = 0;
  std::vector<KeyRun> ranges;
  for (int group = 0; group < store_.format().head_groups(layer); ++group) {
    for (int e = 0; e < static_cast<int>(entries_.size()); ++e) {
      if (!on_host_[static_cast<size_t>(e)]) continue;
      ranges.clear();
      while (next < reads.size() && reads[next].slab.group == group &&
             reads[next].slab.entry == e) {
        ranges.push_back(store_.KeysOnHost(reads[next++]));
      }
      for (const kv::HeadRun& run : RunsOf(layer, group)) {
        host_->Add(e, entries_[static_cast<size_t>(e)].position, run, ranges);
      }
    }
  }
  HEADWAY_CHECK(next == reads.size());
  const WorkCost cost = host_->Cost();
  store_.RunOnHost(reads, cost, host_->Work(WindowOf(layer)));
}

// What the lanes have taken so far.
HostStepTimes Executor::LaneTimes() const {
  if (host_path_.trace == nullptr) return {};
  const Trace::LaneTotals bus = host_path_.trace->totals(Lane::kHostToDevice);
  const Trace::LaneTotals host = host_path_.trace->totals(Lane::kHostCompute);
  constexpr double kNano = 1e-9;
  return {.bus_seconds = static_cast<double>(bus.busy_ns) * kNano,
          .host_seconds = static_cast<double>(host.busy_ns) * kNano,
          .bus_bytes = static_cast<double>(bus.bytes) / 2.0,  // read, and written
          .host_bytes = static_cast<double>(host.bytes)};
}

// Behind a step that began at `before`.
void Executor::CorrectHostShare(const HostStepTimes& before) {
  // A step that is still under way, or that streams for a prefill, says nothing.
  if (host_path_.trace == nullptr || ahead_ ||
      !std::all_of(entries_.begin(), entries_.end(), [](const Entry& e) { return e.decode; })) {
    return;
  }
  const HostStepTimes now = LaneTimes();
  host_share_.Observe({.bus_seconds = now.bus_seconds - before.bus_seconds,
                       .host_seconds = now.host_seconds - before.host_seconds,
                       .bus_bytes = now.bus_bytes - before.bus_bytes,
                       .host_bytes = now.host_bytes - before.host_bytes,
                       .gap_seconds = host_->PauseSeconds()});
}

}  // namespace headway
