// Where the kernels of selection find blocks, and what they share of a call's scratch memory.
#ifndef HEADWAY_KERNELS_CUDA_SELECTION_KEYS_H_
#define HEADWAY_KERNELS_CUDA_SELECTION_KEYS_H_

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "base/bytes.h"
#include "kernels/cuda/row_turn.h"
#include "kernels/cuda/selection.h"
#include "kernels/selection.h"
#include "kernels/selection_math.h"

namespace headway::cuda {

// Segments whose places travel in the parameters of a launch; more lie in a table in scratch
// memory, which costs launches that write it.
inline constexpr int kInlinePlaces = 472;

// BlockedKeys as kernels have them: where the segments' slabs lie, or their summaries.
struct BlockTable {
  const std::byte* const* table;  // null: `places` has them
  int32_t group_segments;         // segments of a head group
  int32_t group_heads;
  int32_t blocks;
  int32_t segment_blocks;
  const std::byte* places[kInlinePlaces];

  // The segment of a head's block. The block's number within its segment is left in `block`.
  __device__ const std::byte* Find(int head, int& block) const {
    const int segment = block / segment_blocks;
    block -= segment * segment_blocks;
    const int index = head / group_heads * group_segments + segment;
    return table == nullptr ? places[index] : table[index];
  }
};

// The scratch memory of a call.
struct SelectionScratch {
  // Scores are made of at most so many tiles of a head's blocks, each with its maxima.
  static constexpr int kTilesMax = 64;
  // What makes lists of them cuts a head's blocks into at most so many.
  static constexpr int kListTilesMax = 44;

  // Of a query head: what its tiles tell each other, with a bit that says that it is there.
  struct QuerySums {
    uint64_t sums[kListTilesMax];  // of weights
    uint64_t told[kListTilesMax];  // used of a KV head's first query head only: see List
    uint32_t arrived;              // used of the first only: see WaitForAll
  };
  static_assert(sizeof(QuerySums) + kTilesMax * sizeof(float) <= 1024);

  float* scores;             // [query heads, blocks]; then weights, u32, if need be
  uint16_t* codes;           // [heads, blocks]
  uint32_t* histograms;      // [heads, kWorthCodes]
  const std::byte** places;  // [segments]
  QuerySums* query_sums;     // [query heads]
  float* maxima;             // [query heads, kTilesMax]

  static SelectionScratch Of(std::byte* memory, int heads, int group, int64_t blocks,
                             int64_t segments) {
    constexpr int64_t kLine = 256;
    const int64_t query_heads = int64_t{heads} * group;
    SelectionScratch scratch = {};
    const auto take = [&memory](int64_t bytes) {
      std::byte* const at = memory;
      memory += RoundUp(bytes, kLine);
      return at;
    };
    scratch.scores = reinterpret_cast<float*>(take(query_heads * blocks * 4));
    scratch.codes = reinterpret_cast<uint16_t*>(take(heads * blocks * 2));
    scratch.histograms = reinterpret_cast<uint32_t*>(take(int64_t{heads} * 2048 * 4));
    scratch.places = reinterpret_cast<const std::byte**>(
        take(segments * static_cast<int64_t>(sizeof(SegmentPlace))));
    scratch.query_sums = reinterpret_cast<QuerySums*>(memory);
    scratch.maxima = reinterpret_cast<float*>(scratch.query_sums + query_heads);
    return scratch;
  }
};
static_assert(selection::kWorthCodes == 2048);

// Multiprocessors of the current device.
int Multiprocessors();

// The table of `keys`, with what `member` points to in each segment; enqueues what fills `places`
// where the table has no room for them.
using PlaceMember = const std::byte* SegmentPlace::*;
cudaError_t MakeTable(cudaStream_t stream, const BlockedKeys& keys, PlaceMember member,
                      const std::byte** places, BlockTable& table);

// Whether rows of parameters lie on 16 bytes.
inline bool ParamsAligned(const BlockedKeys& keys) {
  return keys.params_offset % 16 == 0 && keys.params_page_stride % 16 == 0 &&
         keys.params_head_stride % 16 == 0;
}

// Whether codes of summaries lie on `bytes`, and scales on 8.
bool SummariesAligned(const BlockedKeys& keys, int head_dim, int64_t bytes);

// --- The steps of SelectBlocks.

struct ScoreWork {
  const void* q;
  RowTurn turn;
  SelectionScratch scratch;
  int32_t q_dtype;
  int32_t head_dim;
  int32_t heads;
  int32_t group;
  float scale;
  int64_t codes_head_stride;
  int64_t scales_offset;
  int64_t scales_head_stride;
  BlockTable table;
};
// Scores of all blocks, and the largest of each tile; `tiles` says how many there are. Clears what
// the steps behind add to (ClearForLists). Codes are read 16 bytes at a time where `wide` says so.
enum class CodeLoads : uint8_t { kBytes8, kBytes16 };
cudaError_t ScoreBlocks(cudaStream_t stream, SummaryKind kind, CodeLoads loads,
                        const ScoreWork& work, int tiles);

struct ListWork {
  SelectionScratch scratch;
  int32_t heads;
  int32_t group;
  int32_t blocks;
  int32_t score_tiles;
  int32_t far_begin;
  int32_t far_end;
  int32_t far_blocks;
  int32_t layer;        // 1: the heads share a budget
  int32_t tiles;        // of a head
  int32_t tile_blocks;  // of all but the last
  int32_t held;         // 1: shared memory has the weights
  int32_t* listed;
  int64_t capacity;
  int32_t* counts;
};
// Histograms, sums and counts, which ListBest takes to be 0: all threads of what makes scores.
__device__ inline void ClearForLists(const SelectionScratch& scratch, int heads, int group) {
  const int64_t threads = int64_t{gridDim.x} * gridDim.y * gridDim.z * blockDim.x;
  const int64_t block = (int64_t{blockIdx.z} * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  const int64_t thread = block * blockDim.x + threadIdx.x;
  for (int64_t i = thread; i < int64_t{heads} * selection::kWorthCodes; i += threads) {
    scratch.histograms[i] = 0;
  }
  auto* sums = reinterpret_cast<uint64_t*>(scratch.query_sums);
  constexpr int64_t kWords = sizeof(SelectionScratch::QuerySums) / sizeof(uint64_t);
  for (int64_t i = thread; i < int64_t{heads} * group * kWords; i += threads) {
    sums[i] = 0;
  }
}
// What is listed by the scores.
cudaError_t ListBest(cudaStream_t stream, ListWork work);
// What is listed without them: all blocks but [skip_begin, skip_end).
cudaError_t ListAllBut(cudaStream_t stream, const ListWork& work, int32_t skip_begin,
                       int32_t skip_end);

}  // namespace headway::cuda

#endif  // HEADWAY_KERNELS_CUDA_SELECTION_KEYS_H_
