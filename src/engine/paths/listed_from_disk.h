// ListedFromDisk: attention of decode steps to listed blocks, some of which lie in slabs on disk.
// The pages of these come one by one, in rounds of a head group and a part of its lists each, while
// the round before is attended to. Lists, parts and their order are those of a cache in memory: no
// bit depends on where slabs lie.
#ifndef HEADWAY_ENGINE_PATHS_LISTED_FROM_DISK_H_
#define HEADWAY_ENGINE_PATHS_LISTED_FROM_DISK_H_

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/step/step_context.h"
#include "headway/status.h"
#include "kernels/selection.h"
#include "kv/step/step_reads.h"

namespace headway {

class ListedFromDisk {
 public:
  explicit ListedFromDisk(StepContext& context) : context_(context) {}

  void BeginLayer(int layer);
  // The lists of one sequence, which are there, and its states of all heads. `reads` are the slabs
  // of item.keys.segments, and are held in place; both outlive the layer.
  void Add(const AttendBlocksItem& item, std::span<const kv::SlabRead> reads);
  // Attends with the heads of a group; groups follow one another.
  Status Attend(int group);

 private:
  struct Item {
    AttendBlocksItem attend;
    std::span<const kv::SlabRead> reads;
    std::vector<bool> on_disk;  // [reads]
  };
  // Some parts of the lists of a head group: one, or all those behind the lists' ends.
  struct Round {
    size_t item = 0;
    int group = 0;
    int64_t part = 0;
    int64_t parts = 1;
  };
  // A block of a round's lists that lies in a page from disk.
  struct Moved {
    size_t at = 0;      // in `blocks`
    size_t page = 0;    // in `pages`
    int64_t block = 0;  // of the page
  };
  // What a round's kernel reads, and is made of.
  struct Lists {
    std::vector<SegmentPlace> segments;
    std::vector<int32_t> blocks;  // [heads, blocks of a part]
    std::vector<int32_t> counts;  // [heads]
    std::vector<kv::PageRead> pages;
    std::vector<Moved> moved;
    std::vector<int> places;  // [pages]
  };
  int64_t PartBlocks(const AttendBlocksItem& item) const {
    return item.split / context_.limits.selection.summary.block_slots;
  }
  Lists& ListsOf(size_t round) { return lists_[round % lists_.size()]; }
  void Begin(size_t round);
  void List(const Item& item, const Round& round, int head, Lists* lists) const;
  AttendBlocksItem ItemOf(const Round& round, const Lists& lists) const;

  StepContext& context_;
  int layer_ = 0;
  std::vector<Item> items_;
  std::vector<Round> rounds_;
  size_t begun_ = 0, done_ = 0;  // of rounds_
  std::array<Lists, 2> lists_;
};

}  // namespace headway

#endif  // HEADWAY_ENGINE_PATHS_LISTED_FROM_DISK_H_
