#include "kernels/cpu/selection.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

#include "base/bytes.h"
#include "base/check.h"
#include "kernels/cpu/selection_bound.h"
#include "kernels/cpu/selection_choice.h"
#include "kernels/cpu/selection_keys.h"
#include "kernels/cpu/selection_ops.h"
#include "kernels/cpu/selection_queries.h"
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

// The choice of one block of rows of a SelectItem.
class Selection {
 public:
  Selection(ThreadPool& pool, Isa isa, const SelectionCall& call, const SelectItem& item,
            int64_t row_block)
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
        row_block_(row_block),
        budget_(item.budget.OfRows(row_block, item.keys.blocks)),
        rows_(std::min(kSelectRows, item.rows - row_block * kSelectRows)),
        key_scores_(isa, call.format, call.summary.block_slots, item),
        heads_(keys_.heads),
        parallel_(heads_ * PoolsOf(rows_) * keys_.blocks >= kParallelBlocks) {
    HEADWAY_CHECK(0 <= item.budget.far_begin && item.budget.far_begin <= item.budget.far_end &&
                  item.budget.far_end <= keys_.blocks);
    HEADWAY_CHECK(item.budget.far_step == 0 || summary_.kept());
    HEADWAY_CHECK(item.TakesBound(summary_));
    HEADWAY_CHECK(item.capacity >= item.budget.Capacity(keys_.blocks, keys_.heads));
    const bool staged = summary_.kind == SummaryKind::kStages;
    const int64_t queries =
        heads_ * group_ * PoolsOf(rows_, staged ? StageRowStep(group_) : kPoolRows);  // at most
    std::byte* at = item.scratch;
    const auto take = [&](int64_t bytes) {
      std::byte* begin = at;
      at += RoundUp(bytes, kScratchLine);
      return begin;
    };
    scores_ = reinterpret_cast<float*>(
        take(staged ? 0 : queries * keys_.blocks * static_cast<int64_t>(sizeof(float))));
    codes_ = reinterpret_cast<uint16_t*>(
        take(heads_ * keys_.blocks * static_cast<int64_t>(sizeof(uint16_t))));
    histograms_ = reinterpret_cast<uint32_t*>(take(
        staged ? 0 : heads_ * selection::kWorthCodes * static_cast<int64_t>(sizeof(uint32_t))));
    take(std::ssize(keys_.segments) * static_cast<int64_t>(sizeof(SegmentPlace)));
    queries_ = reinterpret_cast<int16_t*>(
        take(queries * QueryCodes() * static_cast<int64_t>(sizeof(int16_t))));
    if (!item.looks_at_sketches(summary_)) return;
    const int64_t word = sizeof(int32_t);
    tops_ = reinterpret_cast<float*>(take(queries * CandidateStride() * word));
    masses_ = reinterpret_cast<uint32_t*>(take(queries * CandidateStride() * word));
  }

  void Run() {
    const bool twice = item_.looks_twice();
    if (summary_.kind == SummaryKind::kStages) {
      Pool(StageRowStep(group_));
      Over(pool_, heads_, parallel_, [&](int64_t head) {
        const int64_t list = row_block_ * heads_ + head;
        uint16_t* codes = codes_ + head * keys_.blocks;
        key_scores_.Stages(head, item_, codes);
        item_.counts[list] =
            ListEntries(EntriesOf(head), codes, {.least = 1, .equal = keys_.blocks},
                        item_.blocks + list * item_.capacity);
      });
      return;
    }
    Pool(twice && item_.rows > 1 ? kSearchRows : kPoolRows);
    if (twice) {
      HEADWAY_CHECK(summary_.kept());
      if (!item_.candidates_listed) ListCandidates();
      if (item_.looks_at_sketches(summary_)) return LookAtSketches();
      if (pool_rows_ != kPoolRows) Pool(kPoolRows);
      among_ = &candidates_;
      stride_ = CandidateStride();
    }
    ScoreAndCode();
    if (item_.budget.is_bounded()) return ListBounded();
    const int64_t list = row_block_ * heads_;
    ListHeads(budget_, item_.blocks + list * item_.capacity, item_.capacity, item_.counts + list);
  }

 private:
  // Makes queries, each of as many neighbouring rows.
  void Pool(int64_t pool_rows) {
    pool_rows_ = pool_rows;
    pools_ = PoolsOf(rows_, pool_rows);
    queries_of_head_ = group_ * pools_;
    all_queries_ = heads_ * queries_of_head_;
    summary_.kept() ? CodeQueries() : PadQueries();
  }
  // The rows of query `query`, counted by query head, then pool.
  PooledRows RowsOf(int64_t query) const {
    const int64_t in_block = query % pools_ * pool_rows_;
    const int64_t row = row_block_ * kSelectRows + in_block;
    RopeTable turn = item_.turn;
    turn.cos += row * (turn.rotary_dim / 2);
    turn.sin += row * (turn.rotary_dim / 2);
    return {.q = static_cast<const float*>(item_.q) + row * item_.q_stride +
                 query / pools_ * format_.head_dim,
            .stride = item_.q_stride,
            .rows = std::min(pool_rows_, rows_ - in_block),
            .turn = turn};
  }
  int64_t QueryCodes() const { return 2 * QueryRow(format_.head_dim); }
  int64_t CandidateStride() const {
    return std::min(candidates_.capacity * candidates_.run, keys_.blocks);
  }
  Entries EntriesOf(int64_t head) const {
    return among_ == nullptr ? Entries{nullptr, keys_.blocks, budget_.far_begin, budget_.far_end}
                             : EntriesAmong(*among_, head, keys_.blocks, budget_);
  }
  float* ScoresOf(int64_t row) const { return scores_ + row * stride_; }
  uint32_t* HistogramOf(int64_t head) const { return histograms_ + head * selection::kWorthCodes; }
  // [all queries]
  float* LargestOf(int64_t chunk) { return largest_.data() + chunk * all_queries_; }

  void CodeQueries() {
    factors_.resize(static_cast<size_t>(all_queries_));
    Over(pool_, all_queries_, parallel_, [&](int64_t row) {
      factors_[static_cast<size_t>(row)] = CodeQuery(summary_.kind, RowsOf(row), format_.head_dim,
                                                     scale_, queries_ + row * QueryCodes());
    });
  }

  // Keys are multiplied with numbers: each query's first row, turned; it takes as much as codes.
  void PadQueries() {
    auto* queries = reinterpret_cast<float*>(queries_);
    const int64_t padded = QueryRow(format_.head_dim);
    for (int64_t row = 0; row < all_queries_; ++row) {
      TurnQuery(RowsOf(row), format_.head_dim, queries + row * padded);
      std::fill(queries + row * padded + format_.head_dim, queries + (row + 1) * padded, 0.0f);
    }
    key_scores_.SetQueries(queries, static_cast<int>(queries_of_head_), scale_);
  }

  // Scores of what is chosen among, their shares, and the codes of what it is worth.
  void ScoreAndCode() {
    chunks_ = CeilDiv(stride_, kChunk);
    pieces_ = CeilDiv(stride_, kPiece);
    largest_.assign(static_cast<size_t>(all_queries_ * chunks_),
                    -std::numeric_limits<float>::infinity());
    Over(pool_, heads_ * chunks_, parallel_,
         [&](int64_t i) { ScoreChunk(i / chunks_, i % chunks_); });
    for (int64_t chunk = 1; chunk < chunks_; ++chunk) {
      std::transform(LargestOf(chunk), LargestOf(chunk) + all_queries_, LargestOf(0), LargestOf(0),
                     [](float a, float b) { return std::max(a, b); });
    }
    piece_sums_.assign(static_cast<size_t>(all_queries_ * pieces_), 0);
    Over(pool_, all_queries_ * pieces_, parallel_,
         [&](int64_t i) { WeighPiece(i / pieces_, i % pieces_); });
    sums_.assign(static_cast<size_t>(all_queries_), 0.0f);
    for (int64_t row = 0; row < all_queries_; ++row) {
      const auto first = piece_sums_.begin() + row * pieces_;
      sums_[static_cast<size_t>(row)] =
          static_cast<float>(std::accumulate(first, first + pieces_, uint64_t{0}));
    }
    Over(pool_, heads_, parallel_, [&](int64_t head) { CodeHead(head); });
  }

  void ScoreChunk(int64_t head, int64_t chunk) {
    const Entries entries = EntriesOf(head);
    const int64_t end = std::min(entries.count, (chunk + 1) * kChunk);
    if (!summary_.kept()) {
      const int64_t begin = chunk * kChunk;
      key_scores_.Masses(head, begin, end, ScoresOf(head * group_) + begin, stride_,
                         LargestOf(chunk) + head * group_);
      return;
    }
    for (int64_t i = chunk * kChunk; i < end;) {
      const int64_t block = entries.BlockAt(i);
      const std::byte* summary = SegmentOf(keys_, head, block).summary;
      const int64_t in_segment = block % keys_.segment_blocks;
      const int64_t in_group = head % keys_.group_heads;
      const int64_t count =
          entries.Neighbours(i, std::min(end - i, keys_.segment_blocks - in_segment));
      ops_.score({.kind = summary_.kind,
                  .head_dim = format_.head_dim,
                  .codes = summary + keys_.codes_offset + in_group * keys_.codes_head_stride +
                           in_segment * summary_.code_bytes(format_.head_dim),
                  .scales = reinterpret_cast<const float*>(summary + keys_.scales_offset) +
                            in_group * keys_.scales_head_stride + 2 * in_segment,
                  .blocks = count,
                  .group = static_cast<int>(queries_of_head_),
                  .queries = queries_ + head * queries_of_head_ * QueryCodes(),
                  .factors = factors_.data() + head * queries_of_head_,
                  .scores = ScoresOf(head * queries_of_head_) + i,
                  .score_stride = stride_,
                  .largest = LargestOf(chunk) + head * queries_of_head_});
      i += count;
    }
  }

  void WeighPiece(int64_t row, int64_t piece) {
    const int64_t begin = piece * kPiece;
    const int64_t count = std::min(kPiece, EntriesOf(row / queries_of_head_).count - begin);
    if (count <= 0) return;
    piece_sums_[static_cast<size_t>(row * pieces_ + piece)] =
        ops_.weigh(ScoresOf(row) + begin, count, LargestOf(0)[row]);
  }

  void CodeHead(int64_t head) {
    const Entries entries = EntriesOf(head);
    uint16_t* codes = codes_ + head * stride_;
    ops_.worth({.weights = ScoresOf(head * queries_of_head_),
                .weight_stride = stride_,
                .sums = sums_.data() + head * queries_of_head_,
                .group = group_,
                .pools = pools_,
                .count = entries.count,
                .codes = codes});
    CountCodes(entries, codes, HistogramOf(head));
  }

  void ListHeads(const SelectionBudget& budget, int32_t* lists, int64_t capacity, int32_t* counts) {
    const std::vector<Cut> cuts = CutsOf(budget, heads_, histograms_);
    Over(pool_, heads_, parallel_, [&](int64_t head) {
      counts[head] = ListEntries(EntriesOf(head), codes_ + head * stride_,
                                 cuts[static_cast<size_t>(head)], lists + head * capacity);
    });
  }

  void ListCandidates() {
    const SelectionBudget budget = item_.OfCandidates().OfRows(row_block_, keys_.blocks);
    if (item_.rows > 1) {  // which keep their candidates for this choice alone
      const int64_t capacity = budget.Capacity(keys_.blocks, keys_.heads);
      candidates_of_rows_.resize(static_cast<size_t>(heads_ * (capacity + 1)));
      int32_t* lists = candidates_of_rows_.data();
      candidates_ = {lists, capacity, lists + heads_ * capacity};
    }
    HEADWAY_CHECK(candidates_.run == 1 &&
                  candidates_.capacity >= budget.Capacity(keys_.blocks, keys_.heads));
    ScoreAndCode();
    ListHeads(budget, candidates_.blocks, candidates_.capacity, candidates_.counts);
  }

  void ListBounded() {
    PadQueries();  // where their codes were
    Over(pool_, heads_, parallel_, [&](int64_t head) {
      const uint16_t* codes = codes_ + head * stride_;
      const uint32_t least =
          LeastListed(key_scores_, group_, item_, {head, codes, HistogramOf(head)});
      item_.counts[head] = ListEntries(EntriesOf(head), codes, {.least = least, .equal = stride_},
                                       item_.blocks + head * item_.capacity);
    });
  }

  void LookAtSketches() {
    SketchLook(pool_, isa_, call_, item_,
               {.queries = queries_,
                .factors = factors_.data(),
                .stride = CandidateStride(),
                .tops = tops_,
                .masses = masses_,
                .codes = codes_,
                .histograms = histograms_});
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
  const int64_t row_block_;
  const SelectionBudget budget_;  // of its rows
  const int64_t rows_;
  KeyScores key_scores_;
  const int64_t heads_;
  int64_t pool_rows_ = 0;
  int64_t pools_ = 0;
  int64_t queries_of_head_ = 0;  // [group, pools]
  int64_t all_queries_ = 0;      // [heads, group, pools]
  const bool parallel_;
  // What the look at hand chooses among: the candidates, or null for all blocks.
  const CandidateLists* among_ = nullptr;
  CandidateLists candidates_ = item_.candidates;
  int64_t stride_ = keys_.blocks;            // the most entries of a head
  std::vector<int32_t> candidates_of_rows_;  // [heads, capacity], and their counts [heads]
  int64_t chunks_ = 0;
  int64_t pieces_ = 0;
  // In the item's scratch.
  float* scores_;         // [all queries, stride_], then weights
  uint16_t* codes_;       // [heads, stride_]
  uint32_t* histograms_;  // [heads, codes] of far blocks
  int16_t* queries_;      // [all queries, 2, QueryRow]
  // Of a second look at sketches:
  float* tops_ = nullptr;       // [query heads, CandidateStride()]
  uint32_t* masses_ = nullptr;  // [query heads, CandidateStride()]

  std::vector<selection::QueryFactors> factors_;  // [all queries]
  std::vector<float> largest_;                    // [chunks, all queries], then the first of all
  std::vector<uint64_t> piece_sums_;              // [all queries, pieces]
  std::vector<float> sums_;                       // [all queries]
};

// `count` slots of a run's head from slot `slot` of the run on, which lie in one page.
PageSlots SlotsOf(const PageFormat& format, const PageRun& run, int64_t head, int64_t slot,
                  int count) {
  const int64_t page = (run.first_slot + slot) / format.page_slots;
  PageSlots slots = {.page = run.k + head * run.head_stride + page * run.page_stride,
                     .first = (run.first_slot + slot) % format.page_slots,
                     .count = count};
  if (run.params != nullptr) {
    slots.params = run.params + head * run.params_head_stride + page * run.params_page_stride;
  }
  return slots;
}

}  // namespace

void Summarize(ThreadPool& pool, Isa isa, const PageFormat& format, const SummaryFormat& summary,
               std::span<const SummarizeItem> items) {
  HEADWAY_CHECK(SelectionFits(format, summary, 1) && summary.kept());
  const SelectionOps& ops = SelectionOpsFor(isa);
  const int64_t row_bytes = format.head_dim * static_cast<int64_t>(DTypeBytes(format.dtype));
  for (const SummarizeItem& item : items) {
    HEADWAY_CHECK(item.keys.first_slot % summary.block_slots == 0 &&
                  item.keys.count % summary.block_slots == 0);
    const int64_t blocks = item.keys.count / summary.block_slots;
    constexpr int64_t kBlocksGrain = 8;
    pool.Run(item.heads * blocks, kBlocksGrain, [&](int, int64_t begin, int64_t end) {
      std::vector<float> turned;
      for (int64_t i = begin; i < end; ++i) {
        const int64_t head = i / blocks;
        const int64_t block = i % blocks;
        const PageSlots slots =
            SlotsOf(format, item.keys, head, block * summary.block_slots, summary.block_slots);
        const std::byte* keys = slots.page + slots.first * row_bytes;
        PageFormat read = format;
        if (slots.params != nullptr || item.rotated.rotary_dim > 0) {
          turned.resize(static_cast<size_t>(summary.block_slots * format.head_dim));
          TurnKeysBack(format, slots, item.rotated, block * summary.block_slots, turned.data());
          keys = reinterpret_cast<const std::byte*>(turned.data());
          read.dtype = DType::kF32;
        }
        std::byte* codes = item.codes + head * item.codes_head_stride +
                           block * summary.code_bytes(format.head_dim);
        float* scales = item.scales + head * item.scales_head_stride + 2 * block;
        ops.summarize(read, summary.kind, keys, summary.block_slots, codes, scales);
        if (!summary.sketched()) continue;
        SketchOpsFor(isa).sketch(read, keys, summary.block_slots, codes, scales,
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
    HEADWAY_CHECK(item.rows == 1 || item.first_stage == 0);
    for (int64_t block = 0; block < item.row_blocks(); ++block) {
      Selection(pool, isa, call, item, block).Run();
    }
    CountListed(item);
  }
}

}  // namespace headway::cpu
