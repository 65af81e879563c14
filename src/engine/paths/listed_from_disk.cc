#include "engine/paths/listed_from_disk.h"

#include <algorithm>

#include "base/bytes.h"

namespace headway {
namespace {

// Lists of `capacity` blocks for each head, and their counts.
int64_t BytesOf(int64_t heads, int64_t capacity) {
  constexpr int64_t kLine = 64;
  return RoundUp(heads * (capacity + 1) * int64_t{sizeof(int32_t)}, kLine);
}

int64_t CapacityOf(const ModelShape& shape, const ExecutorLimits& limits) {
  return BoundsOf(limits.selection, limits.length, shape.kv_heads).capacity;
}

}  // namespace

int64_t ListedFromDisk::ListBytes(const ModelShape& shape, const ExecutorLimits& limits,
                                  int group_heads, int64_t part_blocks) {
  const int64_t copies =
      limits.host_reads_device ? 0 : BytesOf(shape.kv_heads, CapacityOf(shape, limits));
  return 2 * BytesOf(group_heads, part_blocks) + limits.entries * copies;
}

ListedFromDisk::HostLists ListedFromDisk::ListsIn(std::byte* memory, int64_t heads,
                                                  int64_t capacity) {
  auto* const blocks = reinterpret_cast<int32_t*>(memory);
  return {blocks, blocks + heads * capacity};
}

ListedFromDisk::ListedFromDisk(StepContext& context) : context_(context) {
  kv::StepReads& reads = context.store.reads();
  if (!reads.ReadsPages()) return;
  std::byte* memory = reads.PageLists();
  const StateCut cut = SelectedStates(context.shape, context.limits, context.kernels);
  const int64_t part_blocks = cut.split / context.limits.selection.summary.block_slots;
  const int group_heads = context.store.format().group_heads;
  for (Lists& lists : lists_) {
    lists.of_group = ListsIn(memory, group_heads, part_blocks);
    memory += BytesOf(group_heads, part_blocks);
  }
  if (!context.limits.host_reads_device) copies_ = memory;
}

void ListedFromDisk::BeginLayer(int layer) {
  layer_ = layer;
  items_.clear();
  rounds_.clear();
  begun_ = done_ = 0;
}

void ListedFromDisk::Add(const AttendBlocksItem& attend, std::span<const kv::SlabRead> reads) {
  Item& item = items_.emplace_back(Item{attend, {}, reads, {}});
  if (copies_ != nullptr) {
    const int64_t capacity = CapacityOf(context_.shape, context_.limits);
    const int64_t before = (std::ssize(items_) - 1) * BytesOf(context_.shape.kv_heads, capacity);
    item.copies = ListsIn(copies_ + before, context_.shape.kv_heads, capacity);
  }
  for (const kv::SlabRead& read : reads) {
    item.on_disk.push_back(context_.store.reads().PlaceOf(read).tier == Tier::kDisk);
  }
}

// Brings an item's lists down, behind what makes them.
void ListedFromDisk::Copy(const Item& item) {
  const auto down = [&](int32_t* to, const int32_t* from, int64_t count) {
    context_.compute.Copy(reinterpret_cast<std::byte*>(to),
                          reinterpret_cast<const std::byte*>(from),
                          static_cast<size_t>(count) * sizeof(int32_t));
  };
  const int heads = item.attend.keys.heads;
  down(item.copies.blocks, item.attend.blocks, heads * item.attend.capacity);
  down(item.copies.counts, item.attend.counts, heads);
}

// The blocks of a part of a head's list, and the pages that have those on disk.
void ListedFromDisk::List(const Item& item, const Round& round, int head, Lists* lists) const {
  const kv::CacheFormat& format = context_.store.format();
  const AttendBlocksItem& attend = item.attend;
  const int64_t part_blocks = PartBlocks(attend);
  const int64_t begin = round.part * part_blocks;
  const int64_t count =
      std::clamp<int64_t>(item.counts()[head] - begin, 0, round.parts * part_blocks);
  const int64_t row = head - format.HeadsBefore(layer_, round.group);
  const int32_t* const from = item.BlocksOf(head) + begin;
  int32_t* const to = lists->of_group.blocks + row * part_blocks;
  lists->of_group.counts[row] = static_cast<int32_t>(count);
  const auto first = static_cast<size_t>(round.group * attend.keys.group_segments());
  for (int64_t i = 0; i < count; ++i) {
    to[i] = from[i];
    const auto segment = static_cast<size_t>(from[i] / attend.keys.segment_blocks);
    if (!item.on_disk[first + segment]) continue;
    const int64_t in_segment = from[i] % attend.keys.segment_blocks;
    const kv::PageRead page = {item.reads[first + segment],
                               static_cast<int>(in_segment / format.page_blocks())};
    const int64_t at = row * part_blocks + i;
    const bool again = i > 0 && !lists->moved.empty() && lists->moved.back().at + 1 == at &&
                       lists->pages.back().page == page.page &&
                       lists->pages.back().slab.segment == page.slab.segment;
    if (!again) lists->pages.push_back(page);
    lists->moved.push_back({at, lists->pages.size() - 1, in_segment % format.page_blocks()});
  }
}

void ListedFromDisk::Begin(size_t number) {
  const Round& round = rounds_[number];
  const Item& item = items_[round.item];
  const kv::CacheFormat& format = context_.store.format();
  // The kernels of the round that had these buffers, and of its pages, have read them.
  context_.store.reads().AwaitCompute();
  Lists& lists = ListsOf(number);
  lists.pages.clear();
  lists.moved.clear();
  const int first = format.HeadsBefore(layer_, round.group);
  for (int head = 0; head < format.HeadsIn(layer_, round.group); ++head) {
    List(item, round, first + head, &lists);
  }
  context_.store.reads().BeginPages(lists.pages, &lists.places);
  // Frames are segments behind those of the group.
  const int64_t segments = item.attend.keys.group_segments();
  const auto of_group = item.attend.keys.segments.subspan(
      static_cast<size_t>(round.group * segments), static_cast<size_t>(segments));
  lists.segments.assign(of_group.begin(), of_group.end());
  for (const std::byte* frame : context_.store.reads().PageFrames()) {
    lists.segments.push_back({.slab = frame});
  }
  for (const Moved& moved : lists.moved) {
    const int64_t place = lists.places[moved.page];
    const int64_t page = segments * format.segment_pages + place;
    lists.of_group.blocks[moved.at] =
        static_cast<int32_t>(page * format.page_blocks() + moved.block);
  }
}

AttendBlocksItem ListedFromDisk::ItemOf(const Round& round, const Lists& lists) const {
  const ModelShape& shape = context_.shape;
  const int64_t head =
      int64_t{context_.store.format().HeadsBefore(layer_, round.group)} * shape.group();
  AttendBlocksItem item = items_[round.item].attend;
  item.q = static_cast<const std::byte*>(item.q) + context_.ActivationBytes(head * shape.head_dim);
  item.keys.segments = lists.segments;
  item.keys.heads = context_.store.format().HeadsIn(layer_, round.group);
  item.keys.blocks = std::ssize(lists.segments) * item.keys.segment_blocks;
  item.blocks = lists.of_group.blocks;
  item.capacity = PartBlocks(item);
  item.counts = lists.of_group.counts;
  item.parts = static_cast<int>(round.parts);
  item.o += round.part * item.o_part_stride + head * shape.head_dim;
  item.lse += round.part * item.lse_part_stride + head;
  item.rest = {};
  return item;
}

void ListedFromDisk::AddRounds(int group) {
  const kv::CacheFormat& format = context_.store.format();
  for (size_t i = 0; i < items_.size(); ++i) {
    const AttendBlocksItem& item = items_[i].attend;
    const int32_t* const counts = items_[i].counts() + format.HeadsBefore(layer_, group);
    const int64_t longest = *std::max_element(counts, counts + format.HeadsIn(layer_, group));
    const int64_t parts = CeilDiv(longest, PartBlocks(item));
    for (int64_t part = 0; part < parts; ++part) rounds_.push_back({i, group, part});
    if (parts < item.parts) rounds_.push_back({i, group, parts, item.parts - parts});
  }
}

Status ListedFromDisk::Attend(int group) {
  if (items_.empty()) return OkStatus();
  kv::StepReads& reads = context_.store.reads();
  const int groups = context_.store.format().head_groups(layer_);
  if (group == 0) {
    for (const Item& item : items_) {
      if (copies_ != nullptr) Copy(item);
    }
    reads.AwaitCompute();                                                 // the lists are there
    if (Status status = reads.LaneStatus(); !status.ok()) return status;  // or a lane has failed
    for (int of = 0; of < groups; ++of) AddRounds(of);
  }
  const auto attend = [&](std::span<const AttendBlocksItem> items) {
    context_.kernels.AttendBlocks(context_.compute, context_.format,
                                  context_.limits.selection.summary, context_.shape.group(),
                                  AttentionScale(context_.shape), items);
  };
  for (; done_ < rounds_.size() && rounds_[done_].group == group; ++done_) {
    for (; begun_ < std::min(done_ + 2, rounds_.size()); ++begun_) Begin(begun_);
    if (Status s = reads.AwaitPages(); !s.ok()) return s;
    const AttendBlocksItem item = ItemOf(rounds_[done_], ListsOf(done_));
    attend({&item, 1});
    reads.FinishPages();
  }
  if (group + 1 != groups) return OkStatus();
  rests_.clear();
  for (const Item& item : items_) {
    if (item.attend.rest.result == nullptr) continue;
    rests_.push_back(item.attend);
    rests_.back().attended = true;
  }
  if (!rests_.empty()) attend(rests_);
  return OkStatus();
}

}  // namespace headway
