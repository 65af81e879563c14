// Selection: attending to the blocks of a cache that matter to a query, and to no others. Closed
// pages have a summary of each block of their slots; queries score the summaries, the best blocks
// are listed, and attention reads what is listed (Lee et al., "InfiniteHiP", 2025; Tang et al.,
// "Quest", 2024; the second moments are our own). Everything a list depends on is computed in
// integers, or in one order (selection_math.h): all implementations pick the same blocks for the
// same queries, keys and pages.
#ifndef HEADWAY_KERNELS_SELECTION_H_
#define HEADWAY_KERNELS_SELECTION_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>

#include "base/bytes.h"
#include "device/device.h"
#include "kernels/attention.h"
#include "kernels/block_cache.h"
#include "kernels/elementwise.h"
#include "kernels/pages.h"

namespace headway {

// How blocks are scored: by what a summary says of their keys, channel by channel, or without one
// by the keys themselves, which are read where they lie. Which of them prompts may choose by, says
// TakesRows.
enum class SummaryKind : uint8_t {
  kMoments,  // mean and variance: a score is q·mean + ½ Σ q²·variance
  kBoxes,    // least and greatest: a score is Σ max(q·least, q·greatest), an upper bound (Quest)
  kPairs,    // two keys that stand for the others: a score is the mean of q·key (InfLLM)
  kMasses,   // no summary: a score is log Σ exp(q·k) over all keys, which is the truth
  kStages,   // no summary: keys that stand for chunks, in stages (InfiniteHiP; see ChunkStage)
};
constexpr bool HasSummaries(SummaryKind kind) {
  return kind != SummaryKind::kMasses && kind != SummaryKind::kStages;
}

// Whether several rows may choose at once, and be turned before they are scored.
constexpr bool TakesRows(SummaryKind kind) {
  return kind == SummaryKind::kMoments || kind == SummaryKind::kBoxes ||
         kind == SummaryKind::kStages;
}

// What a summary keeps beside that of each key, for a second look at the blocks that score best.
enum class SketchKind : uint8_t {
  kNone,
  kTwoBits,  // of moments only: on which side of the mean, and how far from it, in each channel
};

// Blocks of `block_slots` neighbouring slots, which divide a page's. The summary of a block of a
// head has two rows of codes of 8 bits [2, head_dim], and a scale of each row, f32 [2]. Its sketch
// has two rows of bytes for every 8 slots, [block_slots / 8, 2, head_dim]: bit s of a channel's
// byte belongs to slot s of the 8, the first row has signs, and the second sizes (SketchSign in
// selection_math.h). Those of a run of blocks lie one behind the other: codes [blocks, 2,
// head_dim], scales [blocks, 2], sketches [blocks, sketch_bytes].
struct SummaryFormat {
  SummaryKind kind = SummaryKind::kMoments;
  int block_slots = 0;  // 0: nothing is selected
  SketchKind sketch = SketchKind::kNone;

  constexpr bool selects() const { return block_slots > 0; }
  // Whether there are summaries.
  constexpr bool kept() const { return selects() && HasSummaries(kind); }
  bool sketched() const { return kept() && sketch != SketchKind::kNone; }
  int64_t code_bytes(int head_dim) const { return int64_t{2} * head_dim; }  // of a block
  static constexpr int64_t scale_bytes() { return 2 * sizeof(float); }      // of a block
  int64_t sketch_bytes(int head_dim) const {                                // of a block
    return sketched() ? int64_t{block_slots / 8} * 2 * head_dim : 0;
  }
  // Of a block, all of it.
  int64_t bytes(int head_dim) const {
    return code_bytes(head_dim) + scale_bytes() + sketch_bytes(head_dim);
  }
};

// What every implementation asks of pages and blocks: sums of products of codes are below 2^31, and
// worth is below the end of its codes. Slots of sketches are taken by eights, and the masses of a
// block's 64 slots at most have a sum of 37 bits.
constexpr bool SelectionFits(const PageFormat& format, const SummaryFormat& summary, int group) {
  constexpr int kWidest = 256;
  constexpr int kMaxGroup = 64;
  return format.head_dim > 0 && format.head_dim <= kWidest && group > 0 && group <= kMaxGroup &&
         summary.selects() && format.page_slots % summary.block_slots == 0 &&
         (!summary.sketched() || (summary.kind == SummaryKind::kMoments &&
                                  summary.block_slots % 8 == 0 && summary.block_slots <= 64)) &&
         (format.encoding == Encoding::kNone || format.head_dim % 2 == 0);
}

// Keys of pages, whole blocks of `heads` heads, whose summaries are to be made; keys.count is a
// multiple of block_slots, and the first slot begins a block. V is not read. Keys in an encoding
// are the numbers that selection_key_math.h says.
struct SummarizeItem {
  PageRun keys;
  int heads = 1;
  // The rotation that is undone before keys are summarised, a row for each of keys.count slots;
  // with a rotary_dim of 0 they are summarised as they lie.
  RopeTable rotated = {};
  std::byte* codes = nullptr;  // of the first block of the first head
  float* scales = nullptr;
  std::byte* sketch = nullptr;     // null where the format has none
  int64_t codes_head_stride = 0;   // in bytes
  int64_t scales_head_stride = 0;  // in elements
  int64_t sketch_head_stride = 0;  // in bytes
};

// Where a segment of the cache of a head group lies: a slab, its summaries and their sketches, in
// memory that the device reads in place (its own, or pinned host memory; summaries in its own).
struct SegmentPlace {
  const std::byte* slab = nullptr;
  const std::byte* summary = nullptr;
  const std::byte* sketch = nullptr;  // null where summaries have none
  int64_t position = 0;  // of its first key; read where listed blocks are moved (BlockMove)
  // Of the slab's pages, where a BlockCache may keep them: others have another version. 0: they are
  // read where they lie.
  uint32_t version = 0;
};

// The blocks of one sequence and layer that may be chosen, the same number of every head, counted
// from the first segment given; all segments but the last are full.
struct BlockedKeys {
  std::span<const SegmentPlace> segments;  // [head groups, segments of a group]; read by the call
  int heads = 0;                           // KV heads; those of a head group are neighbours
  int group_heads = 1;                     // heads of a head group; the last may have fewer
  int64_t blocks = 0;                      // of a head
  int64_t segment_blocks = 0;              // of a full segment

  int64_t head_groups() const { return CeilDiv(heads, group_heads); }
  int64_t group_segments() const { return std::ssize(segments) / head_groups(); }

  // In a slab, in bytes: of K, from the slab's beginning; V lies as K, v_offset behind it;
  // parameters of encoded pages as PageRun has them.
  int64_t page_stride = 0;
  int64_t head_stride = 0;
  int64_t v_offset = 0;
  int64_t params_offset = 0;
  int64_t params_page_stride = 0;
  int64_t params_head_stride = 0;
  // In a summary: codes, head by head, and scales. Formats with sketches, and choices by more rows
  // than one, have their codes at its beginning. Sketches lie head by head from their place on.
  int64_t codes_offset = 0;        // bytes
  int64_t codes_head_stride = 0;   // bytes
  int64_t scales_offset = 0;       // bytes
  int64_t scales_head_stride = 0;  // elements
  int64_t sketch_head_stride = 0;  // bytes
};

// A share of all is a whole number of 2^-kTopPBits.
inline constexpr int kTopPBits = 16;

// How many far blocks the heads of a layer share.
enum class BudgetShare : uint8_t {
  kHead,   // every KV head lists `far_blocks` of its own
  kLayer,  // the heads together list heads × far_blocks, the best of all of them
};

// A stage of SummaryKind::kStages. The far blocks are cut into chunks from the first on, the last
// one perhaps shorter; a key stands for a chunk (selection::KeyRange), and its largest product with
// a query of the group is the chunk's score. The best chunks survive, of equals the first; those of
// the next stage, which are smaller, lie in them.
struct ChunkStage {
  int64_t blocks = 0;  // of a chunk, a multiple of the next stage's; 0: there is no such stage
  int64_t kept = 0;    // chunks, which hold far_blocks
};
inline constexpr int kChunkStages = 2;

// Where keys count whose rotation is undone: so many positions before the position 0 they are
// rotated to (Lee et al., "InfiniteHiP", appendices B and D; selection::PositionsBack).
enum class KeyPositions : uint8_t {
  kOne,     // none: all at 0
  kChunks,  // chunk-indexed: as many as there are chunks of the stage from a key's own to the last
  kBranches,  // relative: 1 the first one of the two that a halving compares, the second one none
};

// The rotation of keys, which is undone before they are scored (selection::AngleAt the positions of
// their segments); with a rotary_dim of 0 they are scored as they lie.
struct KeyRotation {
  const float* inv_freq = nullptr;  // [rotary_dim / 2], as BlockMove has them
  int rotary_dim = 0;
  KeyPositions positions = KeyPositions::kOne;
};

// A bound of what lists leave out (selection_bound.h): of the attention of each query head a share
// of at most epsilon, as a sample of the far blocks tells, with as many standard deviations of its
// estimate to spare.
struct MassBound {
  double epsilon = 0.0;  // between 0 and 1; 0: there is none
  double deviations = 0.0;
  uint64_t seed = 0;  // of the sample
};

// What of the blocks is listed: all of [0, far_begin) and of [far_end, blocks), and the best of
// those between.
struct SelectionBudget {
  int64_t far_begin = 0;
  int64_t far_end = 0;
  int64_t far_blocks = 0;  // of a head, on average; at most far_end - far_begin
  // By so many blocks far_end lies later for each further block of rows, up to the last block:
  // rows have those of their item before them, and need less of what is before these. At most
  // kSelectRows, of kept summaries, and only where the budget chooses.
  int64_t far_step = 0;
  BudgetShare share = BudgetShare::kLayer;
  // Far blocks of a head, on average, that the first look lists for a second one, which chooses
  // among them by their sketches, or where there are none by their summaries. There is one look
  // where these are not more than far_blocks.
  int64_t candidates = 0;
  // Those before the last stage, whose chunks are single blocks: the best of them are listed, and
  // where fewer survive, the first others, too. With BudgetShare::kHead.
  std::array<ChunkStage, kChunkStages> stages = {};
  // Where it is not 0, and something is left out: the fewest blocks whose worth is this share, in
  // 2^-kTopPBits, of that of all far blocks of the heads that share a budget, from least_blocks to
  // far_blocks. Worth is that of its code (selection::CodeWorth). Not of SummaryKind::kStages.
  uint32_t top_p = 0;
  int64_t least_blocks = 0;  // of a head, on average: at least 1
  // Where there is one, and something is left out: far_blocks or more of each head, up to all, by
  // the bound. One look, by summaries, of one row that is scored as it is, with BudgetShare::kHead.
  MassBound bound = {};

  // Whether some far blocks are listed, and some are not.
  bool chooses() const { return far_blocks > 0 && far_blocks < far_end - far_begin; }
  // Whether how many are listed depends on what they are worth.
  bool takes_top_p() const { return top_p != 0 && chooses(); }
  // Or on what the others have.
  bool is_bounded() const { return bound.epsilon > 0.0 && chooses(); }
  // Else all heads together list heads * Capacity(blocks, 1).
  bool lists_by_worth() const { return takes_top_p() || is_bounded(); }
  bool looks_twice() const { return chooses() && candidates > far_blocks; }
  // What lists the candidates by coarser blocks, each of `run`: those that are far as a whole are
  // chosen among.
  SelectionBudget OfCoarse(int64_t run) const {
    const int64_t begin = CeilDiv(far_begin, run);
    const int64_t end = far_end / run < begin ? begin : far_end / run;
    const int64_t wanted = CeilDiv(candidates, run);
    return {.far_begin = begin,
            .far_end = end,
            .far_blocks = wanted < end - begin ? wanted : end - begin,
            .share = share};
  }
  // What the first of two looks lists.
  SelectionBudget OfCandidates() const {
    const int64_t far = far_end - far_begin;
    return {.far_begin = far_begin,
            .far_end = far_end,
            .far_blocks = candidates < far ? candidates : far,
            .far_step = far_step,
            .share = share};
  }
  // That of a block of rows, where there are so many blocks.
  SelectionBudget OfRows(int64_t row_block, int64_t blocks) const {
    SelectionBudget own = *this;
    if (!chooses()) return own;
    const int64_t end = far_end + row_block * far_step;
    own.far_end = end < blocks ? end : blocks;
    return own;
  }
  // The most chunks of a head that survive a stage.
  int64_t Survivors(const ChunkStage& stage) const {
    if (stage.blocks == 0) return 0;
    const int64_t all = CeilDiv(far_end - far_begin, stage.blocks);
    return stage.kept < all ? stage.kept : all;
  }
  // The most chunks of a head that a stage scores, those of the last one being single blocks.
  int64_t MostChunks() const {
    int64_t most = 0;
    int64_t before = 1;                    // chunks that survived the stage before
    int64_t parent = far_end - far_begin;  // blocks of one
    const auto score = [&](int64_t blocks) {
      const int64_t all = CeilDiv(far_end - far_begin, blocks);
      const int64_t pieces = before * CeilDiv(parent, blocks);
      const int64_t scored = pieces < all ? pieces : all;
      most = most < scored ? scored : most;
    };
    for (const ChunkStage& stage : stages) {
      if (stage.blocks == 0) continue;
      score(stage.blocks);
      before = Survivors(stage);
      parent = stage.blocks;
    }
    score(1);
    return most;
  }
  // These, and all that survive.
  int64_t StageEntries() const {
    int64_t entries = MostChunks();
    for (const ChunkStage& stage : stages) entries += Survivors(stage);
    return entries;
  }
  // The most blocks that a head may list.
  int64_t Capacity(int64_t blocks, int heads) const {
    if (is_bounded()) return blocks;
    const int64_t far = far_end - far_begin;
    const int64_t chosen = share == BudgetShare::kHead ? far_blocks : far_blocks * heads;
    return blocks - far + (chosen < far ? chosen : far);
  }
};

// The rows of a prefill choose in blocks of kSelectRows rows, counted from the item's first. Each
// kPoolRows neighbouring rows of such a block are scored as one query, by the means of their
// channels and the means of the squares of these; a block's share for a query head is the largest
// of those of the pooled queries. The first of two looks pools kSearchRows rows. Decode has one
// row, which is its own pool.
inline constexpr int64_t kSelectRows = 64;
inline constexpr int64_t kPoolRows = 8;
inline constexpr int64_t kSearchRows = 64;
// Of SummaryKind::kStages no rows are pooled: each so many rows of a block of rows, from the first
// on, one is a query as it is, as published (Lee et al., "InfiniteHiP": a query block of 64 with a
// stride of 4), or fewer, so that a KV head has at most kSelectRows queries.
constexpr int64_t StageRowStep(int group) {
  constexpr int64_t kStride = 4;
  const int64_t fewest = CeilDiv(kSelectRows, kSelectRows / group);
  return fewest > kStride ? fewest : kStride;
}

// What the first of two looks lists: the candidates of the second, and all blocks that are not far.
// Or what a stage lists for the next one. Device memory, which the caller may keep for later calls.
struct CandidateLists {
  int32_t* blocks = nullptr;  // [heads, capacity], each head's ascending
  int64_t capacity = 0;       // at least OfCandidates().Capacity, or Survivors, of what lists them
  int32_t* counts = nullptr;  // [heads]
  // Those of an earlier call may be of coarser blocks, each of which is so many of this call's:
  // entry e stands for the blocks from e * run on.
  int32_t run = 1;
};

// A choice by q [rows, heads, group, head_dim] in the activations' dtype, rotated.
struct SelectItem {
  const void* q = nullptr;
  int64_t q_stride = 0;  // elements between rows
  int64_t rows = 1;
  // How each row is rotated, beside what it is already, before it is scored; with a rotary_dim of 0
  // it is scored as it is.
  RopeTable turn = {};
  KeyRotation rotated = {};  // of SummaryKind::kStages alone
  BlockedKeys keys;
  SelectionBudget budget;
  // Written: the listed blocks of each block of rows and head, ascending, and how many they are.
  // Device memory.
  int32_t* blocks = nullptr;  // [row blocks, heads, capacity]
  int64_t capacity = 0;       // at least budget.Capacity
  int32_t* counts = nullptr;  // [row blocks, heads]
  // Of a budget that lists_by_worth: the counts of all lists are added to it; null: they are not.
  // Device memory.
  uint64_t* listed = nullptr;
  // Of two looks: written, or those of an earlier call over as many blocks, with the same
  // far_begin, a far_end that was no greater, and at least as many candidates as are chosen
  // now. Or, of one row, the lists of a choice by coarser blocks of the same keys, with such a
  // budget's OfCoarse.
  CandidateLists candidates = {};
  bool candidates_listed = false;  // by an earlier call: there is no first look
  // Of SummaryKind::kStages and one row: the first block of each chunk that survives a stage, with
  // room for all that may survive. Those of stages before first_stage are of an earlier call over
  // as many blocks with the same budget; those of the others are written, unless the budget chooses
  // nothing.
  std::array<CandidateLists, kChunkStages> survivors = {};
  int first_stage = 0;
  std::byte* scratch = nullptr;  // SelectScratchBytes, or SelectStagesBytes, aligned to 256

  int64_t row_blocks() const { return CeilDiv(rows, kSelectRows); }
  // The rows of a prefill look once where most far blocks would be candidates.
  bool looks_twice() const {
    return budget.looks_twice() &&
           (rows == 1 || 2 * budget.candidates <= budget.far_end - budget.far_begin);
  }
  // What the first of two looks lists: of a prefill, as many for each head.
  SelectionBudget OfCandidates() const {
    SelectionBudget first = budget.OfCandidates();
    if (rows > 1) first.share = BudgetShare::kHead;
    return first;
  }
  // Blocks that all lists of a head have by such a budget, on average over the heads, where worth
  // does not say how many.
  int64_t ListedBy(const SelectionBudget& of) const {
    int64_t all = 0;
    for (int64_t i = 0; i < row_blocks(); ++i) {
      const SelectionBudget own = of.OfRows(i, keys.blocks);
      all += keys.blocks - (own.far_end - own.far_begin) + own.far_blocks;
    }
    return all;
  }
  // Whether what a bound needs is there, if there is one.
  bool TakesBound(const SummaryFormat& summary) const {
    const bool fits = summary.kept() && rows == 1 && turn.rotary_dim == 0 && budget.top_p == 0 &&
                      budget.candidates == 0 && budget.share == BudgetShare::kHead &&
                      budget.bound.epsilon < 1.0 && budget.bound.deviations >= 0.0;
    return budget.bound.epsilon == 0.0 || fits;
  }
  // Whether the second look is at sketches: one row's.
  bool looks_at_sketches(const SummaryFormat& summary) const {
    return rows == 1 && looks_twice() && summary.sketched();
  }
};

// Listed blocks that are attended to as if they followed one another up to `end`, the position
// behind the last block of the keys: block i of a list of n is rotated on by the difference of
// end - (n - i) * block_slots and the position at which it lies (Xiao et al., "StreamingLLM", 2024;
// "InfiniteHiP", appendix D). So no distance is larger than the number of keys that are read.
// Blocks that would come before `least` come there, all of them: at one distance, as in InfLLM.
struct BlockMove {
  const float* inv_freq = nullptr;  // [rotary_dim / 2]; null: blocks stay where they are
  int rotary_dim = 0;
  int64_t end = 0;
  int64_t least = 0;

  // Where a listed block comes, that and all behind it in the list being `left` blocks.
  int64_t To(int64_t left, int64_t block_slots) const {
    const int64_t to = end - left * block_slots;
    return to > least ? to : least;
  }
};

// What is left of a decode's attention behind the blocks of a cache: the keys behind them, every
// one of which the query sees, and the merge of all states, with that of these keys as the last
// one. A head has its keys in its open page, in the format's dtype without an encoding. Rows of
// pages lie row_stride bytes apart: of each head group first those of K, head by head, then those
// of V.
struct DecodeRest {
  void* result = nullptr;  // activations [heads, group, head_dim]; null: others do what is left
  std::byte* pages = nullptr;
  int64_t row_stride = 0;
  int64_t count = 0;  // keys of a head, at least 1, at most a page's
};

// The same rows' attention to what their block of rows lists; every row sees every listed key. In
// decode the states of a head are those of every `split` listed keys, part p at p * o_part_stride
// and p * lse_part_stride, as in AttentionItem; parts behind a head's list are written too: lse is
// -inf, and o is not touched. With a rest, o and lse have room for one part more, and hold anything
// afterwards: rest.result is what is computed. With more rows than one, split is 0, and there is
// one state of a row, which is written, or merged into what is there; of an empty list it is that
// of no keys: lse is -inf, and o is 0.
struct AttendBlocksItem {
  const void* q = nullptr;
  int64_t q_stride = 0;
  int64_t rows = 1;
  BlockMove move = {};
  BlockedKeys keys;
  const int32_t* blocks = nullptr;  // as SelectItem
  int64_t capacity = 0;
  const int32_t* counts = nullptr;
  int64_t split = 0;     // a multiple of block_slots; 0 with more rows than one
  int parts = 0;         // at least CeilDiv(capacity * block_slots, split)
  float* o = nullptr;    // [rows, heads, group, head_dim]
  int64_t o_stride = 0;  // between rows
  int64_t o_part_stride = 0;
  float* lse = nullptr;  // [rows, heads, group]
  int64_t lse_stride = 0;
  int64_t lse_part_stride = 0;
  bool merge = false;
  std::byte* scratch = nullptr;  // of one row AttendScratchBytes, else as SelectItem's; perhaps its
  DecodeRest rest = {};          // of one row
  // With a rest: o and lse hold the states of all that is listed, as calls without a rest have left
  // them, part by part perhaps. No listed block is read, and the bits are those of one call for
  // all.
  bool attended = false;
  BlockCache cache = {};  // implementations without a bus between ignore it
};

// Adds an item's counts up where it asks for that; of kernels that have made its lists, in memory
// that the host reads.
inline void CountListed(const SelectItem& item) {
  if (item.listed == nullptr) return;
  for (int64_t list = 0; list < item.row_blocks() * item.keys.heads; ++list) {
    *item.listed += static_cast<uint64_t>(item.counts[list]);
  }
}

// Pooled queries of a block of rows, of an item's `rows`.
constexpr int64_t PoolsOf(int64_t rows, int64_t pool_rows = kPoolRows) {
  return CeilDiv(rows < kSelectRows ? rows : kSelectRows, pool_rows);
}

class SelectionKernels {
 public:
  virtual ~SelectionKernels() = default;
  virtual void Summarize(Stream& stream, const PageFormat& format, const SummaryFormat& summary,
                         std::span<const SummarizeItem> items) = 0;
  // Scores blocks by their summaries, in one look or two, or by their keys, and lists the best ones
  // (selection_math.h, selection_key_math.h). `scale` is AttentionParams::scale.
  virtual void SelectBlocks(Stream& stream, const PageFormat& format, const SummaryFormat& summary,
                            int group, float scale, std::span<const SelectItem> items) = 0;
  // Attention without softcap and window: every listed key is seen.
  virtual void AttendBlocks(Stream& stream, const PageFormat& format, const SummaryFormat& summary,
                            int group, float scale, std::span<const AttendBlocksItem> items) = 0;
};

}  // namespace headway

#endif  // HEADWAY_KERNELS_SELECTION_H_
