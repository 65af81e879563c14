// Where the kernels of selection find blocks, and what they share of a call's scratch memory.
#ifndef HEADWAY_KERNELS_CUDA_SELECTION_KEYS_H_
#define HEADWAY_KERNELS_CUDA_SELECTION_KEYS_H_

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "base/bytes.h"
#include "kernels/cuda/divisor.h"
#include "kernels/cuda/row_turn.h"
#include "kernels/cuda/selection.h"
#include "kernels/cuda/selection_top_p.h"
#include "kernels/selection.h"
#include "kernels/selection_math.h"

namespace headway::cuda {

// Segments whose places travel in the parameters of a launch; more lie in a table in scratch
// memory, which costs launches that write it.
inline constexpr int kInlinePlaces = 304;

// BlockedKeys as kernels have them: where the segments' slabs lie, or their summaries.
struct BlockTable {
  const std::byte* const* table;  // null: `places` has them
  int32_t group_segments;         // segments of a head group
  int32_t blocks;
  Divisor group_heads;
  Divisor segment_blocks;
  const uint32_t* version_table;  // beside `table`
  const std::byte* places[kInlinePlaces];
  uint32_t versions[kInlinePlaces];  // of slabs: SegmentPlace::version
  static constexpr size_t kPlacesBytes = sizeof(places) + sizeof(versions);  // its last ones

  // The segment of a head's block. The block's number within its segment is left in `block`.
  __device__ const std::byte* Find(int head, int& block) const { return Place(Index(head, block)); }
  // The same where each lane has a block of its own.
  __device__ const std::byte* FindOfLane(int head, int& block) const {
    return (table == nullptr ? InMemory(places) : table)[Index(head, block)];
  }
  // In two steps: its number.
  __device__ int Index(int head, int& block) const {
    return group_heads.Divide(head) * group_segments + SegmentOf(block);
  }
  // The same within its head group.
  __device__ int SegmentOf(int& block) const {
    const int segment = segment_blocks.Divide(block);
    block = segment_blocks.Rest(block, segment);
    return segment;
  }
  __device__ int InGroup(int head) const {
    return group_heads.Rest(head, group_heads.Divide(head));
  }
  __device__ const std::byte* Place(int index) const {
    return table == nullptr ? places[index] : table[index];
  }
  __device__ uint32_t VersionOfLane(int index) const {
    return (table == nullptr ? InMemory(versions) : version_table)[index];
  }

 private:
  // Memory answers lanes that ask for places of their own together, the constants where parameters
  // lie one by one. So the compiler is not to know that these are parameters.
  template <typename T>
  __device__ static const T* InMemory(const T* parameters) {
    asm("" : "+l"(parameters));
    return parameters;
  }
};

// Floats in the order of unsigned integers; NaN apart.
__host__ __device__ constexpr uint32_t OrderedBits(uint32_t bits) {
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}
__host__ __device__ constexpr uint32_t OfOrderedBits(uint32_t ordered) {
  return (ordered & 0x80000000u) != 0 ? ordered & 0x7FFFFFFFu : ~ordered;
}

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
  static_assert(sizeof(QuerySums) + (kTilesMax + 1) * sizeof(float) <= 1280);

  float* scores;             // [query heads, blocks]; then weights, u32, if need be
  uint16_t* codes;           // [heads, blocks]
  uint32_t* histograms;      // [heads, kWorthCodes]
  const std::byte** places;  // [segments]
  QuerySums* query_sums;     // [query heads]
  float* maxima;             // [query heads, kTilesMax]
  // [query heads]: of a second look the largest logits, as OrderedBits; a first look leaves 0.
  uint32_t* tops;

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
    scratch.tops = reinterpret_cast<uint32_t*>(scratch.maxima + query_heads * kTilesMax);
    return scratch;
  }
};
static_assert(selection::kWorthCodes == 2048);

// Multiprocessors of the current device.
int Multiprocessors();

// The table of `keys`, with what `member` points to in each segment; enqueues what fills `places`,
// and versions behind them, where the table has no room for them.
using PlaceMember = const std::byte* SegmentPlace::*;
constexpr int64_t TableBytes(int64_t segments) {
  return RoundUp(segments * int64_t{sizeof(const std::byte*) + sizeof(uint32_t)},
                 int64_t{sizeof(const std::byte*)});
}
static_assert(2 * TableBytes(1) <= int64_t{sizeof(SegmentPlace)});  // one may lie behind another
cudaError_t MakeTable(cudaStream_t stream, const BlockedKeys& keys, PlaceMember member,
                      const std::byte** places, BlockTable& table);

// SegmentPlace as kernels have it, but for summaries and sketches.
struct PlacedSegment {
  const std::byte* slab;
  int32_t position;  // of its first key
  uint32_t version;
};
// Brings the segments of `keys` into a table in device memory.
cudaError_t PlaceSegments(cudaStream_t stream, const BlockedKeys& keys, PlacedSegment* to);

// The positions by which a listed block is rotated on, that and all behind it being `left` blocks.
struct MovedTo {
  int64_t end;  // as BlockMove
  int64_t least;
};
__device__ inline int32_t MoveShift(const MovedTo& to, int left, int64_t segment_position,
                                    int block, int block_slots) {
  const int64_t from = segment_position + int64_t{block} * block_slots;
  return static_cast<int32_t>(max(to.end - int64_t{left} * block_slots, to.least) - from);
}

// Whether rows of parameters lie on 16 bytes.
inline bool ParamsAligned(const BlockedKeys& keys) {
  return keys.params_offset % 16 == 0 && keys.params_page_stride % 16 == 0 &&
         keys.params_head_stride % 16 == 0;
}

// Whether an item has lines that listed blocks may be copied to: pages are copied by 16 bytes, and
// names have room.
bool TakesLines(const SelectionShape& shape, const AttendBlocksItem& item);

// Whether codes of summaries lie on `bytes`, and scales on 8.
bool SummariesAligned(const BlockedKeys& keys, int head_dim, int64_t bytes);

// --- The steps of SelectBlocks.

struct QueryWork {
  const void* q;
  RowTurn turn;
  int32_t q_dtype;
  int32_t head_dim;
  float scale;
};

// Queries, and the summaries that they are multiplied with.
struct SummaryWork {
  QueryWork queries;
  int64_t codes_offset;
  int64_t codes_head_stride;
  int64_t scales_offset;
  int64_t scales_head_stride;
  BlockTable table;
};

struct ScoreWork : SummaryWork {
  SelectionScratch scratch;
  int32_t heads;
  int32_t group;
};
// Scores of all blocks, and the largest of each tile; `tiles` says how many there are. Clears what
// the steps behind add to (ClearSums). Codes are read 16 bytes at a time where `wide` says so.
enum class CodeLoads : uint8_t { kBytes8, kBytes16 };
cudaError_t ScoreBlocks(cudaStream_t stream, SummaryKind kind, CodeLoads loads,
                        const ScoreWork& work, int tiles);

// What sketches say of candidates, in scratch memory behind that of scores.
struct SketchScratch {
  float* tops;       // [query heads, stride]
  uint32_t* masses;  // [query heads, stride]

  static SketchScratch Of(std::byte* memory, int query_heads, int64_t stride) {
    constexpr int64_t kLine = 256;
    const int64_t bytes = RoundUp(query_heads * stride * int64_t{sizeof(float)}, kLine);
    return {reinterpret_cast<float*>(memory), reinterpret_cast<uint32_t*>(memory + bytes)};
  }
};

struct SketchWork {
  ScoreWork score;
  BlockTable table;  // of sketches
  int64_t sketch_head_stride;
  CandidateLists candidates;
  SketchScratch sketches;
  int32_t stride;  // most candidates of a head
  int32_t block_slots;
};
// The largest logit and the mass of each candidate. Clears what the steps behind add to.
cudaError_t LookAtSketches(cudaStream_t stream, CodeLoads loads, const SketchWork& work);

// A list's count joins those of all lists, where they are asked for.
__device__ inline void AddListed(uint64_t* listed_of_all, int count) {
  if (listed_of_all == nullptr) return;
  atomicAdd(reinterpret_cast<unsigned long long*>(listed_of_all),
            static_cast<unsigned long long>(count));
}

// Entry `i` of a head's candidates, as blocks are counted.
__device__ inline int CandidateAt(const CandidateLists& candidates, int head, int i) {
  const int32_t* const blocks = candidates.blocks + head * candidates.capacity;
  const int run = candidates.run;
  return run == 1 ? __ldcg(blocks + i) : __ldcg(blocks + i / run) * run + i % run;
}
__device__ inline int CandidateCount(const CandidateLists& candidates, int head) {
  return __ldcg(candidates.counts + head) * candidates.run;
}

struct ListWork {
  SelectionScratch scratch;
  CandidateLists candidates;  // of a second look; without one, all blocks are chosen among
  SketchScratch sketches;     // of a second look at sketches
  int32_t clear_tops;         // 1: there will be one
  int32_t stride;             // most entries of a head: blocks, or candidates
  int32_t heads;
  int32_t group;
  int32_t blocks;
  int32_t score_tiles;
  int32_t far_begin;
  int32_t far_end;
  int32_t far_blocks;
  TopP top_p;
  int32_t layer;        // 1: the heads share a budget
  int32_t whole_codes;  // 1: all far blocks of the least code that is listed are
  int32_t tiles;        // of a head
  int32_t tile_blocks;  // of all but the last
  int32_t held;         // 1: shared memory has the weights
  int32_t alone;        // 1: no cooperative launch is needed
  int32_t* listed;
  int64_t capacity;
  int32_t* counts;
  uint64_t* listed_of_all;  // SelectItem::listed
};
// What is listed by the scores: of all blocks, or of candidates by their sketches.
enum class Look : uint8_t { kAll, kSketches, kSummaries };
cudaError_t ListBest(cudaStream_t stream, Look look, ListWork work);

// A second look at summaries, from queries to lists in one launch.
struct CandidateWork : SummaryWork {
  ListWork list;
  SummaryKind kind;
};
// `candidates` is the number of those that a head has on average.
cudaError_t ListBestCandidates(cudaStream_t stream, CodeLoads loads, CandidateWork work,
                               int64_t candidates);
// What is listed without them: all blocks but [skip_begin, skip_end).
cudaError_t ListAllBut(cudaStream_t stream, const ListWork& work, int32_t skip_begin,
                       int32_t skip_end);

}  // namespace headway::cuda

#endif  // HEADWAY_KERNELS_CUDA_SELECTION_KEYS_H_
