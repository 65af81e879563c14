// Attention to listed blocks: in decode in parts of a list, as attention of few queries; of many
// rows in strips, one block of rows and KV head at a time.
#include <algorithm>
#include <array>
#include <limits>
#include <vector>

#include "base/bytes.h"
#include "base/check.h"
#include "kernels/cpu/attention_ops.h"
#include "kernels/cpu/selection.h"
#include "kernels/cpu/selection_ops.h"

namespace headway::cpu {
namespace {

// Some of the blocks that a head lists for a block of rows, for some of its queries.
struct ListTask {
  const AttendBlocksItem* item = nullptr;
  int64_t row_block = 0;
  int64_t head = 0;
  int64_t part = 0;       // in decode
  int64_t first_row = 0;  // row = token * group + head of the group
  int64_t rows = 0;

  int64_t list() const { return row_block * item->keys.heads + head; }
};

// The blocks [begin, end) of a task's list; those that are neighbours in a page make one run.
class ListedRuns : public PageRuns {
 public:
  ListedRuns(const SelectionCall& call, const SelectionOps& ops, const ListTask& task,
             int64_t begin, int64_t end)
      : format_(call.format),
        ops_(ops),
        keys_(task.item->keys),
        move_(task.item->move),
        block_slots_(call.summary.block_slots),
        page_blocks_(format_.page_slots / block_slots_),
        head_(task.head),
        list_(task.item->blocks + task.list() * task.item->capacity),
        count_(task.item->counts[task.list()]),
        at_(begin),
        end_(end) {}

  bool Next(RunOfPage* run) override {
    if (at_ == end_) return false;
    const int64_t first = at_;
    const int64_t block = list_[at_];
    // Neighbours that are moved by different shifts are runs of their own.
    const int64_t shift = ShiftAt(first);
    while (++at_ != end_ && list_[at_] == block + at_ - first && list_[at_] % page_blocks_ != 0 &&
           ShiftAt(at_) == shift) {
    }
    const SegmentPlace& segment = SegmentOf(keys_, head_, block);
    const int64_t in_segment = block % keys_.segment_blocks;
    const int64_t page = in_segment / page_blocks_;
    const int64_t in_group = head_ % keys_.group_heads;
    // Kernels only read what a run of keys points to.
    auto* slab = const_cast<std::byte*>(segment.slab);
    std::byte* k = slab + in_group * keys_.head_stride + page * keys_.page_stride;
    run->pages = {.k = k,
                  .v = k + keys_.v_offset,
                  .first_slot = block % page_blocks_ * block_slots_,
                  .count = (at_ - first) * block_slots_};
    if (format_.encoding != Encoding::kNone) {
      run->pages.params = slab + keys_.params_offset + in_group * keys_.params_head_stride +
                          page * keys_.params_page_stride;
    }
    run->turn = {};
    if (move_.inv_freq != nullptr) run->turn = TurnOf(shift);
    return true;
  }

 private:
  // The positions by which the block at `at` of the list is rotated on.
  int64_t ShiftAt(int64_t at) const {
    if (move_.inv_freq == nullptr) return 0;
    const int64_t from = SegmentOf(keys_, head_, list_[at]).position +
                         list_[at] % keys_.segment_blocks * block_slots_;
    return move_.To(count_ - at, block_slots_) - from;
  }

  RopeTable TurnOf(int64_t shift) {
    if (shift == 0 && !turned_) return {};
    turned_ = true;  // queries that were turned are turned anew
    float* cos = angles_[which_].data();
    float* sin = cos + move_.rotary_dim / 2;
    which_ = 1 - which_;
    ops_.angles(move_, shift, cos, sin);
    return {cos, sin, move_.rotary_dim};
  }

  static constexpr size_t kHeadDimMax = 256;  // of SelectionFits

  const PageFormat& format_;
  const SelectionOps& ops_;
  const BlockedKeys& keys_;
  const BlockMove& move_;
  const int64_t block_slots_;
  const int64_t page_blocks_;
  const int64_t head_;
  const int32_t* list_;
  const int64_t count_;
  int64_t at_;
  const int64_t end_;
  std::array<std::array<float, kHeadDimMax>, 2> angles_;
  size_t which_ = 0;
  bool turned_ = false;
};

void AddParts(const AttendBlocksItem& item, int block_slots, int group,
              std::vector<ListTask>& tasks) {
  HEADWAY_CHECK(item.split > 0 && item.split % block_slots == 0 && !item.merge);
  HEADWAY_CHECK(item.parts >= CeilDiv(item.capacity * block_slots, item.split));
  for (int64_t head = 0; head < item.keys.heads; ++head) {
    for (int64_t part = 0; part < item.parts; ++part) {
      if (part * item.split >= item.counts[head] * int64_t{block_slots}) {
        std::fill_n(item.lse + part * item.lse_part_stride + head * group, group,
                    -std::numeric_limits<float>::infinity());
        continue;
      }
      for (int64_t row = 0; row < group; row += kFewRowsMax) {
        tasks.push_back({&item, 0, head, part, row, std::min(kFewRowsMax, group - row)});
      }
    }
  }
}

// As attention of many queries has them: tiles where pages hold bf16.
const AttentionStripOps& StripOpsFor(const SelectionCall& call, Isa isa) {
  const AttentionCode code = AttentionCodeFor(isa);
  return code.tiles != nullptr && HoldsBF16(call.format) ? *code.tiles : *code.strips;
}

// Rows are cut by the item alone, so that bits do not depend on threads.
void AddRows(const AttendBlocksItem& item, int64_t task_rows, int group,
             std::vector<ListTask>& tasks) {
  for (int64_t block = 0; block < CeilDiv(item.rows, kSelectRows); ++block) {
    const int64_t rows = std::min(kSelectRows, item.rows - block * kSelectRows) * group;
    for (int64_t head = 0; head < item.keys.heads; ++head) {
      for (int64_t row = 0; row < rows; row += task_rows) {
        tasks.push_back({&item, block, head, 0, row, std::min(task_rows, rows - row)});
      }
    }
  }
}

void AttendPart(const SelectionCall& call, Isa isa, const ListTask& task, std::byte* scratch) {
  const AttendBlocksItem& from = *task.item;
  const AttentionParams params = {.scale = call.scale};
  const int64_t row = task.head * call.group + task.first_row;
  const AttentionItem item = {
      .q = static_cast<const float*>(from.q) + row * call.format.head_dim,
      .tokens = 1,
      .keys = {},
      .transform = {},
      .o = from.o + task.part * from.o_part_stride + row * call.format.head_dim,
      .lse = from.lse + task.part * from.lse_part_stride + row};
  const int64_t part_blocks = from.split / call.summary.block_slots;
  ListedRuns runs(call, SelectionOpsFor(isa), task, task.part * part_blocks,
                  std::min<int64_t>((task.part + 1) * part_blocks, from.counts[task.list()]));
  AttentionFewOpsFor(isa).attend_runs({.format = &call.format,
                                       .params = &params,
                                       .item = &item,
                                       .group = static_cast<int>(task.rows),
                                       .rows = task.rows},
                                      runs, scratch);
}

void AttendRows(const SelectionCall& call, Isa isa, const ListTask& task, std::byte* scratch) {
  const AttendBlocksItem& from = *task.item;
  const AttentionParams params = {.scale = call.scale};
  const int64_t token = task.row_block * kSelectRows;
  const int64_t head = task.head * call.group;
  const AttentionItem item = {
      .q = static_cast<const float*>(from.q) + token * from.q_stride + head * call.format.head_dim,
      .q_stride = from.q_stride,
      .tokens = std::min(kSelectRows, from.rows - token),
      .keys = {},
      .transform = {},
      .o = from.o + token * from.o_stride + head * call.format.head_dim,
      .o_stride = from.o_stride,
      .lse = from.lse + token * from.lse_stride + head,
      .lse_stride = from.lse_stride,
      .merge = from.merge};
  ListedRuns runs(call, SelectionOpsFor(isa), task, 0, from.counts[task.list()]);
  StripOpsFor(call, isa).attend_runs({.format = &call.format,
                                      .params = &params,
                                      .item = &item,
                                      .group = call.group,
                                      .first_row = task.first_row,
                                      .rows = task.rows},
                                     runs, scratch);
}

}  // namespace

void AttendBlocks(ThreadPool& pool, Isa isa, const SelectionCall& call,
                  std::span<const AttendBlocksItem> items, const AttentionScratch& scratch) {
  const auto& [format, summary, group, scale] = call;
  HEADWAY_CHECK(SelectionFits(format, summary, group));
  HEADWAY_CHECK(pool.threads() <= scratch.threads && format.head_dim <= scratch.limits.head_dim);
  const AttentionStripOps& strips = StripOpsFor(call, isa);
  const int64_t task_rows = strips.max_strips(format.head_dim) * strips.strip_rows;
  std::vector<ListTask> tasks;
  for (const AttendBlocksItem& item : items) {
    if (item.attended) continue;
    if (item.rows == 1) {
      AddParts(item, summary.block_slots, group, tasks);
    } else {
      AddRows(item, task_rows, group, tasks);
    }
  }
  pool.Run(std::ssize(tasks), 1, [&](int thread, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const ListTask& task = tasks[static_cast<size_t>(i)];
      std::byte* own = ScratchOfThread(scratch, thread);
      (task.item->rows == 1 ? AttendPart : AttendRows)(call, isa, task, own);
    }
  });
}

}  // namespace headway::cpu
