#include "engine/paths/listed_from_disk.h"

#include <algorithm>
#include <numeric>

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

// Of all parts of a list.
int64_t BlocksOf(const StateCut& cut, const ExecutorLimits& limits) {
  return cut.parts * (cut.split / limits.selection.summary.block_slots);
}

}  // namespace

int64_t ListedFromDisk::ListBytes(const ModelShape& shape, const ExecutorLimits& limits,
                                  const StateCut& cut) {
  const int64_t copies =
      limits.host_reads_device ? 0 : BytesOf(shape.kv_heads, CapacityOf(shape, limits));
  return 2 * BytesOf(shape.kv_heads, BlocksOf(cut, limits)) + limits.entries * copies;
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
  const int64_t blocks =
      BlocksOf(SelectedStates(context.shape, context.limits, context.kernels), context.limits);
  for (Lists& lists : lists_) {
    lists.of_heads = ListsIn(memory, context.shape.kv_heads, blocks);
    memory += BytesOf(context.shape.kv_heads, blocks);
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
  Item& item = items_.emplace_back(Item{attend, {}, reads, {}, 0});
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

int ListedFromDisk::InRow(size_t one, const SegmentPlace& place, std::vector<SegmentPlace>* row) {
  int& at = in_row_[one];
  if (at < 0) {
    at = static_cast<int>(row->size());
    row->push_back(place);
  }
  return at;
}

// The blocks of a round that a group's heads list, and the pages that have those on disk.
void ListedFromDisk::List(const Item& item, const Round& round, int of_round, Lists* lists) {
  const kv::CacheFormat& format = context_.store.format();
  const BlockedKeys& keys = item.attend.keys;
  const int group = round.group + of_round;
  const int64_t first_block = round.part * PartBlocks(item.attend);
  const int64_t capacity = round.parts * PartBlocks(item.attend);
  const auto first = static_cast<size_t>(group * keys.group_segments());
  in_row_.assign(static_cast<size_t>(keys.group_segments()), -1);
  std::vector<SegmentPlace>& row = lists->rows[static_cast<size_t>(of_round)];
  row.clear();
  for (int i = 0; i < format.HeadsIn(layer_, group); ++i) {
    const int head = format.HeadsBefore(layer_, group) + i;
    const int64_t list = head - format.HeadsBefore(layer_, round.group);
    const int64_t count = std::clamp<int64_t>(item.counts()[head] - first_block, 0, capacity);
    const int32_t* const from = item.BlocksOf(head) + first_block;
    lists->of_heads.counts[list] = static_cast<int32_t>(count);
    bool follows = false;  // the last block is in a page from disk
    for (int64_t at = list * capacity, end = at + count; at < end; ++at) {
      const int64_t block = from[at - list * capacity];
      const auto segment = static_cast<size_t>(block / keys.segment_blocks);
      const int64_t in_segment = block % keys.segment_blocks;
      const bool on_disk = item.on_disk[first + segment];
      if (on_disk) {
        const kv::PageRead page = {item.reads[first + segment],
                                   static_cast<int>(in_segment / format.page_blocks())};
        const bool again = follows && lists->pages.back().page == page.page &&
                           lists->pages.back().slab.segment == page.slab.segment;
        if (!again) lists->pages.push_back(page);
        lists->moved.push_back(
            {at, lists->pages.size() - 1, in_segment % format.page_blocks(), of_round});
      } else {
        const int64_t in_row = InRow(segment, keys.segments[first + segment], &row);
        lists->of_heads.blocks[at] =
            static_cast<int32_t>(in_row * keys.segment_blocks + in_segment);
      }
      follows = on_disk;
    }
  }
}

// Blocks of pages from disk are those of their frames, which are in rows, too.
void ListedFromDisk::ListFrames(const BlockedKeys& keys, Lists* lists) {
  const kv::CacheFormat& format = context_.store.format();
  const std::span<std::byte* const> frames = context_.store.reads().PageFrames();
  int group = -1;
  for (const Moved& moved : lists->moved) {
    if (moved.group != group) in_row_.assign(frames.size(), -1);
    group = moved.group;
    const int place = lists->places[moved.page];
    const auto frame = static_cast<size_t>(place / format.segment_pages);
    const int64_t in_row =
        InRow(frame, {.slab = frames[frame]}, &lists->rows[static_cast<size_t>(group)]);
    lists->of_heads.blocks[moved.at] =
        static_cast<int32_t>(in_row * keys.segment_blocks +
                             place % format.segment_pages * format.page_blocks() + moved.block);
  }
}

void ListedFromDisk::Begin(size_t number) {
  const Round& round = rounds_[number];
  const Item& item = items_[round.item];
  const BlockedKeys& keys = item.attend.keys;
  // The kernels of the round that had these buffers, and of its pages, have read them.
  if (number >= lists_.size()) context_.store.reads().AwaitCompute();
  Lists& lists = ListsOf(number);
  lists.pages.clear();
  lists.moved.clear();
  lists.rows.resize(static_cast<size_t>(round.groups));
  for (int group = 0; group < round.groups; ++group) List(item, round, group, &lists);
  context_.store.reads().BeginPages(lists.pages, &lists.places);
  ListFrames(keys, &lists);
  size_t longest = 1;
  for (const std::vector<SegmentPlace>& row : lists.rows) longest = std::max(longest, row.size());
  lists.segments.clear();
  for (std::vector<SegmentPlace>& row : lists.rows) {
    row.resize(longest, keys.segments.front());  // which no block is in
    lists.segments.insert(lists.segments.end(), row.begin(), row.end());
  }
}

AttendBlocksItem ListedFromDisk::ItemOf(const Round& round, const Lists& lists) const {
  const ModelShape& shape = context_.shape;
  const kv::CacheFormat& format = context_.store.format();
  const int first = format.HeadsBefore(layer_, round.group);
  const int64_t head = int64_t{first} * shape.group();
  AttendBlocksItem item = items_[round.item].attend;
  item.q = static_cast<const std::byte*>(item.q) + context_.ActivationBytes(head * shape.head_dim);
  item.keys.segments = lists.segments;
  const int last = round.group + round.groups - 1;
  item.keys.heads = format.HeadsBefore(layer_, last) + format.HeadsIn(layer_, last) - first;
  item.keys.blocks = std::ssize(lists.rows.front()) * item.keys.segment_blocks;
  item.blocks = lists.of_heads.blocks;
  item.capacity = round.parts * PartBlocks(item);
  item.counts = lists.of_heads.counts;
  item.parts = static_cast<int>(round.parts);
  item.o += round.part * item.o_part_stride + head * shape.head_dim;
  item.lse += round.part * item.lse_part_stride + head;
  if (items_[round.item].rounds > 1) item.rest = {};
  return item;
}

void ListedFromDisk::AddRounds(size_t number) {
  const kv::CacheFormat& format = context_.store.format();
  Item& item = items_[number];
  const int64_t parts = item.attend.parts;
  const int64_t places = std::ssize(context_.store.reads().PageFrames()) * format.segment_pages / 2;
  const size_t before = rounds_.size();
  int64_t room = 0;  // that is left for the round at hand to have another group
  for (int group = 0; group < format.head_groups(layer_); ++group) {
    const int heads = format.HeadsIn(layer_, group);
    const int32_t* const counts = item.counts() + format.HeadsBefore(layer_, group);
    const int64_t blocks = std::accumulate(counts, counts + heads, int64_t{0});
    if (rounds_.size() > before && blocks <= room) {
      ++rounds_.back().groups;
      room -= blocks;
    } else if (blocks <= places) {
      rounds_.push_back({number, group, 1, 0, parts});
      room = places - blocks;
    } else {
      const int64_t at_once = std::max<int64_t>(1, places / (heads * PartBlocks(item.attend)));
      const int64_t longest = *std::max_element(counts, counts + heads);
      for (int64_t part = 0; part < CeilDiv(longest, PartBlocks(item.attend)); part += at_once) {
        rounds_.push_back({number, group, 1, part, at_once});
      }
      // The last one has those behind the lists' ends, too.
      rounds_.back().parts = parts - rounds_.back().part;
      room = 0;
    }
  }
  item.rounds = static_cast<int64_t>(rounds_.size() - before);
}

Status ListedFromDisk::Attend() {
  kv::StepReads& reads = context_.store.reads();
  for (const Item& item : items_) {
    if (copies_ != nullptr) Copy(item);
  }
  reads.AwaitCompute();                                                 // the lists are there
  if (Status status = reads.LaneStatus(); !status.ok()) return status;  // or a lane has failed
  for (size_t item = 0; item < items_.size(); ++item) AddRounds(item);
  const auto attend = [&](std::span<const AttendBlocksItem> items) {
    context_.kernels.AttendBlocks(context_.compute, context_.format,
                                  context_.limits.selection.summary, context_.shape.group(),
                                  AttentionScale(context_.shape), items);
  };
  for (; done_ < rounds_.size(); ++done_) {
    for (; begun_ < std::min(done_ + 2, rounds_.size()); ++begun_) Begin(begun_);
    if (Status s = reads.AwaitPages(); !s.ok()) return s;
    const AttendBlocksItem item = ItemOf(rounds_[done_], ListsOf(done_));
    attend({&item, 1});
    reads.FinishPages();
  }
  rests_.clear();
  for (const Item& item : items_) {
    if (item.rounds == 1 || item.attend.rest.result == nullptr) continue;
    rests_.push_back(item.attend);
    rests_.back().attended = true;
  }
  if (!rests_.empty()) attend(rests_);
  return OkStatus();
}

}  // namespace headway
