#include "kernels/cpu/selection.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

#include "base/bytes.h"
#include "base/check.h"
#include "kernels/cpu/attention_ops.h"
#include "kernels/cpu/selection_choice.h"
#include "kernels/cpu/selection_keys.h"
#include "kernels/cpu/selection_ops.h"
#include "kernels/cpu/selection_sketch.h"
#include "kernels/cpu/selection_sketch_ops.h"
#include "kernels/selection_math.h"

namespace headway::cpu {
namespace {

constexpr int64_t kScratchLine = 256;  // as SelectScratchBytes
constexpr int64_t kChunk = 256;        // blocks of a head that a thread scores at once
constexpr int64_t kPiece = 2048;       // scores of a query head that it weighs at once

// Below so many blocks of all heads, handing work to the pool costs more than it saves.
constexpr int64_t kParallelBlocks = 512;

template <typename Fn>
void Over(ThreadPool& pool, int64_t tasks, bool parallel, const Fn& fn) {
  if (!parallel || tasks <= 1) {
    for (int64_t i = 0; i < tasks; ++i) fn(i);
    return;
  }
  pool.Run(tasks, 1, [&](int, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) fn(i);
  });
}

// --- Choosing

// The first look of one SelectItem, or the only one.
class Selection {
 public:
  Selection(ThreadPool& pool, Isa isa, const SelectionCall& call, const SelectItem& item)
      : pool_(pool),
        isa_(isa),
        ops_(SelectionOpsFor(isa)),
        call_(call),
        format_(call.format),
        summary_(call.summary),
        group_(call.group),
        scale_(call.scale),
        item_(item),
        keys_(item.keys),
        key_scores_(isa, call.format, call.summary.block_slots, item.keys),
        heads_(keys_.heads),
        query_heads_(heads_ * group_),
        chunks_(CeilDiv(keys_.blocks, kChunk)),
        pieces_(CeilDiv(keys_.blocks, kPiece)),
        parallel_(heads_ * keys_.blocks >= kParallelBlocks) {
    HEADWAY_CHECK(0 <= item.budget.far_begin && item.budget.far_begin <= item.budget.far_end &&
                  item.budget.far_end <= keys_.blocks);
    HEADWAY_CHECK(item.capacity >= item.budget.Capacity(keys_.blocks, keys_.heads));
    std::byte* at = item.scratch;
    const auto take = [&](int64_t bytes) {
      std::byte* begin = at;
      at += RoundUp(bytes, kScratchLine);
      return begin;
    };
    scores_ = reinterpret_cast<float*>(
        take(query_heads_ * keys_.blocks * static_cast<int64_t>(sizeof(float))));
    codes_ = reinterpret_cast<uint16_t*>(
        take(heads_ * keys_.blocks * static_cast<int64_t>(sizeof(uint16_t))));
    histograms_ = reinterpret_cast<uint32_t*>(
        take(heads_ * selection::kWorthCodes * static_cast<int64_t>(sizeof(uint32_t))));
    take(std::ssize(keys_.segments) * static_cast<int64_t>(sizeof(SegmentPlace)));
    queries_ = reinterpret_cast<int16_t*>(take(query_heads_ * int64_t{1024}));
    if (!item.looks_twice()) return;
    HEADWAY_CHECK(summary_.sketched());
    candidates_ = item.budget.OfCandidates().Capacity(keys_.blocks, keys_.heads);
    const int64_t word = sizeof(int32_t);
    candidate_blocks_ = reinterpret_cast<int32_t*>(take(heads_ * candidates_ * word));
    candidate_counts_ = reinterpret_cast<int32_t*>(take(heads_ * word));
    tops_ = reinterpret_cast<float*>(take(query_heads_ * candidates_ * word));
    masses_ = reinterpret_cast<uint32_t*>(take(query_heads_ * candidates_ * word));
  }

  void Run() {
    summary_.kept() ? CodeQueries() : PadQueries();
    if (summary_.kind == SummaryKind::kStages) {
      Over(pool_, heads_, parallel_, [&](int64_t head) {
        uint16_t* codes = codes_ + head * keys_.blocks;
        key_scores_.Stages(head, item_.budget, codes);
        item_.counts[head] = ListEntries(AllBlocks(), codes, {.least = 1, .equal = keys_.blocks},
                                         item_.blocks + head * item_.capacity);
      });
      return;
    }
    ScoreAndCode();
    if (!item_.looks_twice()) {
      ListHeads(item_.budget, item_.blocks, item_.capacity, item_.counts);
      return;
    }
    ListHeads(item_.budget.OfCandidates(), candidate_blocks_, candidates_, candidate_counts_);
    SecondLook(pool_, isa_, call_, item_,
               {.queries = queries_,
                .factors = factors_.data(),
                .blocks = candidate_blocks_,
                .counts = candidate_counts_,
                .capacity = candidates_,
                .tops = tops_,
                .masses = masses_,
                .codes = codes_,
                .histograms = histograms_});
  }

 private:
  int64_t QueryCodes() const { return 2 * QueryRow(format_.head_dim); }
  Entries AllBlocks() const {
    return {nullptr, keys_.blocks, item_.budget.far_begin, item_.budget.far_end};
  }
  float* ScoresOf(int64_t row) const { return scores_ + row * keys_.blocks; }
  uint32_t* HistogramOf(int64_t head) const { return histograms_ + head * selection::kWorthCodes; }
  // [query heads]
  float* LargestOf(int64_t chunk) { return largest_.data() + chunk * query_heads_; }
  const float* QueryOf(int64_t row) const {
    return static_cast<const float*>(item_.q) + row * format_.head_dim;
  }

  void CodeQueries() {
    factors_.resize(static_cast<size_t>(query_heads_));
    Over(pool_, query_heads_, parallel_, [&](int64_t row) {
      factors_[static_cast<size_t>(row)] = CodeQuery(summary_.kind, QueryOf(row), format_.head_dim,
                                                     scale_, queries_ + row * QueryCodes());
    });
  }

  // Keys are multiplied with queries as they are; a row takes as much as its codes.
  void PadQueries() {
    auto* queries = reinterpret_cast<float*>(queries_);
    const int64_t padded = QueryRow(format_.head_dim);
    for (int64_t row = 0; row < query_heads_; ++row) {
      float* end = std::copy_n(QueryOf(row), format_.head_dim, queries + row * padded);
      std::fill(end, queries + (row + 1) * padded, 0.0f);
    }
    key_scores_.SetQueries(queries, group_, scale_);
  }

  // Scores of all blocks, their shares, and the codes of what they are worth.
  void ScoreAndCode() {
    largest_.assign(static_cast<size_t>(query_heads_ * chunks_),
                    -std::numeric_limits<float>::infinity());
    Over(pool_, heads_ * chunks_, parallel_,
         [&](int64_t i) { ScoreChunk(i / chunks_, i % chunks_); });
    for (int64_t chunk = 1; chunk < chunks_; ++chunk) {
      std::transform(LargestOf(chunk), LargestOf(chunk) + query_heads_, LargestOf(0), LargestOf(0),
                     [](float a, float b) { return std::max(a, b); });
    }
    piece_sums_.assign(static_cast<size_t>(query_heads_ * pieces_), 0);
    Over(pool_, query_heads_ * pieces_, parallel_,
         [&](int64_t i) { WeighPiece(i / pieces_, i % pieces_); });
    sums_.assign(static_cast<size_t>(query_heads_), 0.0f);
    for (int64_t row = 0; row < query_heads_; ++row) {
      const auto first = piece_sums_.begin() + row * pieces_;
      sums_[static_cast<size_t>(row)] =
          static_cast<float>(std::accumulate(first, first + pieces_, uint64_t{0}));
    }
    Over(pool_, heads_, parallel_, [&](int64_t head) { CodeHead(head); });
  }

  void ScoreChunk(int64_t head, int64_t chunk) {
    const int64_t end = std::min(keys_.blocks, (chunk + 1) * kChunk);
    if (!summary_.kept()) {
      const int64_t begin = chunk * kChunk;
      key_scores_.Masses(head, begin, end, ScoresOf(head * group_) + begin, keys_.blocks,
                         LargestOf(chunk) + head * group_);
      return;
    }
    for (int64_t block = chunk * kChunk; block < end;) {
      const std::byte* summary = SegmentOf(keys_, head, block).summary;
      const int64_t in_segment = block % keys_.segment_blocks;
      const int64_t in_group = head % keys_.group_heads;
      const int64_t count = std::min(end - block, keys_.segment_blocks - in_segment);
      ops_.score({.kind = summary_.kind,
                  .head_dim = format_.head_dim,
                  .codes = summary + in_group * keys_.codes_head_stride +
                           in_segment * summary_.code_bytes(format_.head_dim),
                  .scales = reinterpret_cast<const float*>(summary + keys_.scales_offset) +
                            in_group * keys_.scales_head_stride + 2 * in_segment,
                  .blocks = count,
                  .group = group_,
                  .queries = queries_ + head * group_ * QueryCodes(),
                  .factors = factors_.data() + head * group_,
                  .scores = ScoresOf(head * group_) + block,
                  .score_stride = keys_.blocks,
                  .largest = LargestOf(chunk) + head * group_});
      block += count;
    }
  }

  void WeighPiece(int64_t row, int64_t piece) {
    const int64_t begin = piece * kPiece;
    piece_sums_[static_cast<size_t>(row * pieces_ + piece)] = ops_.weigh(
        ScoresOf(row) + begin, std::min(kPiece, keys_.blocks - begin), LargestOf(0)[row]);
  }

  void CodeHead(int64_t head) {
    uint16_t* codes = codes_ + head * keys_.blocks;
    uint32_t* histogram = HistogramOf(head);
    ops_.worth(ScoresOf(head * group_), keys_.blocks, sums_.data() + head * group_, group_,
               keys_.blocks, codes);
    CountCodes(AllBlocks(), codes, histogram);
  }

  void ListHeads(const SelectionBudget& budget, int32_t* lists, int64_t capacity, int32_t* counts) {
    const std::vector<Cut> cuts = CutsOf(budget, heads_, histograms_);
    Over(pool_, heads_, parallel_, [&](int64_t head) {
      counts[head] = ListEntries(AllBlocks(), codes_ + head * keys_.blocks,
                                 cuts[static_cast<size_t>(head)], lists + head * capacity);
    });
  }

  ThreadPool& pool_;
  const Isa isa_;
  const SelectionOps& ops_;
  const SelectionCall& call_;
  const PageFormat& format_;
  const SummaryFormat& summary_;
  const int group_;
  const float scale_;
  const SelectItem& item_;
  const BlockedKeys& keys_;
  KeyScores key_scores_;
  const int64_t heads_;
  const int64_t query_heads_;
  const int64_t chunks_;
  const int64_t pieces_;
  const bool parallel_;
  // In the item's scratch.
  float* scores_;         // [query heads, blocks], then weights
  uint16_t* codes_;       // [heads, blocks]
  uint32_t* histograms_;  // [heads, codes] of far blocks
  int16_t* queries_;      // [query heads, 2, QueryRow]
  // Of a second look, in scratch, too:
  int64_t candidates_ = 0;
  int32_t* candidate_blocks_ = nullptr;  // [heads, candidates]
  int32_t* candidate_counts_ = nullptr;  // [heads]
  float* tops_ = nullptr;                // [query heads, candidates]
  uint32_t* masses_ = nullptr;           // [query heads, candidates]

  std::vector<selection::QueryFactors> factors_;  // [query heads]
  std::vector<float> largest_;                    // [chunks, query heads], then the first of all
  std::vector<uint64_t> piece_sums_;              // [query heads, pieces]
  std::vector<float> sums_;                       // [query heads]
};

// --- Attention

// Listed blocks [begin, end) of a head; those that are neighbours in a page make one run.
class ListedRuns : public PageRuns {
 public:
  ListedRuns(const PageFormat& format, int block_slots, const AttendBlocksItem& item, int64_t head,
             int64_t begin, int64_t end)
      : format_(format),
        keys_(item.keys),
        block_slots_(block_slots),
        page_blocks_(format.page_slots / block_slots),
        head_(head),
        at_(item.blocks + head * item.capacity + begin),
        end_(item.blocks + head * item.capacity + end) {}

  bool Next(PageRun* run) override {
    if (at_ == end_) return false;
    const int64_t block = *at_;
    int64_t count = 1;
    while (++at_ != end_ && *at_ == block + count && *at_ % page_blocks_ != 0) ++count;
    const std::byte* slab = SegmentOf(keys_, head_, block).slab;
    const int64_t page = block % keys_.segment_blocks / page_blocks_;
    const int64_t in_group = head_ % keys_.group_heads;
    // Kernels only read what a run of keys points to.
    auto* k =
        const_cast<std::byte*>(slab) + in_group * keys_.head_stride + page * keys_.page_stride;
    *run = {.k = k,
            .v = k + keys_.v_offset,
            .first_slot = block % page_blocks_ * block_slots_,
            .count = count * block_slots_};
    if (format_.encoding != Encoding::kNone) {
      run->params = const_cast<std::byte*>(slab) + keys_.params_offset +
                    in_group * keys_.params_head_stride + page * keys_.params_page_stride;
    }
    return true;
  }

 private:
  const PageFormat& format_;
  const BlockedKeys& keys_;
  const int64_t block_slots_;
  const int64_t page_blocks_;
  const int64_t head_;
  const int32_t* at_;
  const int32_t* end_;
};

// The keys of one part of a head's list, for some of its queries.
struct BlocksTask {
  const AttendBlocksItem* item = nullptr;
  int64_t head = 0;
  int64_t part = 0;
  int first_row = 0;
};

std::vector<BlocksTask> TasksOf(std::span<const AttendBlocksItem> items, int block_slots,
                                int group) {
  std::vector<BlocksTask> tasks;
  for (const AttendBlocksItem& item : items) {
    HEADWAY_CHECK(item.split > 0 && item.split % block_slots == 0);
    HEADWAY_CHECK(item.parts >= CeilDiv(item.capacity * block_slots, item.split));
    for (int64_t head = 0; head < item.keys.heads; ++head) {
      for (int64_t part = 0; part < item.parts; ++part) {
        if (part * item.split >= item.counts[head] * int64_t{block_slots}) {
          std::fill_n(item.lse + part * item.lse_part_stride + head * group, group,
                      -std::numeric_limits<float>::infinity());
          continue;
        }
        for (int row = 0; row < group; row += static_cast<int>(kFewRowsMax)) {
          tasks.push_back({&item, head, part, row});
        }
      }
    }
  }
  return tasks;
}

}  // namespace

void Summarize(ThreadPool& pool, Isa isa, const PageFormat& format, const SummaryFormat& summary,
               std::span<const SummarizeItem> items) {
  HEADWAY_CHECK(SelectionFits(format, summary, 1) && summary.kept());
  const SelectionOps& ops = SelectionOpsFor(isa);
  const int64_t row_bytes = format.head_dim * static_cast<int64_t>(DTypeBytes(format.dtype));
  for (const SummarizeItem& item : items) {
    HEADWAY_CHECK(item.keys.params == nullptr);
    HEADWAY_CHECK(item.keys.first_slot % summary.block_slots == 0 &&
                  item.keys.count % summary.block_slots == 0);
    const int64_t blocks = item.keys.count / summary.block_slots;
    constexpr int64_t kBlocksGrain = 8;
    pool.Run(item.heads * blocks, kBlocksGrain, [&](int, int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t head = i / blocks;
        const int64_t block = i % blocks;
        const int64_t slot = item.keys.first_slot + block * summary.block_slots;
        const std::byte* keys = item.keys.k + head * item.keys.head_stride +
                                slot / format.page_slots * item.keys.page_stride +
                                slot % format.page_slots * row_bytes;
        std::byte* codes = item.codes + head * item.codes_head_stride +
                           block * summary.code_bytes(format.head_dim);
        float* scales = item.scales + head * item.scales_head_stride + 2 * block;
        ops.summarize(format, summary.kind, keys, summary.block_slots, codes, scales);
        if (!summary.sketched()) continue;
        SketchOpsFor(isa).sketch(format, keys, summary.block_slots, codes, scales,
                                 item.sketch + head * item.sketch_head_stride +
                                     block * summary.sketch_bytes(format.head_dim));
      }
    });
  }
}

void SelectBlocks(ThreadPool& pool, Isa isa, const SelectionCall& call,
                  std::span<const SelectItem> items) {
  HEADWAY_CHECK(SelectionFits(call.format, call.summary, call.group));
  for (const SelectItem& item : items) {
    HEADWAY_CHECK(TakesRows(call.summary.kind) || (item.rows == 1 && item.turn.rotary_dim == 0));
    Selection(pool, isa, call, item).Run();
  }
}

void AttendBlocks(ThreadPool& pool, Isa isa, const SelectionCall& call,
                  std::span<const AttendBlocksItem> items, const AttentionScratch& scratch) {
  const auto& [format, summary, group, scale] = call;
  HEADWAY_CHECK(SelectionFits(format, summary, group));
  HEADWAY_CHECK(pool.threads() <= scratch.threads && format.head_dim <= scratch.limits.head_dim);
  const AttentionFewOps& ops = AttentionFewOpsFor(isa);
  const AttentionParams params = {.scale = scale};
  const std::vector<BlocksTask> tasks = TasksOf(items, summary.block_slots, group);
  pool.Run(std::ssize(tasks), 1, [&](int thread, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const BlocksTask& task = tasks[static_cast<size_t>(i)];
      const AttendBlocksItem& from = *task.item;
      const int64_t row = task.head * group + task.first_row;
      const AttentionItem item = {
          .q = static_cast<const float*>(from.q) + row * format.head_dim,
          .tokens = 1,
          .keys = {},
          .transform = {},
          .o = from.o + task.part * from.o_part_stride + row * format.head_dim,
          .lse = from.lse + task.part * from.lse_part_stride + row};
      const int rows = std::min(group - task.first_row, static_cast<int>(kFewRowsMax));
      const int64_t part_blocks = from.split / summary.block_slots;
      ListedRuns runs(format, summary.block_slots, from, task.head, task.part * part_blocks,
                      std::min<int64_t>((task.part + 1) * part_blocks, from.counts[task.head]));
      ops.attend_runs(
          {.format = &format, .params = &params, .item = &item, .group = rows, .rows = rows}, runs,
          ScratchOfThread(scratch, thread));
    }
  });
}

}  // namespace headway::cpu
