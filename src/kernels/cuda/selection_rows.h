// The choice of blocks by the rows of a prefill, in one look or two. Rows are worked on in bands,
// kPools pools of rows each: a block of rows, or in the first of two looks, whose pools are larger,
// some of them. Some bands take the steps of a look together, as many as scratch memory holds; a
// step is a kernel, so that nothing waits within one.
#ifndef HEADWAY_KERNELS_CUDA_SELECTION_ROWS_H_
#define HEADWAY_KERNELS_CUDA_SELECTION_ROWS_H_

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "base/bytes.h"
#include "kernels/cuda/selection.h"
#include "kernels/cuda/selection_keys.h"
#include "kernels/cuda/selection_top_p.h"
#include "kernels/cuda/workspace.h"
#include "kernels/selection.h"
#include "kernels/selection_math.h"

namespace headway::cuda {

inline constexpr int kPools = static_cast<int>(kSelectRows / kPoolRows);
// Blocks of rows, of which each makes a list, in a band of the first of two looks.
inline constexpr int kSearchLists = static_cast<int>(kPools * kSearchRows / kSelectRows);
static_assert(kSelectRows % kSearchRows == 0 && kSearchRows % kPoolRows == 0);

// The parts of a pooled query's codes of 16 bits, as bytes: signed high halves and unsigned low
// ones, of what the first row of a summary is multiplied by and of what the second is.
inline constexpr int kCodeParts = 4;
constexpr int CodePart(int row, int low) { return row * 2 + low; }
// Their channels, with zeros behind the head's.
__host__ __device__ constexpr int RowCodesDim(int head_dim) {
  return head_dim <= 64 ? 64 : head_dim <= 128 ? 128 : kHeadDimMax;
}

// Scratch memory of some bands; a query head of a band is [band, KV head, member of the group]. A
// list is that of a block of rows and KV head [blocks of rows, KV heads].
struct RowsScratch {
  // [query heads, kCodeParts, steps of 32 channels, kPools, lanes of a row, words]: two words that
  // are a lane's factors of a product (code_products.h).
  uint32_t* codes;
  selection::QueryFactors* factors;  // [query heads, kPools]
  uint64_t* sums;                    // of weights [query heads, kPools]
  uint32_t* tops;                    // the largest scores [query heads, kPools], as OrderedBits
  float* scores;                     // [query heads, entries, kPools]; then weights, u32
  uint16_t* worths;                  // codes [lists, entries]
  uint32_t* histograms;              // of them [lists, kWorthCodes]
};

struct RowsWork {
  RowsScratch scratch;
  int32_t rows;         // of the item's, from the first of these bands on
  int32_t first_block;  // of rows, of these bands
  int32_t bands;
  int32_t pool_rows;
  int32_t band_lists;  // of a head: 1, or kSearchLists
  int32_t heads;
  int32_t group;
  int32_t head_dim;
  int32_t blocks;
  int32_t far_begin;
  int32_t far_end;
  int32_t far_step;
  int32_t far_blocks;
  TopP top_p;
  int32_t layer;         // 1: the heads share a budget
  int32_t entries;       // most of what a list is chosen among: blocks, or candidates
  CandidateLists among;  // of the lists at hand; without them, all blocks are chosen among

  // Pooled queries of a band.
  __device__ int Pools(int band) const {
    const int left = rows - band * kPools * pool_rows;
    return min(kPools, (left + pool_rows - 1) / pool_rows);
  }
  __device__ int Entries(int64_t list) const {
    return among.blocks == nullptr ? blocks : __ldcg(among.counts + list);
  }
  __device__ int BlockAt(int64_t list, int entry) const {
    return among.blocks == nullptr ? entry : __ldcg(among.blocks + list * among.capacity + entry);
  }
  // Entries of a list behind the far ones, all of which are listed; below 0: none.
  __device__ int Near(int64_t list) const {
    return blocks - far_end - (first_block + static_cast<int>(list / heads)) * far_step;
  }
};

// Pools queries, and clears what the steps behind add to. `q` and `turn` begin at the first row.
struct PoolWork {
  RowsWork rows;
  const void* q;
  int64_t q_stride;
  RowTurn turn;
  int32_t q_dtype;
  int32_t straight;  // 1: queries are not turned, and four of their channels may be loaded at once
  int32_t load_words;  // CodeLoads, in words of four codes
  float scale;
};
cudaError_t PoolQueries(cudaStream_t stream, SummaryKind kind, const PoolWork& work);

// Scores of all entries, and the largest of each pooled query.
struct ScoreRowsWork {
  RowsWork rows;
  int64_t codes_head_stride;
  int64_t scales_offset;
  int64_t scales_head_stride;
  int32_t tile_blocks;  // entries that a block of threads scores; ScoreRows sets it
  BlockTable table;
};
static_assert(sizeof(ScoreRowsWork) <= 4096);
cudaError_t ScoreRows(cudaStream_t stream, SummaryKind kind, CodeLoads loads,
                      const ScoreRowsWork& work);

// From scores to weights, worth and lists.
struct ListRowsWork {
  RowsWork rows;
  CandidateLists lists;
  uint64_t* listed_of_all;  // SelectItem::listed
};
cudaError_t ListRows(cudaStream_t stream, const ListRowsWork& work);

// The choice of an item.
cudaError_t SelectRows(cudaStream_t stream, const SelectionShape& shape, const SelectItem& item);

}  // namespace headway::cuda

#endif  // HEADWAY_KERNELS_CUDA_SELECTION_ROWS_H_
