// The choice of blocks by the rows of a prefill. Some blocks of rows take all steps together, as
// many as scratch memory holds; a step is a kernel, so that nothing waits within one. What a KV
// head's group asks for a block of rows is its pooled queries: kPools of each query head.
#ifndef HEADWAY_KERNELS_CUDA_SELECTION_ROWS_H_
#define HEADWAY_KERNELS_CUDA_SELECTION_ROWS_H_

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "base/bytes.h"
#include "kernels/cuda/selection.h"
#include "kernels/cuda/selection_keys.h"
#include "kernels/cuda/selection_top_p.h"
#include "kernels/selection.h"
#include "kernels/selection_math.h"

namespace headway::cuda {

inline constexpr int kPools = static_cast<int>(kSelectRows / kPoolRows);

// The parts of a pooled query's codes of 16 bits, as bytes: signed high halves and unsigned low
// ones, of what the first row of a summary is multiplied by and of what the second is.
inline constexpr int kCodeParts = 4;
constexpr int CodePart(int row, int low) { return row * 2 + low; }

// Scratch memory of some blocks of rows; a query head of a block of rows is
// [block of rows, KV head, member of the group].
struct RowsScratch {
  uint8_t* codes;                    // [query heads, kCodeParts, kPools, head_dim]
  selection::QueryFactors* factors;  // [query heads, kPools]
  uint64_t* sums;                    // of weights [query heads, kPools]
  uint32_t* tops;                    // the largest scores [query heads, kPools], as OrderedBits
  float* scores;                     // [query heads, blocks, kPools]; then weights, u32
  uint16_t* worths;                  // codes [blocks of rows, KV heads, blocks]
  uint32_t* histograms;              // of them [blocks of rows, KV heads, kWorthCodes]
};

struct RowsWork {
  RowsScratch scratch;
  int32_t rows;        // of the item's, from the first of these blocks on
  int32_t row_blocks;  // that are worked on together
  int32_t heads;
  int32_t group;
  int32_t head_dim;
  int32_t blocks;
  int32_t far_begin;
  int32_t far_end;
  int32_t far_blocks;
  TopP top_p;
  int32_t layer;  // 1: the heads share a budget

  // Pooled queries of a block of rows.
  __device__ int Pools(int row_block) const {
    const int left = rows - row_block * static_cast<int>(kSelectRows);
    return min(kPools, (left + static_cast<int>(kPoolRows) - 1) / static_cast<int>(kPoolRows));
  }
};

// Pools queries, and clears what the steps behind add to. `q` and `turn` begin at the first row.
struct PoolWork {
  RowsWork rows;
  const void* q;
  int64_t q_stride;
  RowTurn turn;
  int32_t q_dtype;
  float scale;
};
cudaError_t PoolQueries(cudaStream_t stream, SummaryKind kind, const PoolWork& work);

// Scores of all blocks, and the largest of each pooled query.
struct ScoreRowsWork {
  RowsWork rows;
  int64_t codes_head_stride;
  int64_t scales_offset;
  int64_t scales_head_stride;
  BlockTable table;
};
static_assert(sizeof(ScoreRowsWork) <= 4096);
cudaError_t ScoreRows(cudaStream_t stream, SummaryKind kind, CodeLoads loads,
                      const ScoreRowsWork& work);

// From scores to weights, worth and lists.
struct ListRowsWork {
  RowsWork rows;
  int32_t* listed;
  int64_t capacity;
  int32_t* counts;
};
cudaError_t ListRows(cudaStream_t stream, const ListRowsWork& work);

// The choice of an item.
cudaError_t SelectRows(cudaStream_t stream, const SelectionShape& shape, const SelectItem& item);

}  // namespace headway::cuda

#endif  // HEADWAY_KERNELS_CUDA_SELECTION_ROWS_H_
