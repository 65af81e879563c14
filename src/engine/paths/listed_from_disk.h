// ListedFromDisk: attention of decode steps to listed blocks, some of which lie in slabs on disk.
// The pages of these come in rounds of some head groups, or of some parts of a group's lists, as
// many as half of the places for pages surely hold, while the round before is attended to. Kernels
// read them in memory of the host, and so do they a round's lists, which the host makes of those
// that were chosen; where it does not read the device's memory these are copied down first. Lists,
// parts and their order are those of a cache in memory: no bit depends on where slabs lie.
#ifndef HEADWAY_ENGINE_PATHS_LISTED_FROM_DISK_H_
#define HEADWAY_ENGINE_PATHS_LISTED_FROM_DISK_H_

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/step/selected_states.h"
#include "engine/step/step_context.h"
#include "headway/status.h"
#include "kernels/selection.h"
#include "kv/step/step_reads.h"

namespace headway {

class ListedFromDisk {
 public:
  explicit ListedFromDisk(StepContext& context);

  // Bytes of lists in host memory (StoreOptions::list_bytes).
  static int64_t ListBytes(const ModelShape& shape, const ExecutorLimits& limits,
                           const StateCut& cut);

  void BeginLayer(int layer);
  // The lists of one sequence, which are enqueued before Attend, and its states of all heads.
  // `reads` are the slabs of item.keys.segments, and are held in place; both outlive the layer.
  void Add(const AttendBlocksItem& item, std::span<const kv::SlabRead> reads);
  Status Attend();
  bool empty() const { return items_.empty(); }

 private:
  // Lists of some heads in host memory: counts lie behind blocks.
  struct HostLists {
    int32_t* blocks = nullptr;  // [heads, capacity]
    int32_t* counts = nullptr;  // [heads]
  };
  struct Item {
    AttendBlocksItem attend;
    HostLists copies;  // of its lists, where the host does not read these
    std::span<const kv::SlabRead> reads;
    std::vector<bool> on_disk;  // [reads]
    int64_t rounds = 0;

    const int32_t* BlocksOf(int head) const {
      const int32_t* blocks = copies.blocks == nullptr ? attend.blocks : copies.blocks;
      return blocks + head * attend.capacity;
    }
    const int32_t* counts() const {
      return copies.counts == nullptr ? attend.counts : copies.counts;
    }
  };
  // All parts of the lists of some head groups, or some of one group's; the last of these are
  // behind the lists' ends.
  struct Round {
    size_t item = 0;
    int group = 0;
    int groups = 1;
    int64_t part = 0;
    int64_t parts = 1;
  };
  // A block of a round's lists that lies in a page from disk.
  struct Moved {
    int64_t at = 0;     // in `blocks`
    size_t page = 0;    // in `pages`
    int64_t block = 0;  // of the page
    int group = 0;      // of the round's
  };
  // What a round's kernel reads, and is made of.
  struct Lists {
    HostLists of_heads;                           // blocks of some parts of each head
    std::vector<std::vector<SegmentPlace>> rows;  // of each group, those that are listed
    std::vector<SegmentPlace> segments;           // the same, rows of equal length
    std::vector<kv::PageRead> pages;
    std::vector<Moved> moved;
    std::vector<int> places;  // [pages]
  };
  int64_t PartBlocks(const AttendBlocksItem& item) const {
    return item.split / context_.limits.selection.summary.block_slots;
  }
  Lists& ListsOf(size_t round) { return lists_[round % lists_.size()]; }
  static HostLists ListsIn(std::byte* memory, int64_t heads, int64_t capacity);
  void Copy(const Item& item);
  void AddRounds(size_t number);
  void Begin(size_t round);
  void List(const Item& item, const Round& round, int of_round, Lists* lists);
  void ListFrames(const BlockedKeys& keys, Lists* lists);
  // Where a segment or a frame is in a group's row: at its end, if it has not been.
  int InRow(size_t one, const SegmentPlace& place, std::vector<SegmentPlace>* row);
  AttendBlocksItem ItemOf(const Round& round, const Lists& lists) const;

  StepContext& context_;
  std::byte* copies_ = nullptr;  // of the lists of each entry
  int layer_ = 0;
  std::vector<Item> items_;
  std::vector<Round> rounds_;
  size_t begun_ = 0, done_ = 0;  // of rounds_
  std::array<Lists, 2> lists_;
  std::vector<int> in_row_;  // of a group's segments, or frames: the place in its row, or -1
  std::vector<AttendBlocksItem> rests_;  // of items, behind their last round
};

}  // namespace headway

#endif  // HEADWAY_ENGINE_PATHS_LISTED_FROM_DISK_H_
