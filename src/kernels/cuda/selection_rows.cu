// The choice of blocks by the rows of a prefill: its looks, and their steps, for as many bands of
// rows at a time as scratch memory holds.
#include "kernels/cuda/selection_rows.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>

#include "kernels/cuda/memory.h"
#include "kernels/cuda/workspace.h"
#include "kernels/selection_scratch.h"

namespace headway::cuda {
namespace {

constexpr int64_t kLine = 256;

// A look of all rows.
struct RowsLook {
  int64_t pool_rows = kPoolRows;
  SelectionBudget budget;
  CandidateLists among;        // of all blocks of rows; without them, all blocks are chosen among
  CandidateLists lists;        // written
  uint64_t* listed = nullptr;  // SelectItem::listed, of the look that makes its lists

  int64_t band_rows() const { return kPools * pool_rows; }
  int64_t band_lists() const { return band_rows() / kSelectRows; }
};

// From the lists of a block of rows on.
CandidateLists From(CandidateLists lists, int64_t first) {
  if (lists.blocks == nullptr) return lists;
  lists.blocks += first * lists.capacity;
  lists.counts += first;
  return lists;
}

RowsScratch ScratchOf(std::byte* memory, const RowsWork& work) {
  const auto take = [&memory](int64_t bytes) {
    std::byte* const at = memory;
    memory += bytes;
    return at;
  };
  const int64_t lists = int64_t{work.bands} * work.band_lists * work.heads;
  const int64_t query_heads = int64_t{work.bands} * work.heads * work.group;
  const int64_t pooled = query_heads * kPools;
  RowsScratch scratch = {};
  scratch.scores = reinterpret_cast<float*>(take(pooled * work.entries * 4));
  scratch.histograms = reinterpret_cast<uint32_t*>(take(lists * selection::kWorthCodes * 4));
  scratch.factors = reinterpret_cast<selection::QueryFactors*>(take(pooled * 8));
  scratch.sums = reinterpret_cast<uint64_t*>(take(pooled * 8));
  scratch.tops = reinterpret_cast<uint32_t*>(take(pooled * 4));
  scratch.codes =
      reinterpret_cast<uint32_t*>(take(pooled * kCodeParts * RowCodesDim(work.head_dim)));
  scratch.worths = reinterpret_cast<uint16_t*>(memory);
  return scratch;
}
// Nothing is left between these, and each begins on 16 bytes; the sums are below what is reserved.
static_assert(8 + 8 + 4 + kCodeParts * kHeadDimMax <= 1280);
static_assert(sizeof(selection::QueryFactors) == 8);

RowsWork WorkOf(const SelectionShape& shape, const SelectItem& item, const RowsLook& look) {
  const BlockedKeys& keys = item.keys;
  const SelectionBudget& budget = look.budget;
  RowsWork work = {};
  work.pool_rows = static_cast<int32_t>(look.pool_rows);
  work.band_lists = static_cast<int32_t>(look.band_lists());
  work.heads = keys.heads;
  work.group = shape.group;
  work.head_dim = shape.format.head_dim;
  work.blocks = static_cast<int32_t>(keys.blocks);
  work.far_begin = static_cast<int32_t>(budget.far_begin);
  work.far_end = static_cast<int32_t>(budget.far_end);
  work.far_step = static_cast<int32_t>(budget.far_step);
  work.far_blocks =
      static_cast<int32_t>(std::min(budget.far_blocks, budget.far_end - budget.far_begin));
  work.top_p = TopP::Of(budget);
  work.layer = budget.share == BudgetShare::kLayer ? 1 : 0;
  work.entries = static_cast<int32_t>(
      look.among.blocks == nullptr ? keys.blocks : std::min(look.among.capacity, keys.blocks));
  return work;
}

// Bands that take their steps together: grids have room for them, too.
int64_t BandsAtOnce(const RowsWork& work) {
  constexpr int64_t kGridMax = 65535;
  const int64_t one =
      SelectQueriesBytes(work.heads, int64_t{work.group} * kPools, work.entries, work.band_lists);
  return std::max<int64_t>(
      1, std::min(kSelectRowsBytes / one, kGridMax / (int64_t{work.heads} * work.group)));
}

// The steps of a look of some bands, from row `first` on.
cudaError_t LookAtSome(cudaStream_t stream, const SelectionShape& shape, const SelectItem& item,
                       int64_t first, const ListRowsWork& list, ScoreRowsWork& score) {
  PoolWork pool = {};
  pool.rows = list.rows;
  pool.q = static_cast<const std::byte*>(item.q) +
           first * item.q_stride * static_cast<int64_t>(DTypeBytes(shape.activation));
  pool.q_stride = item.q_stride;
  pool.turn = RowTurn::On(item.turn).From(first);
  pool.q_dtype = static_cast<int32_t>(shape.activation);
  pool.straight = pool.turn.rotary_dim == 0 && Aligned(pool.q) && item.q_stride % 8 == 0 ? 1 : 0;
  pool.scale = shape.scale;
  const CodeLoads loads = SummariesAligned(item.keys, shape.format.head_dim, 16)
                              ? CodeLoads::kBytes16
                              : CodeLoads::kBytes8;
  pool.load_words = loads == CodeLoads::kBytes16 ? 4 : 2;
  cudaError_t error = PoolQueries(stream, shape.summary.kind, pool);
  if (error != cudaSuccess) return error;
  score.rows = list.rows;
  error = ScoreRows(stream, shape.summary.kind, loads, score);
  return error == cudaSuccess ? ListRows(stream, list) : error;
}

cudaError_t LookInTurns(cudaStream_t stream, const SelectionShape& shape, const SelectItem& item,
                        const RowsLook& look, std::byte* memory, ScoreRowsWork& score) {
  RowsWork work = WorkOf(shape, item, look);
  const int64_t bands = CeilDiv(item.rows, look.band_rows());
  const int64_t at_once = BandsAtOnce(work);
  for (int64_t first = 0; first < bands; first += at_once) {
    const int64_t first_row = first * look.band_rows();
    const int64_t first_list = first * look.band_lists() * item.keys.heads;
    work.rows = static_cast<int32_t>(item.rows - first_row);
    work.first_block = static_cast<int32_t>(first * look.band_lists());
    work.bands = static_cast<int32_t>(std::min(at_once, bands - first));
    work.among = From(look.among, first_list);
    work.scratch = ScratchOf(memory, work);
    const cudaError_t error = LookAtSome(stream, shape, item, first_row,
                                         {work, From(look.lists, first_list), look.listed}, score);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace

cudaError_t SelectRows(cudaStream_t stream, const SelectionShape& shape, const SelectItem& item) {
  const BlockedKeys& keys = item.keys;
  if (item.rows > std::numeric_limits<int32_t>::max() / 2) return cudaErrorInvalidValue;
  ScoreRowsWork score = {};
  score.codes_head_stride = keys.codes_head_stride;
  score.scales_offset = keys.scales_offset;
  score.scales_head_stride = keys.scales_head_stride;
  cudaError_t error = MakeTable(stream, keys, &SegmentPlace::summary,
                                reinterpret_cast<const std::byte**>(item.scratch), score.table);
  if (error != cudaSuccess) return error;
  std::byte* memory =
      item.scratch +
      RoundUp(std::ssize(keys.segments) * static_cast<int64_t>(sizeof(SegmentPlace)), kLine);
  RowsLook look;
  look.budget = item.budget;
  look.lists = {item.blocks, item.capacity, item.counts};
  look.listed = item.listed;
  if (item.looks_twice()) {
    RowsLook search;
    search.pool_rows = kSearchRows;
    search.budget = item.OfCandidates();
    search.lists.capacity = search.budget.Capacity(keys.blocks, keys.heads);
    search.lists.blocks = reinterpret_cast<int32_t*>(memory);
    search.lists.counts =
        search.lists.blocks + item.row_blocks() * keys.heads * search.lists.capacity;
    memory += RowCandidatesBytes(keys.heads, item.rows, search.lists.capacity);
    error = LookInTurns(stream, shape, item, search, memory, score);
    if (error != cudaSuccess) return error;
    look.among = search.lists;
  }
  return LookInTurns(stream, shape, item, look, memory, score);
}

}  // namespace headway::cuda
