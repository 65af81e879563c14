// Scratch memory of SelectItem and AttendBlocksItem.
#ifndef HEADWAY_KERNELS_SELECTION_SCRATCH_H_
#define HEADWAY_KERNELS_SELECTION_SCRATCH_H_

#include <cstdint>

#include "base/bytes.h"
#include "kernels/selection.h"

namespace headway {

// Scratch of `queries` of a KV head that share shares: query heads, or their pooled queries. They
// make so many lists of a head.
constexpr int64_t SelectQueriesBytes(int heads, int64_t queries, int64_t blocks,
                                     int64_t lists = 1) {
  constexpr int64_t kLine = 256;
  return RoundUp(heads * queries * blocks * int64_t{sizeof(float)}, kLine) +    // scores
         RoundUp(heads * queries * int64_t{1280}, kLine) +                      // queries, and sums
         lists * (RoundUp(heads * blocks * int64_t{sizeof(uint16_t)}, kLine) +  // codes of worth
                  RoundUp(heads * int64_t{2048} * int64_t{sizeof(uint32_t)}, kLine));  // histograms
}

// Candidates of all blocks of rows, at most so many of a head.
constexpr int64_t RowCandidatesBytes(int heads, int64_t rows, int64_t candidates) {
  constexpr int64_t kLine = 256;
  return RoundUp(CeilDiv(rows, kSelectRows) * heads * (candidates + 1) * int64_t{sizeof(int32_t)},
                 kLine);
}

// Scratch of a second look at the sketches of `candidates` blocks of a head, at most.
constexpr int64_t SketchLookBytes(int heads, int group, int64_t candidates) {
  constexpr int64_t kLine = 256;
  // Tops and masses.
  return 2 * RoundUp(int64_t{heads} * group * candidates * int64_t{sizeof(float)}, kLine);
}

// Scratch of SelectItem and AttendBlocksItem, for at most these many blocks of a head, segments of
// all head groups, and rows. Blocks of rows are scored one after the other, or some together, where
// kSelectRowsBytes hold more than one. `candidates`: of one row, CandidateLists::capacity where a
// second look is at sketches; of more rows, what the first of two looks lists of a head at most;
// else 0.
inline constexpr int64_t kSelectRowsBytes = int64_t{64} << 20;
constexpr int64_t SelectScratchBytes(int heads, int group, int64_t blocks, int64_t segments,
                                     int64_t rows = 1, int64_t candidates = 0) {
  constexpr int64_t kLine = 256;
  const int64_t places = RoundUp(segments * int64_t{sizeof(SegmentPlace)}, kLine);
  if (rows == 1) {
    return places + SelectQueriesBytes(heads, group, blocks) +
           SketchLookBytes(heads, group, candidates);
  }
  constexpr int64_t kPools = kSelectRows / kPoolRows;
  const int64_t all =
      CeilDiv(rows, kSelectRows) * SelectQueriesBytes(heads, group * kPools, blocks);
  const int64_t some = all < kSelectRowsBytes ? all : kSelectRowsBytes;
  // As many pools of a first look make lists of more blocks of rows.
  const int64_t lists = candidates > 0 ? kSearchRows / kPoolRows : 1;
  const int64_t least = SelectQueriesBytes(heads, group * kPools, blocks, lists);
  return places + (some > least ? some : least) +
         (candidates > 0 ? RowCandidatesBytes(heads, rows, candidates) : 0);
}

// Of AttendBlocksItem with a split: where segments lie, and a number of each block that may be
// listed. However many blocks its keys have, a SelectItem's scratch memory holds it, if that was
// for as many segments and for no fewer blocks than heads list.
constexpr int64_t AttendScratchBytes(int heads, int64_t capacity, int64_t segments) {
  constexpr int64_t kLine = 256;
  return RoundUp(segments * int64_t{sizeof(SegmentPlace)}, kLine) +
         RoundUp(heads * capacity * int64_t{sizeof(int32_t)}, kLine);
}

// SelectScratchBytes of SummaryKind::kStages and more rows than one; `entries`: the most
// StageEntries.
constexpr int64_t SelectStagesBytes(int heads, int group, int64_t blocks, int64_t segments,
                                    int64_t rows, int64_t entries) {
  constexpr int64_t kLine = 256;
  const int64_t queries = group * CeilDiv(kSelectRows, StageRowStep(group));
  return RoundUp(segments * int64_t{sizeof(SegmentPlace)}, kLine) +
         RoundUp(heads * blocks * int64_t{sizeof(int32_t)}, kLine) +  // codes, or lines of blocks
         RoundUp(heads * queries * int64_t{1280}, kLine) +
         RoundUp(CeilDiv(rows, kSelectRows) * heads * (entries + kChunkStages) *
                     int64_t{sizeof(int32_t)},
                 kLine);
}

}  // namespace headway

#endif  // HEADWAY_KERNELS_SELECTION_SCRATCH_H_
