// The choice of blocks by the rows of a prefill: its steps, for as many blocks of rows at a time as
// scratch memory holds.
#include "kernels/cuda/selection_rows.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>

#include "kernels/cuda/workspace.h"

namespace headway::cuda {
namespace {

constexpr int64_t kLine = 256;

// Blocks of rows that take their steps together: grids have room for them, too.
int64_t RowBlocksAtOnce(int heads, int group, int64_t blocks, int64_t row_blocks) {
  constexpr int64_t kGridMax = 65535;
  const int64_t one = SelectQueriesBytes(heads, int64_t{group} * kPools, blocks);
  return std::clamp<int64_t>(std::min(kSelectRowsBytes / one, kGridMax / (int64_t{heads} * group)),
                             1, row_blocks);
}

RowsScratch ScratchOf(std::byte* memory, const RowsWork& work) {
  const auto take = [&memory](int64_t bytes) {
    std::byte* const at = memory;
    memory += bytes;
    return at;
  };
  const int64_t lists = int64_t{work.row_blocks} * work.heads;
  const int64_t query_heads = lists * work.group;
  const int64_t pooled = query_heads * kPools;
  RowsScratch scratch = {};
  scratch.scores = reinterpret_cast<float*>(take(pooled * work.blocks * 4));
  scratch.histograms = reinterpret_cast<uint32_t*>(take(lists * selection::kWorthCodes * 4));
  scratch.factors = reinterpret_cast<selection::QueryFactors*>(take(pooled * 8));
  scratch.sums = reinterpret_cast<uint64_t*>(take(pooled * 8));
  scratch.tops = reinterpret_cast<uint32_t*>(take(pooled * 4));
  scratch.codes = reinterpret_cast<uint8_t*>(take(pooled * kCodeParts * work.head_dim));
  scratch.worths = reinterpret_cast<uint16_t*>(memory);
  return scratch;
}
// Nothing is left between these, and each begins on 16 bytes; the sums are below what is reserved.
static_assert(8 + 8 + 4 + kCodeParts * kHeadDimMax <= 1280);
static_assert(sizeof(selection::QueryFactors) == 8);

// The memory of some blocks of rows from the first on.
struct RowsOfItem {
  RowsWork work;
  int64_t first_row;
};

cudaError_t SelectSome(cudaStream_t stream, const SelectionShape& shape, const SelectItem& item,
                       const RowsOfItem& some, ScoreRowsWork& score) {
  const int64_t first = some.first_row;
  PoolWork pool = {};
  pool.rows = some.work;
  pool.q = static_cast<const std::byte*>(item.q) +
           first * item.q_stride * static_cast<int64_t>(DTypeBytes(shape.activation));
  pool.q_stride = item.q_stride;
  pool.turn = RowTurn::On(item.turn).From(first);
  pool.q_dtype = static_cast<int32_t>(shape.activation);
  pool.scale = shape.scale;
  cudaError_t error = PoolQueries(stream, shape.summary.kind, pool);
  if (error != cudaSuccess) return error;
  score.rows = some.work;
  const CodeLoads loads = SummariesAligned(item.keys, shape.format.head_dim, 16)
                              ? CodeLoads::kBytes16
                              : CodeLoads::kBytes8;
  error = ScoreRows(stream, shape.summary.kind, loads, score);
  if (error != cudaSuccess) return error;
  const int64_t list = first / kSelectRows * item.keys.heads;
  return ListRows(
      stream, {some.work, item.blocks + list * item.capacity, item.capacity, item.counts + list});
}

}  // namespace

cudaError_t SelectRows(cudaStream_t stream, const SelectionShape& shape, const SelectItem& item) {
  const BlockedKeys& keys = item.keys;
  const SelectionBudget& budget = item.budget;
  if (item.rows > std::numeric_limits<int32_t>::max() / 2) return cudaErrorInvalidValue;
  ScoreRowsWork score = {};
  score.codes_head_stride = keys.codes_head_stride;
  score.scales_offset = keys.scales_offset;
  score.scales_head_stride = keys.scales_head_stride;
  const cudaError_t error =
      MakeTable(stream, keys, &SegmentPlace::summary,
                reinterpret_cast<const std::byte**>(item.scratch), score.table);
  if (error != cudaSuccess) return error;
  std::byte* const memory =
      item.scratch +
      RoundUp(std::ssize(keys.segments) * static_cast<int64_t>(sizeof(SegmentPlace)), kLine);
  const int64_t at_once = RowBlocksAtOnce(keys.heads, shape.group, keys.blocks, item.row_blocks());
  for (int64_t first = 0; first < item.row_blocks(); first += at_once) {
    RowsOfItem some = {};
    some.first_row = first * kSelectRows;
    RowsWork& work = some.work;
    work.rows = static_cast<int32_t>(item.rows - some.first_row);
    work.row_blocks = static_cast<int32_t>(std::min(at_once, item.row_blocks() - first));
    work.heads = keys.heads;
    work.group = shape.group;
    work.head_dim = shape.format.head_dim;
    work.blocks = static_cast<int32_t>(keys.blocks);
    work.far_begin = static_cast<int32_t>(budget.far_begin);
    work.far_end = static_cast<int32_t>(budget.far_end);
    work.far_blocks =
        static_cast<int32_t>(std::min(budget.far_blocks, budget.far_end - budget.far_begin));
    work.top_p = TopP::Of(budget);
    work.layer = budget.share == BudgetShare::kLayer ? 1 : 0;
    work.scratch = ScratchOf(memory, work);
    const cudaError_t done = SelectSome(stream, shape, item, some, score);
    if (done != cudaSuccess) return done;
  }
  return cudaSuccess;
}

}  // namespace headway::cuda
