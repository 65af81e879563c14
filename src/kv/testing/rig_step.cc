// The steps of a Rig: what its kernels write and compare.
#include <algorithm>
#include <cstring>
#include <utility>

#include "kv/testing/rig.h"

namespace headway::kv {
namespace {

uint16_t Element(uint64_t tag, int layer, int head, bool v, int64_t i) {
  uint64_t x = tag + (static_cast<uint64_t>(layer) << 40) + (static_cast<uint64_t>(head) << 24) +
               (static_cast<uint64_t>(i) << 1) + (v ? 1 : 0);
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return static_cast<uint16_t>(x >> 40);
}

constexpr int kHeadOfX = 1000;  // no head has that number

// The heads of the model that a group has, in order.
std::vector<int> HeadsOf(const CacheFormat& format, int layer, int group) {
  std::vector<int> heads;
  for (const HeadRun& run : format.Runs(layer, group)) {
    EXPECT_EQ(run.index, static_cast<int>(heads.size()));
    for (int i = 0; i < run.heads; ++i) heads.push_back(run.head + i);
  }
  EXPECT_EQ(static_cast<int>(heads.size()), format.HeadsIn(layer, group));
  return heads;
}

template <typename Visit>  // (head, tag, bytes of the slot's K or V, is V)
void ForEachSlot(const PageRun& run, const std::vector<int>& heads, const PageFormat& page,
                 std::span<const uint64_t> tags, const Visit& visit) {
  const size_t slot_bytes = page.bytes() / static_cast<size_t>(page.page_slots);
  for (size_t at = 0; at < heads.size(); ++at) {
    const int head = heads[at];
    for (int64_t i = 0; i < run.count; ++i) {
      const int64_t slot = run.first_slot + i;
      const int64_t offset = static_cast<int64_t>(at) * run.head_stride +
                             slot / page.page_slots * run.page_stride +
                             slot % page.page_slots * static_cast<int64_t>(slot_bytes);
      visit(head, tags[static_cast<size_t>(i)], run.k + offset, false);
      visit(head, tags[static_cast<size_t>(i)], run.v + offset, true);
    }
  }
}

}  // namespace

Status Rig::Step(SequenceId id, int64_t tokens) {
  const StepEntry entry{id, tokens};
  return Step({&entry, 1});
}

Status Rig::Step(std::span<const StepEntry> entries) {
  std::vector<int64_t> lengths;
  for (const StepEntry& entry : entries) lengths.push_back(store_->Length(entry.sequence));
  Status status = store_->step().Begin(entries);
  if (!status.ok()) {
    for (size_t i = 0; i < entries.size(); ++i) {
      EXPECT_EQ(store_->Length(entries[i].sequence), lengths[i]);
    }
    return status;
  }
  step_tokens_.clear();
  for (const StepEntry& entry : entries) {
    step_tokens_.push_back(model_[entry.sequence]);
    for (int64_t i = 0; i < entry.tokens; ++i) step_tokens_.back().push_back(random_.Next());
  }
  mismatches_.push_back(std::make_shared<std::atomic<int64_t>>(0));
  order_.clear();
  next_read_ = 0;
  const CacheFormat& format = store_->format();
  for (int layer = 0; layer < format.layers; ++layer) {
    for (int group = 0; group < format.head_groups(layer); ++group) {
      for (int entry = 0; entry < static_cast<int>(entries.size()); ++entry) {
        const SegmentSpan span = store_->step().Segments(entry, layer, group);
        for (int segment = span.first; segment < span.last; ++segment) {
          order_.push_back(SlabRead{entry, layer, group, segment});
        }
      }
    }
  }
  if (store_->reads().HasResidentRanges()) CheckResident(entries.size());
  // What is held does not move up.
  if (random_.Below(4) == 0) CheckVersions();
  announces_by_layer_ = random_.Below(2) == 0;
  if (!announces_by_layer_) status = store_->reads().Announce(order_);
  for (int layer = 0; status.ok() && layer < format.layers; ++layer) {
    status = RunLayer(entries, layer);
  }
  if (status.ok()) status = store_->step().End();
  if (!status.ok()) {
    store_->step().Abort();
    mismatches_.pop_back();
  }
  const int64_t slots = format.page.page_slots;
  for (size_t i = 0; i < entries.size(); ++i) {
    std::vector<uint64_t>& tags = model_[entries[i].sequence];
    if (status.ok()) {
      tags = step_tokens_[i];
    } else {
      tags.resize(tags.size() - tags.size() % static_cast<size_t>(slots));
    }
    EXPECT_EQ(store_->Length(entries[i].sequence), static_cast<int64_t>(tags.size()));
  }
  return status;
}

void Rig::CheckResident(size_t entries) {
  StepReads& reads = store_->reads();
  std::vector<std::pair<SlabRead, KeyRun>> expected;
  ASSERT_TRUE(reads.HoldInPlace(order_).ok());
  for (const SlabRead& read : order_) expected.emplace_back(read, reads.KeysInPlace(read));
  size_t found = 0;
  for (int layer = 0; layer < store_->format().layers; ++layer) {
    for (size_t entry = 0; entry < entries; ++entry) {
      size_t at = 0;
      const std::span<const ResidentRange> ranges =
          reads.RangesOnDevice(static_cast<int>(entry), layer);
      for (const auto& [read, keys] : expected) {
        if (read.layer != layer || read.entry != static_cast<int>(entry)) continue;
        ASSERT_LT(at, ranges.size());
        const KeyRun& got = ranges[at].keys;
        EXPECT_EQ(ranges[at].group, read.group);
        EXPECT_TRUE(got.position == keys.position && got.pages.k == keys.pages.k &&
                    got.pages.v == keys.pages.v && got.pages.params == keys.pages.params &&
                    got.pages.count == keys.pages.count &&
                    got.pages.page_stride == keys.pages.page_stride &&
                    got.pages.head_stride == keys.pages.head_stride);
        ++at;
        ++found;
      }
      EXPECT_EQ(at, ranges.size());
    }
  }
  EXPECT_EQ(found, expected.size());
}

void Rig::AbortedStep(std::span<const StepEntry> entries, int layers) {
  if (!store_->step().Begin(entries).ok()) return;
  step_tokens_.clear();
  for (const StepEntry& entry : entries) {
    step_tokens_.push_back(model_[entry.sequence]);
    for (int64_t i = 0; i < entry.tokens; ++i) step_tokens_.back().push_back(random_.Next());
  }
  order_.clear();
  next_read_ = 0;
  for (int layer = 0; layer < layers; ++layer) {
    for (int i = 0; i < static_cast<int>(entries.size()); ++i) {
      Write(entries[static_cast<size_t>(i)], i, layer);
      if (store_->format().keeps_x()) WriteX(entries[static_cast<size_t>(i)], i, layer);
    }
    store_->step().CloseLayer(layer);
  }
  store_->step().Abort();
  const auto slots = static_cast<size_t>(store_->format().page.page_slots);
  for (const StepEntry& entry : entries) {
    std::vector<uint64_t>& tags = model_[entry.sequence];
    tags.resize(tags.size() - tags.size() % slots);
    EXPECT_EQ(store_->Length(entry.sequence), static_cast<int64_t>(tags.size()));
  }
}

Status Rig::RunLayer(std::span<const StepEntry> entries, int layer) {
  for (int i = 0; i < static_cast<int>(entries.size()); ++i) {
    Write(entries[static_cast<size_t>(i)], i, layer);
    if (store_->format().keeps_x()) WriteX(entries[static_cast<size_t>(i)], i, layer);
  }
  Status status = ReadLayer(entries, layer);
  if (!status.ok()) return status;
  for (int i = 0; i < static_cast<int>(entries.size()); ++i) {
    const StepEntry& entry = entries[static_cast<size_t>(i)];
    CheckSegments(entries, i, layer);
    const CacheFormat& format = store_->format();
    for (int group = 0; group < format.head_groups(layer); ++group) {
      const KeyRun tail = store_->step().Tail(i, layer, group);
      EXPECT_EQ(tail.position + tail.pages.count, store_->Length(entry.sequence) + entry.tokens);
      Compare(tail, i, layer, group);
    }
    if (format.pattern.StreamingIn(layer) > 0) CheckStreaming(entry, i, layer);
  }
  store_->step().CloseLayer(layer);
  return OkStatus();
}

// What a version of a slab on the host has named once, it names for ever.
void Rig::CheckVersions() {
  const CacheFormat& format = store_->format();
  const auto slots = static_cast<size_t>(format.page.page_slots);
  for (const SlabRead& read : order_) {
    if (!store_->reads().HoldInPlace({&read, 1}).ok()) continue;  // on disk, or of X
    const uint32_t version = store_->reads().InPlace(read).version;
    EXPECT_EQ(version != 0, store_->reads().PlaceOf(read).tier == Tier::kHost);
    if (version == 0) continue;
    const std::vector<uint64_t>& tags = step_tokens_[static_cast<size_t>(read.entry)];
    const int pages = store_->reads().PlaceOf(read).pages;
    for (int page = 0; page < pages; ++page) {
      const auto first = tags.begin() + read.segment * format.segment_tokens() +
                         static_cast<int64_t>(static_cast<size_t>(page) * slots);
      std::vector<uint64_t> named(first, first + static_cast<int64_t>(slots));
      named.push_back(static_cast<uint64_t>(read.layer * 1000 + read.group));
      const auto known = named_.try_emplace({version, page}, named).first;
      EXPECT_EQ(known->second, named) << "version " << version << ", page " << page;
    }
  }
}

// In two parts, of which the second may be empty.
Status Rig::AnnounceLayer(int layer) {
  const auto of_layer = std::span<const SlabRead>(order_).subspan(next_read_);
  const auto last = std::find_if(of_layer.begin(), of_layer.end(),
                                 [layer](const SlabRead& read) { return read.layer != layer; });
  const auto count = static_cast<size_t>(last - of_layer.begin());
  const auto first = static_cast<size_t>(random_.Below(static_cast<int64_t>(count) + 1));
  Status status = store_->reads().Announce(of_layer.first(first));
  return status.ok() ? store_->reads().Announce(of_layer.subspan(first, count - first)) : status;
}

Status Rig::ReadLayer(std::span<const StepEntry> entries, int layer) {
  const CacheFormat& format = store_->format();
  std::vector<SlabView> held;
  std::vector<std::pair<int, SlabView>> gathered;  // and their entries
  const auto finish = [&](size_t keep) {
    while (held.size() > keep) {
      const auto which = static_cast<size_t>(random_.Below(static_cast<int64_t>(held.size())));
      store_->reads().Finish(held[which]);
      held.erase(held.begin() + static_cast<int64_t>(which));
    }
  };
  if (announces_by_layer_) {
    Status status = AnnounceLayer(layer);
    if (!status.ok()) return status;
  }
  for (; next_read_ < order_.size() && order_[next_read_].layer == layer; ++next_read_) {
    const SlabRead& read = order_[next_read_];
    Result<SlabView> view = store_->reads().Next();
    if (!view.ok()) return view.status();
    ++reads_from_[static_cast<size_t>(view->tier)];
    EXPECT_EQ(view->segment, read.segment);
    EXPECT_EQ(view->keys.position, read.segment * format.segment_tokens());
    const int64_t closed = store_->Length(entries[static_cast<size_t>(read.entry)].sequence) /
                           format.page.page_slots * format.page.page_slots;
    EXPECT_EQ(view->keys.pages.count,
              std::min(closed - view->keys.position, format.segment_tokens()));
    EXPECT_EQ(view->x != nullptr,
              view->segment < store_->step().Segments(read.entry, layer, read.group).x_last);
    if (view->x != nullptr) {
      if (!gathered.empty()) {
        const SlabView& last = gathered.back().second;
        EXPECT_EQ(view->x, last.x + format.XBytes(last.keys.pages.count));
      }
      gathered.emplace_back(read.entry, *view);
      if (!view->ends_gather) continue;
      for (const auto& [entry, one] : gathered) CompareX(one, entry, layer);
      for (const auto& [entry, one] : gathered) store_->reads().Finish(one);
      gathered.clear();
      continue;
    }
    Compare(view->keys, read.entry, layer, read.group);
    held.push_back(std::move(*view));
    finish(static_cast<size_t>(random_.Below(options_.store.staging_slabs)));
  }
  finish(0);
  return OkStatus();
}

void Rig::CheckSegments(std::span<const StepEntry> entries, int index, int layer) {
  const CacheFormat& format = store_->format();
  const int64_t length = store_->Length(entries[static_cast<size_t>(index)].sequence);
  const int64_t closed = length / format.page.page_slots * format.page.page_slots;
  const int64_t window = format.WindowOf(layer);
  const int64_t first_key = window == 0 ? 0 : std::max<int64_t>(0, length - window + 1);
  for (int group = 0; group < format.head_groups(layer); ++group) {
    const SegmentSpan span = store_->step().Segments(index, layer, group);
    if (first_key >= closed) {
      // All that is seen is in the tail; at most the segment around it is named.
      EXPECT_GE(int64_t{span.first} * format.segment_tokens(), closed - format.segment_tokens());
      continue;
    }
    EXPECT_EQ(span.first, first_key / format.segment_tokens());
    EXPECT_EQ(span.last, CeilDiv(closed, format.segment_tokens()));
  }
}

// The ranges hold every key that a query of the entry may see, in order, none twice.
void Rig::CheckStreaming(const StepEntry& entry, int index, int layer) {
  const CacheFormat& format = store_->format();
  const HeadPattern& pattern = format.pattern;
  const int64_t length = store_->Length(entry.sequence);
  const int64_t end = length + entry.tokens;
  int64_t next = 0;  // behind the ranges so far
  for (const StreamingRange& range : store_->step().StreamingRanges(index, layer)) {
    if (range.keys.pages.count == 0) continue;
    const int64_t begin = range.keys.position;
    EXPECT_GE(begin, next);
    // What is left out is neither of the sink nor recent for the oldest query.
    if (begin > next) {
      EXPECT_GE(next, pattern.sink);
      EXPECT_LE(begin, std::max<int64_t>(0, length - pattern.recent + 1));
    }
    next = begin + range.keys.pages.count;
    EXPECT_EQ(range.windowed, entry.tokens > 1 && begin >= pattern.sink);
    EXPECT_TRUE(next <= pattern.sink || begin >= pattern.sink);
    Compare(range.keys, index, layer, format.StreamingGroup(layer));
  }
  EXPECT_EQ(next, end);
}

void Rig::Write(const StepEntry& entry, int index, int layer) {
  const PageFormat page = store_->format().page;
  const std::vector<uint64_t>& tags = step_tokens_[static_cast<size_t>(index)];
  const std::vector<uint64_t> added(tags.end() - entry.tokens, tags.end());
  const CacheFormat& format = store_->format();
  for (int group = 0; group <= format.StreamingGroup(layer); ++group) {
    if (format.HeadsIn(layer, group) == 0) continue;
    const PageRun target = store_->step().Target(index, layer, group);
    EXPECT_EQ(target.count, entry.tokens);
    compute_->HostWork({}, [target, page, added, layer, heads = HeadsOf(format, layer, group)] {
      ForEachSlot(target, heads, page, added, [&](int head, uint64_t tag, std::byte* to, bool v) {
        for (int i = 0; i < page.head_dim; ++i) {
          const uint16_t value = Element(tag, layer, head, v, i);
          std::memcpy(to + 2 * i, &value, 2);
        }
      });
      return OkStatus();
    });
  }
}

void Rig::WriteX(const StepEntry& entry, int index, int layer) {
  std::byte* const to = store_->step().XTarget(index, layer);
  if (to == nullptr) return;
  const std::vector<uint64_t>& tags = step_tokens_[static_cast<size_t>(index)];
  const std::vector<uint64_t> added(tags.end() - entry.tokens, tags.end());
  compute_->HostWork({}, [to, added, layer, width = store_->format().x_width] {
    std::byte* at = to;
    for (const uint64_t tag : added) {
      for (int64_t i = 0; i < width; ++i, at += 2) {
        const uint16_t value = Element(tag, layer, kHeadOfX, false, i);
        std::memcpy(at, &value, 2);
      }
    }
    return OkStatus();
  });
}

void Rig::CompareX(const SlabView& view, int index, int layer) {
  const std::vector<uint64_t>& all = step_tokens_[static_cast<size_t>(index)];
  const std::vector<uint64_t> tags(all.begin() + view.keys.position,
                                   all.begin() + view.keys.position + view.keys.pages.count);
  compute_->HostWork({}, [mismatches = mismatches_.back(), from = view.x, tags, layer,
                          width = store_->format().x_width] {
    const std::byte* at = from;
    for (const uint64_t tag : tags) {
      for (int64_t i = 0; i < width; ++i, at += 2) {
        uint16_t value;
        std::memcpy(&value, at, 2);
        if (value != Element(tag, layer, kHeadOfX, false, i)) ++*mismatches;
      }
    }
    return OkStatus();
  });
}

void Rig::Compare(const KeyRun& keys, int index, int layer, int group) {
  const CacheFormat& format = store_->format();
  const PageFormat page = format.page;
  const std::vector<uint64_t>& all = step_tokens_[static_cast<size_t>(index)];
  const std::vector<uint64_t> tags(all.begin() + keys.position,
                                   all.begin() + keys.position + keys.pages.count);
  compute_->HostWork({}, [mismatches = mismatches_.back(), run = keys.pages, page, tags, layer,
                          heads = HeadsOf(format, layer, group)] {
    ForEachSlot(run, heads, page, tags, [&](int head, uint64_t tag, const std::byte* from, bool v) {
      for (int i = 0; i < page.head_dim; ++i) {
        uint16_t value;
        std::memcpy(&value, from + 2 * i, 2);
        if (value != Element(tag, layer, head, v, i)) ++*mismatches;
      }
    });
    return OkStatus();
  });
}

}  // namespace headway::kv
