#include "engine/paths/listed_from_disk.h"

#include <algorithm>

namespace headway {

void ListedFromDisk::BeginLayer(int layer) {
  layer_ = layer;
  items_.clear();
  rounds_.clear();
  begun_ = done_ = 0;
}

void ListedFromDisk::Add(const AttendBlocksItem& attend, std::span<const kv::SlabRead> reads) {
  Item& item = items_.emplace_back(Item{attend, reads, {}});
  for (const kv::SlabRead& read : reads) {
    item.on_disk.push_back(context_.store.reads().PlaceOf(read).tier == Tier::kDisk);
  }
}

// The blocks of a part of a head's list, and the pages that have those on disk.
void ListedFromDisk::List(const Item& item, const Round& round, int head, Lists* lists) const {
  const kv::CacheFormat& format = context_.store.format();
  const AttendBlocksItem& attend = item.attend;
  const int64_t part_blocks = PartBlocks(attend);
  const int64_t begin = round.part * part_blocks;
  const int64_t count =
      std::clamp<int64_t>(attend.counts[head] - begin, 0, round.parts * part_blocks);
  lists->counts.push_back(static_cast<int32_t>(count));
  const auto first = static_cast<size_t>(round.group * attend.keys.group_segments());
  for (int64_t i = 0; i < count; ++i) {
    const int32_t block = attend.blocks[head * attend.capacity + begin + i];
    const int64_t segment = block / attend.keys.segment_blocks;
    if (item.on_disk[first + static_cast<size_t>(segment)]) {
      const int64_t in_segment = block % attend.keys.segment_blocks;
      const kv::PageRead page = {item.reads[first + static_cast<size_t>(segment)],
                                 static_cast<int>(in_segment / format.page_blocks())};
      const bool again = i > 0 && !lists->moved.empty() &&
                         lists->moved.back().at + 1 == lists->blocks.size() &&
                         lists->pages.back().page == page.page &&
                         lists->pages.back().slab.segment == page.slab.segment;
      if (!again) lists->pages.push_back(page);
      lists->moved.push_back(
          {lists->blocks.size(), lists->pages.size() - 1, in_segment % format.page_blocks()});
    }
    lists->blocks.push_back(block);
  }
  lists->blocks.resize(lists->counts.size() * static_cast<size_t>(part_blocks));
}

void ListedFromDisk::Begin(size_t number) {
  const Round& round = rounds_[number];
  const Item& item = items_[round.item];
  const kv::CacheFormat& format = context_.store.format();
  // The kernels of the round that had these buffers, and of its pages, have read them.
  context_.store.reads().AwaitCompute();
  Lists& lists = ListsOf(number);
  lists = Lists();
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
    lists.blocks[moved.at] = static_cast<int32_t>(page * format.page_blocks() + moved.block);
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
  item.blocks = lists.blocks.data();
  item.capacity = PartBlocks(item);
  item.counts = lists.counts.data();
  item.parts = static_cast<int>(round.parts);
  item.o += round.part * item.o_part_stride + head * shape.head_dim;
  item.lse += round.part * item.lse_part_stride + head;
  return item;
}

Status ListedFromDisk::Attend(int group) {
  const kv::CacheFormat& format = context_.store.format();
  if (group == 0 && !items_.empty()) {
    context_.store.reads().AwaitCompute();  // the lists are there
    for (int of = 0; of < format.head_groups(layer_); ++of) {
      for (size_t i = 0; i < items_.size(); ++i) {
        const AttendBlocksItem& item = items_[i].attend;
        const int32_t* const counts = item.counts + format.HeadsBefore(layer_, of);
        const int64_t longest = *std::max_element(counts, counts + format.HeadsIn(layer_, of));
        const int64_t parts = CeilDiv(longest, PartBlocks(item));
        for (int64_t part = 0; part < parts; ++part) rounds_.push_back({i, of, part});
        if (parts < item.parts) rounds_.push_back({i, of, parts, item.parts - parts});
      }
    }
  }
  kv::StepReads& reads = context_.store.reads();
  const kv::SelectionPolicy& policy = context_.limits.selection;
  for (; done_ < rounds_.size() && rounds_[done_].group == group; ++done_) {
    for (; begun_ < std::min(done_ + 2, rounds_.size()); ++begun_) Begin(begun_);
    if (Status s = reads.AwaitPages(); !s.ok()) return s;
    const AttendBlocksItem item = ItemOf(rounds_[done_], ListsOf(done_));
    context_.kernels.AttendBlocks(context_.compute, context_.format, policy.summary,
                                  context_.shape.group(), AttentionScale(context_.shape),
                                  {&item, 1});
    reads.FinishPages();
  }
  return OkStatus();
}

}  // namespace headway
