// Attention of few queries (decode): K and V are read once, as they come from memory, and every row
// of queries uses what is loaded. Bound by memory bandwidth while rows are few.
//
// Rows go through in groups of kRows = 8 (AVX-512 only), 4, 2 or 1. A vector of logits holds kRows
// rows x kKeys keys, kRows * kKeys being its lanes: lane r * kKeys + k. Logits keep that layout
// through softmax, and the product with V broadcasts them one at a time.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/bytes.h"
#include "kernels/cpu/attention_ops.h"
#include "kernels/cpu/hwy_targets.h"
#include "kernels/page_codec.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention_few.cc"
#include "hwy/cache_control.h"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "hwy/highway.h"
#include "kernels/cpu/attention_few_load-inl.h"
#include "kernels/cpu/attention_few_steps-inl.h"
#include "kernels/cpu/attention_math-inl.h"

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace headway::cpu {
namespace HWY_NAMESPACE {
namespace {

template <class F, int kRows>
void AttendPiece(const Piece& piece) {
  if constexpr (F::kCoded) PrepareQueries<F, kRows>(piece);
  Score<F, kRows>(piece);
  Exponentiate<kRows>(piece);
  if constexpr (F::kExpanded) {
    // Not with the keys: scoring has asked the memory for the codes.
    if (piece.first_row == 0) Expand(piece, Half::kValues);
  }
  // As many vectors at once as leave room for the rows' sums in registers; of encoded pages, no
  // more than a value group has.
  constexpr int kInGroup = F::kCoded ? kValueGroup / kLanes : kLanes;
  constexpr int kVecsMax = std::min({kLanes / kRows, 8, kInGroup});
  const int64_t dim = piece.task.format->head_dim;
  const auto begin = [&](int64_t i) HWY_ATTR {
    if constexpr (F::kCoded) {
      if (i % kValueGroup == 0) PrepareWeights<F, kRows>(piece, i / kValueGroup);
    }
  };
  int64_t i = 0;
  for (; i + kVecsMax * kLanes <= dim; i += kVecsMax * kLanes) {
    begin(i);
    AddValues<F, kRows, kVecsMax>(piece, i);
  }
  if constexpr (kVecsMax > 4) {
    for (; i + 4 * kLanes <= dim; i += 4 * kLanes) {
      begin(i);
      AddValues<F, kRows, 4>(piece, i);
    }
  }
  if constexpr (kVecsMax > 2) {
    for (; i + 2 * kLanes <= dim; i += 2 * kLanes) {
      begin(i);
      AddValues<F, kRows, 2>(piece, i);
    }
  }
  for (; i < dim; i += kLanes) {
    begin(i);
    AddValues<F, kRows, 1>(piece, i);
  }
}

// Rows to take together of the `rows` that are left: a row of zeros too many costs less than
// another pass over the keys.
int64_t GroupOf(int64_t rows) {
  if (rows >= 6 && kGroupMax == 8) return 8;
  return rows >= 3 ? 4 : rows;
}

template <class F>
void AttendGroup(const Piece& piece, int64_t group) {
  switch (group) {
    case kGroupMax:
      return AttendPiece<F, kGroupMax>(piece);
#if HWY_TARGET == HWY_AVX3
    case 4:
      return AttendPiece<F, 4>(piece);
#endif
    case 2:
      return AttendPiece<F, 2>(piece);
    default:
      return AttendPiece<F, 1>(piece);
  }
}

void AttendRows(const Piece& piece, int64_t group) {
  if (piece.lossless != nullptr) return AttendGroup<Expanded>(piece, group);
  const bool encoded = piece.task.item->keys.pages.params != nullptr;
  switch (encoded ? piece.task.format->encoding : Encoding::kNone) {
    case Encoding::kInt8:
      return AttendGroup<Coded<Encoding::kInt8>>(piece, group);
    case Encoding::kFp8E4M3:
      return AttendGroup<Coded<Encoding::kFp8E4M3>>(piece, group);
    case Encoding::kInt4:
      return AttendGroup<Coded<Encoding::kInt4>>(piece, group);
    case Encoding::kLossless:
    case Encoding::kNone:
      break;
  }
  switch (piece.task.format->dtype) {
    case DType::kF32:
      return AttendGroup<Plain<DType::kF32>>(piece, group);
    case DType::kF16:
      return AttendGroup<Plain<DType::kF16>>(piece, group);
    case DType::kBF16:
      return AttendGroup<Plain<DType::kBF16>>(piece, group);
  }
}

// The query of row `row`, turned back: its products with keys are then those with keys that are
// turned on.
void FillQuery(const AttentionTask& task, const Scratch& scratch, int64_t row,
               const RopeTable& turn) {
  const LogitScale scale(*task.params);
  const int64_t dim = task.format->head_dim;
  const float* q = QueryOf(task, row);
  const int64_t half = turn.rotary_dim / 2;
  if (half > 0) {
    for (int64_t i = 0; i < half; ++i) {
      scratch.row[i] = q[i] * turn.cos[i] + q[i + half] * turn.sin[i];
      scratch.row[i + half] = q[i + half] * turn.cos[i] - q[i] * turn.sin[i];
    }
    std::copy(q + 2 * half, q + dim, scratch.row + 2 * half);
    q = scratch.row;
  }
  float* const to = scratch.q + row * scratch.dim;
  Shuffle(InPairs(task), dim, q, scale.q, to);
  std::fill(to + dim, to + scratch.dim, 0.0f);
}

void FillRows(const AttentionTask& task, const Scratch& scratch) {
  int64_t rows = 0;  // with those of zeros
  while (rows < task.rows) rows += GroupOf(task.rows - rows);
  std::fill_n(scratch.o, rows * scratch.dim, 0.0f);
  std::fill_n(scratch.max, rows, -kInfinity);
  std::fill_n(scratch.sum, rows, 0.0f);
  VisibleKeys seen;
  for (int64_t r = 0; r < rows; ++r) {
    if (r < task.rows) {
      FillQuery(task, scratch, r, {});
      if (r % task.group == 0) seen = KeysSeenBy(*task.params, *task.item, r / task.group);
    } else {
      std::fill_n(scratch.q + r * scratch.dim, scratch.dim, 0.0f);
    }
    scratch.begin[r] = seen.begin;
    scratch.end[r] = seen.end;
  }
}

// Where the piece that `key` begins ends at the latest: at a multiple of kBlock keys, those of
// encoded pages counted from the start of their page, which has parameters of its own.
int64_t NextBound(const AttentionTask& task, int64_t key) {
  const PageRun& run = task.item->keys.pages;
  if (run.params == nullptr) return (key / kBlock + 1) * kBlock;
  const int64_t slots = task.format->page_slots;
  const int64_t slot = (run.first_slot + key) % slots;
  return key - slot + std::min((slot / kBlock + 1) * kBlock, slots);
}

// The page of the first key that an item's first row sees.
const std::byte* FirstPage(const AttentionTask& task, const AttentionItem& item) {
  const PageRun& run = item.keys.pages;
  const int64_t slot = run.first_slot + KeysSeenBy(*task.params, item, 0).begin;
  return run.k + slot / task.format->page_slots * run.page_stride;
}

// All rows with a block of keys; `piece` has the first of the rows.
void AttendBlock(Piece piece) {
  for (const int64_t rows = piece.task.rows; piece.first_row < rows;) {
    const int64_t group = GroupOf(rows - piece.first_row);
    AttendRows(piece, group);
    piece.first_row += group;
  }
}

// The same as AttendKeys for lossless pages, in the blocks of plain ones.
void AttendLossless(const AttentionTask& task, const Scratch& scratch, int64_t begin, int64_t end,
                    const std::byte* next_keys) {
  const PageRun& run = task.item->keys.pages;
  PageFormat format = *task.format;
  format.encoding = Encoding::kNone;
  format.page_slots = kBlock;
  AttentionItem item = *task.item;
  AttentionTask expanded = task;
  expanded.format = &format;
  expanded.item = &item;
  for (int64_t key = begin; key < end;) {
    const int64_t next = std::min(end, (key / kBlock + 1) * kBlock);
    // A page of its own, whose first slot is that of the block's first key.
    item.keys.pages = {.k = reinterpret_cast<std::byte*>(scratch.k_rows),
                       .v = reinterpret_cast<std::byte*>(scratch.v_rows),
                       .first_slot = -key,
                       .count = next};
    Piece piece = {expanded, scratch, 0, key, next - key, nullptr};
    piece.lossless = &task;
    piece.value_codes = RowCursor(*task.format, run, run.v, key).row();
    piece.next_codes = next_keys == nullptr ? piece.value_codes : next_keys;
    if (next < end) piece.next_codes = RowCursor(*task.format, run, run.k, next).row();
    Expand(piece, Half::kKeys);
    AttendBlock(piece);
    key = next;
  }
}

// All rows with the keys of one run, [begin, end).
void AttendKeys(const AttentionTask& task, const Scratch& scratch, int64_t begin, int64_t end,
                const std::byte* next_keys) {
  if (IsLossless(*task.format, task.item->keys.pages)) {
    return AttendLossless(task, scratch, begin, end, next_keys);
  }
  for (int64_t key = begin; key < end;) {
    const int64_t next = std::min(end, NextBound(task, key));
    AttendBlock({task, scratch, 0, key, next - key, next_keys});
    key = next;
  }
}

void StoreStates(const AttentionTask& task, const Scratch& scratch) {
  const bool in_pairs = InPairs(task);
  for (int64_t r = 0; r < task.rows; ++r) {
    const float sum = scratch.sum[r];
    const float inverse = sum == 0.0f ? 0.0f : 1.0f / sum;
    Unshuffle(in_pairs, task.format->head_dim, scratch.o + r * scratch.dim, inverse, scratch.row);
    StoreState(task, r, scratch.row, LogSumOf(scratch.max[r], sum));
  }
}

void AttendFew(const AttentionTask& task, std::byte* data) {
  const FlushDenormals flush;
  const Scratch scratch(data, task.format->head_dim);
  FillRows(task, scratch);
  // Rows are in the order of their positions: the first sees the earliest keys, the last the
  // latest.
  AttendKeys(task, scratch, scratch.begin[0], scratch.end[task.rows - 1],
             task.next == nullptr ? nullptr : FirstPage(task, *task.next));
  StoreStates(task, scratch);
}

void AttendFewRuns(const AttentionTask& whole, PageRuns& runs, std::byte* data) {
  const FlushDenormals flush;
  const Scratch scratch(data, whole.format->head_dim);
  AttentionItem item = *whole.item;
  AttentionTask task = whole;
  task.item = &item;
  RunOfPage run;
  bool more = runs.Next(&run);
  item.keys.pages = run.pages;
  FillRows(task, scratch);
  std::fill_n(scratch.begin, kFewRowsMax, 0);
  std::fill_n(scratch.end, kFewRowsMax, std::numeric_limits<int32_t>::max());
  while (more) {
    item.keys.pages = run.pages;
    for (int64_t row = 0; run.turn.rotary_dim > 0 && row < task.rows; ++row) {
      FillQuery(task, scratch, row, run.turn);
    }
    RunOfPage next;
    more = runs.Next(&next);
    // Where its page would begin if its first slot were this run's.
    const int64_t before =
        (next.pages.first_slot - run.pages.first_slot) * RowBytes(*task.format, run.pages);
    AttendKeys(task, scratch, 0, run.pages.count, more ? next.pages.k + before : nullptr);
    run = next;
  }
  StoreStates(task, scratch);
}

}  // namespace

extern const AttentionFewOps kAttentionFewOps;
const AttentionFewOps kAttentionFewOps = {
    .scratch_bytes = Scratch::Bytes, .attend = AttendFew, .attend_runs = AttendFewRuns};

}  // namespace HWY_NAMESPACE
}  // namespace headway::cpu
HWY_AFTER_NAMESPACE();
#endif  // HWY_AVX2 || HWY_AVX3

#if HWY_ONCE
namespace headway::cpu {

const AttentionFewOps& AttentionFewOpsFor(Isa isa) {
  return isa == Isa::kAvx2 ? N_AVX2::kAttentionFewOps : N_AVX3::kAttentionFewOps;
}

}  // namespace headway::cpu
#endif  // HWY_ONCE
