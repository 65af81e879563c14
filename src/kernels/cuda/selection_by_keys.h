// Choosing blocks by the keys themselves, which are read where they lie: SummaryKind::kMasses and
// kStages. The numbers are those of selection_key_math.h: files that include this are compiled
// without contraction of products and sums.
#ifndef HEADWAY_KERNELS_CUDA_SELECTION_BY_KEYS_H_
#define HEADWAY_KERNELS_CUDA_SELECTION_BY_KEYS_H_

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "base/fp8.h"
#include "kernels/cuda/elements.h"
#include "kernels/cuda/selection_attend_rows.h"
#include "kernels/cuda/selection_keys.h"
#include "kernels/cuda/selection_queries.h"
#include "kernels/cuda/warp.h"
#include "kernels/cuda/workspace.h"
#include "kernels/selection_bound.h"
#include "kernels/selection_key_math.h"

namespace headway::cuda {

struct KeyWork;
// Enqueues what fills the table, where it has no room for all places.
cudaError_t MakeKeyWork(cudaStream_t stream, const SelectionShape& shape, const SelectItem& item,
                        const SelectionScratch& scratch, KeyWork& work);

// What is listed of an item, for which there is something to choose.
cudaError_t SelectByKeys(cudaStream_t stream, const SelectionShape& shape, const SelectItem& item,
                         const ListWork& list);

struct KeyWork {
  QueryWork queries;
  SelectionScratch scratch;
  int64_t page_stride;
  int64_t head_stride;
  int64_t params_offset;
  int64_t params_page_stride;
  int64_t params_head_stride;
  int32_t heads;
  int32_t group;
  int32_t block_slots;
  int32_t page_slots;
  BlockTable table;
};

// What a bound's lists are made of, of an item whose first lists there are.
struct SampleWork {
  KeyWork keys;
  MassBound bound;
  const int32_t* listed;
  int64_t capacity;
  const int32_t* counts;
  int32_t far_begin;
  int32_t far_end;

  __device__ int SampledBlock(int head, int sample) const {
    const selection::SampledBlock sampled =
        selection::SampleOf(bound.seed, head, sample, far_end - far_begin);
    return far_begin + static_cast<int>(sampled.block);
  }
};
// Scores of what is listed, [query heads, blocks], and of the sample, [query heads, kTilesMax];
// `blocks` are about as many as a head lists.
cudaError_t ScoreSample(cudaStream_t stream, Rows rows, const SampleWork& work, int64_t blocks);

// Makes the lists of an item with a bound, whose first ones ListBest has made: as long as the bound
// asks for.
cudaError_t LengthenLists(cudaStream_t stream, const SelectionShape& shape, const SelectItem& item,
                          const ListWork& list);

// Scores of all blocks, and the largest of each tile, as ScoreBlocks makes them.
cudaError_t ScoreMasses(cudaStream_t stream, Rows rows, const KeyWork& work, int tiles);

// Chunks of far blocks: those of the stage before that survived, each in pieces, or all.
struct Chunks {
  CandidateLists survivors;  // the first block of each; without blocks: all far blocks
  int32_t parent;            // blocks of one that survived
  int32_t blocks;            // of a piece
  int32_t count;             // pieces of a head; those of a shorter chunk may lack the last ones
  int32_t far_begin;
  int32_t far_end;

  // The first block of a piece of a list; `far_end` where there is no such piece.
  __device__ int Begin(int list, int index) const {
    if (survivors.blocks == nullptr) return far_begin + index * blocks;
    const int pieces = parent / blocks;
    const int survivor = index / pieces;
    if (survivor >= survivors.counts[list]) return far_end;
    const int from = survivors.blocks[list * survivors.capacity + survivor];
    return min(far_end, from + index % pieces * blocks);
  }
  // The pieces of a list that there are, which are its first ones: at least one.
  __device__ int There(int list) const {
    if (survivors.blocks == nullptr) return count;
    const int whole = survivors.counts[list] - 1;  // chunks of the stage before but the last
    const int last = survivors.blocks[list * survivors.capacity + whole];
    const int pieces = parent / blocks;
    return whole * pieces + min(pieces, (far_end - last + blocks - 1) / blocks);
  }
};
// A stage of some lists [blocks of rows, KV heads], from row `first_row` of `rows` on.
struct StageWork {
  KeyWork keys;
  Chunks chunks;
  uint32_t* orders;  // [lists, order_stride]
  int64_t order_stride;
  const PlacedSegment* placed;  // where keys have a rotation that is undone, as `keys` has segments
  const float* inv_freq;
  int64_t q_stride;
  int32_t rotary_dim;
  KeyPositions positions;
  int32_t lists;
  int32_t first_row;
  int32_t rows;
};
// Writes OrderOf the score of each chunk, 0 for those that are not there.
cudaError_t ScoreChunks(cudaStream_t stream, Rows rows, const StageWork& work);

// --- Logits: 16 lanes take a key, so that a warp takes two.

inline constexpr int kKeyLanes = selection::kDotLanes;
static_assert(2 * kKeyLanes == kWarp && kSelectGroupMax <= kKeyLanes);

// The queries of a KV head as numbers.
template <int kGroup>
struct KeyQueries {
  float at[kGroup][kHeadDimMax];

  // All threads of a block; a barrier follows.
  __device__ void Load(const KeyWork& work, int head) {
    const int head_dim = work.queries.head_dim;
    const int64_t first = int64_t{head} * work.group * head_dim;
    const int count = work.group * head_dim;
    for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x)) {
      at[i / head_dim][i % head_dim] = LoadQ(work.queries, first + i);
    }
  }
};

// A key where it lies.
template <Rows kRows>
struct KeyRow {
  const std::byte* row;
  const std::byte* params;  // of the page, if it is encoded
  int head_dim;
  int slot;  // of the page
  int page_slots;

  // Key `key` of a head, counted from its first block.
  __device__ static KeyRow Of(const KeyWork& work, int head, int64_t key) {
    auto block = static_cast<int>(key / work.block_slots);
    const auto in_block = static_cast<int>(key % work.block_slots);
    const std::byte* slab = work.table.Find(head, block);
    const int64_t slot = int64_t{block} * work.block_slots + in_block;
    const int64_t page = slot / work.page_slots;
    const int64_t in_page = slot % work.page_slots;
    const int in_group = work.table.InGroup(head);
    return {slab + in_group * work.head_stride + page * work.page_stride +
                in_page * (work.queries.head_dim / 8) * BytesOfEight(kRows),
            slab + work.params_offset + in_group * work.params_head_stride +
                page * work.params_page_stride,
            work.queries.head_dim, static_cast<int>(in_page), work.page_slots};
  }

  __device__ float At(int channel) const {
    if constexpr (kRows == Rows::kBF16) {
      return AsFloat(reinterpret_cast<const __nv_bfloat16*>(row)[channel]);
    } else if constexpr (kRows == Rows::kF16) {
      return AsFloat(reinterpret_cast<const __half*>(row)[channel]);
    } else if constexpr (kRows == Rows::kF32) {
      return reinterpret_cast<const float*>(row)[channel];
    } else if constexpr (kRows == Rows::kLossless) {
      return WidenBF16(LosslessBits(channel));
    } else {
      const auto* parameters = reinterpret_cast<const __nv_bfloat16*>(params);
      // The product is exact.
      return AsFloat(parameters[head_dim + channel]) + AsFloat(parameters[channel]) * Code(channel);
    }
  }

 private:
  __device__ uint32_t LosslessBits(int channel) const {
    const LosslessHalf half = LosslessHalf::Of(params, true, page_slots, head_dim);
    const auto low = reinterpret_cast<const uint8_t*>(row)[channel];
    const uint32_t tops = reinterpret_cast<const uint32_t*>(row + head_dim)[channel / 8];
    const uint16_t bits =
        lossless::BitsOf(low, tops, static_cast<int>(half.Floor(slot)), channel % 8);
    if (!MayEscape(tops)) return bits;
    const int position = slot * head_dim + channel;
    const int escape = half.FirstEscape(position);
    if (escape == half.entries || half.PositionOf(escape) != position) return bits;
    return lossless::WithExponent(bits, static_cast<int>(half.ExponentOf(escape)));
  }
  __device__ float Code(int channel) const {
    const auto* codes = reinterpret_cast<const uint8_t*>(row);
    if constexpr (kRows == Rows::kInt4) {
      return static_cast<float>(codes[channel / 2] >> (channel % 2 * 4) & 0xF);
    } else if constexpr (kRows == Rows::kInt8) {
      return static_cast<float>(codes[channel]);
    } else {
      return E4M3ToFloat(codes[channel]);
    }
  }
};

// Calls use(member of the group, logit) in all 16 lanes of a key; the whole warp calls this.
template <int kGroup, Rows kRows, typename Use>
__device__ inline void EachLogit(const KeyWork& work, const KeyQueries<kGroup>& queries,
                                 const KeyRow<kRows>& key, const Use& use) {
  float sums[kGroup] = {};
#pragma unroll 4
  for (int channel = static_cast<int>(threadIdx.x) % kKeyLanes; channel < work.queries.head_dim;
       channel += kKeyLanes) {
    const float number = key.At(channel);
#pragma unroll
    for (int member = 0; member < kGroup; ++member) {
      if (member < work.group) sums[member] += queries.at[member][channel] * number;
    }
  }
#pragma unroll
  for (int member = 0; member < kGroup; ++member) {
    if (member >= work.group) continue;
    float sum = sums[member];
    // Of both lanes the same sum: as SumOfLanes adds them.
#pragma unroll
    for (int apart = kKeyLanes / 2; apart > 0; apart /= 2) {
      sum += __shfl_xor_sync(kAllLanes, sum, apart);
    }
    use(member, selection::LogitOf(sum, work.queries.scale));
  }
}

}  // namespace headway::cuda

#endif  // HEADWAY_KERNELS_CUDA_SELECTION_BY_KEYS_H_
