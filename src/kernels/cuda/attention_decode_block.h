// What a block of AttendDecode does: which keys for which queries, and how the states of its warps
// become the block's.
#ifndef HEADWAY_KERNELS_CUDA_ATTENTION_DECODE_BLOCK_H_
#define HEADWAY_KERNELS_CUDA_ATTENTION_DECODE_BLOCK_H_

#include <cstddef>
#include <cstdint>
#include <limits>

#include "kernels/cuda/divisor.h"
#include "kernels/cuda/item_batch.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/warp.h"

namespace headway::cuda {

inline constexpr float kLog2E = 1.4426950408889634f;
inline constexpr float kLn2 = 0.6931471805599453f;
inline constexpr float kNoKeys = -std::numeric_limits<float>::infinity();

// An AttentionItem as the kernels need it.
struct DecodeItem {
  const void* q;
  int64_t q_stride;
  int64_t q_position;
  const std::byte* k;
  const std::byte* v;
  const std::byte* params;  // null: K and V are in the activations' dtype
  int64_t params_page_stride;
  int64_t params_head_stride;
  int64_t page_stride;
  int64_t head_stride;
  int64_t position;
  const int32_t* positions;
  float* o;
  int64_t o_stride;
  int64_t o_part_stride;
  float* lse;
  int64_t lse_stride;
  int64_t lse_part_stride;
  int32_t tokens;
  int32_t first_slot;
  int32_t count;
  int32_t split;  // count, where the item is not split
  int32_t merge;
  Divisor parts;
  Divisor tiles;  // blocks that share the queries of a KV head

  bool operator==(const DecodeItem&) const = default;
};

// What the items of a launch share.
struct DecodeShape {
  int32_t items_count;
  int32_t head_dim;
  Divisor group;
  Divisor page_slots;
  // A logit, in powers of two, is logit_scale times the product of query and key, or times
  // tanh(cap_scale times the product) if capped.
  float logit_scale;
  float cap_scale;
  int32_t capped;
  int64_t window;
  // Of encoded pages: parts that a page is read in, whether all parameters can be read 16 bytes at
  // a time, and the DType of q.
  Divisor page_chunks;
  int32_t aligned;
  int32_t q_dtype;
};

// The parameters of one launch, which takes the longer the more they are.
struct DecodeBatch : DecodeShape {
  static constexpr int kItems = 20;

  int32_t first_block[kItems];
  DecodeItem items[kItems];

  __device__ const DecodeItem& Item(int at) const { return items[at]; }
};
static_assert(sizeof(DecodeBatch) <= 4096);

// What the items of many sequences, or of heads whose pages lie apart, do not have in common.
struct ManyItem {
  const void* q;
  const std::byte* k;
  const std::byte* v;
  float* o;
  float* lse;
  int64_t page_stride;
  int64_t head_stride;
  int64_t ahead;  // of the query's position; the first key's is 0
  int32_t first_slot;
  int32_t count;
  int32_t split;
  int32_t tokens;
  int32_t first_block;
  Divisor parts;
  Divisor tiles;

  static ManyItem Of(const DecodeItem& item, int first_block) {
    return {.q = item.q,
            .k = item.k,
            .v = item.v,
            .o = item.o,
            .lse = item.lse,
            .page_stride = item.page_stride,
            .head_stride = item.head_stride,
            .ahead = item.q_position - item.position,
            .first_slot = item.first_slot,
            .count = item.count,
            .split = item.split,
            .tokens = item.tokens,
            .first_block = first_block,
            .parts = item.parts,
            .tiles = item.tiles};
  }
  // Writes what is here to an item, or, so that items can be compared, zeros.
  __host__ __device__ void To(DecodeItem* item) const {
    item->q = q;
    item->k = k;
    item->v = v;
    item->o = o;
    item->lse = lse;
    item->page_stride = page_stride;
    item->head_stride = head_stride;
    item->q_position = ahead;
    item->position = 0;
    item->first_slot = first_slot;
    item->count = count;
    item->split = split;
    item->tokens = tokens;
    item->parts = parts;
    item->tiles = tiles;
  }
};

// Those, in pages without parameters, whose positions ascend by one. They lie on the device.
struct DecodeManyBatch : DecodeShape {
  DecodeItem common;
  const ManyItem* items;         // [items_count]
  const int32_t* item_of_block;  // [blocks]

  __device__ DecodeItem Item(int at) const {
    DecodeItem item = common;
    items[at].To(&item);
    return item;
  }
  static DecodeItem Common(DecodeItem item) {
    ManyItem{}.To(&item);
    return item;
  }
};

// What one block does: keys [begin, end) of a KV head for some of its queries. Query i of a head is
// query head i % group of token i / group.
struct BlockWork {
  int item;
  int head;
  int part;
  int first_query;
  int queries;
  int begin;
  int end;
};

// Which item is this block's, and its number among the item's blocks.
struct BlockOfItem {
  int item;
  int block;
};
__device__ inline BlockOfItem FindItem(const DecodeBatch& batch) {
  const auto block = static_cast<int>(blockIdx.x);
  const int item = ItemOfBlock(batch.first_block, batch.items_count, block);
  return {item, block - batch.first_block[item]};
}
__device__ inline BlockOfItem FindItem(const DecodeManyBatch& batch) {
  WaitForPrevious();  // the upload
  const int item = batch.item_of_block[blockIdx.x];
  return {item, static_cast<int>(blockIdx.x) - batch.items[item].first_block};
}

template <typename Batch>
__device__ inline BlockWork FindWork(const Batch& batch, int block_queries) {
  const BlockOfItem found = FindItem(batch);
  const DecodeItem& item = batch.Item(found.item);
  // Blocks that share keys are neighbours, so that only one of them reads from memory.
  const int part_index = item.tiles.Divide(found.block);
  BlockWork work;
  work.item = found.item;
  work.first_query = item.tiles.Rest(found.block, part_index) * block_queries;
  work.head = item.parts.Divide(part_index);
  work.part = item.parts.Rest(part_index, work.head);
  const int queries = item.tokens * static_cast<int>(batch.group.divisor);
  work.queries = min(block_queries, queries - work.first_query);
  work.begin = work.part * item.split;
  work.end = min(item.split, item.count - work.begin) + work.begin;
  return work;
}

// Where query i of a block's head lies in rows of `stride` elements a token.
__device__ inline int64_t QueryOffset(const DecodeShape& batch, const BlockWork& work, int query,
                                      int64_t stride, int head_elements) {
  const int token = batch.group.Divide(query);
  const int64_t row =
      static_cast<int64_t>(work.head) * batch.group.divisor + batch.group.Rest(query, token);
  return token * stride + row * head_elements;
}

// Where a slot lies in the pages of a head.
__device__ inline int64_t SlotOffset(const DecodeShape& batch, const DecodeItem& item, int slot,
                                     int slot_bytes) {
  const int page = batch.page_slots.Divide(slot);
  const int in_page = batch.page_slots.Rest(slot, page);
  return page * item.page_stride + static_cast<int64_t>(in_page) * slot_bytes;
}

// Keys that a token sees, as indices. Positions ascend, so they are a range.
struct KeyRange {
  int begin;
  int end;
};

// Keys below this index were stored by earlier steps, and may be read before the kernels of this
// step are done: a step begins with Embed, which lets nothing start before all work ahead of it is
// done, and RopeStoreKv stores keys from q_position on. (StoreKv and GatherSlots, which may write
// any, let nothing start before their own end.)
__device__ inline int64_t KeysOfEarlierSteps(const DecodeItem& item) {
  return item.positions == nullptr ? item.q_position - item.position : 0;
}

// Fills ranges[0 ...] for the tokens of the block's queries. Ends with a barrier. Waits for earlier
// kernels where positions are read.
__device__ inline void FindRanges(const DecodeShape& batch, const DecodeItem& item,
                                  const BlockWork& work, KeyRange* ranges) {
  const int thread = static_cast<int>(threadIdx.x);
  const int first_token = batch.group.Divide(work.first_query);
  const int tokens = batch.group.Divide(work.first_query + work.queries - 1) - first_token + 1;
  if (item.positions == nullptr) {
    if (thread < tokens) {
      const int64_t newest = item.q_position + first_token + thread - item.position;
      const int64_t begin = work.begin;
      const int64_t end = min(max(newest + 1, begin), static_cast<int64_t>(work.end));
      const int64_t oldest = batch.window == 0 ? begin : newest - batch.window + 1;
      ranges[thread].begin = static_cast<int>(min(max(oldest, begin), end));
      ranges[thread].end = static_cast<int>(end);
    }
    __syncthreads();
    return;
  }
  WaitForPrevious();
  if (thread < tokens) ranges[thread] = {work.begin, work.begin};
  __syncthreads();
  for (int token = 0; token < tokens; ++token) {
    const int64_t q_position = item.q_position + first_token + token;
    int past = 0;
    int expired = 0;
    for (int key = work.begin + thread; key < work.end; key += static_cast<int>(blockDim.x)) {
      const int64_t position = item.positions[key];
      if (position <= q_position) ++past;
      if (batch.window != 0 && position <= q_position - batch.window) ++expired;
    }
    past = __reduce_add_sync(kAllLanes, past);
    expired = __reduce_add_sync(kAllLanes, expired);
    if (thread % kWarp == 0) {
      atomicAdd(&ranges[token].end, past);
      atomicAdd(&ranges[token].begin, expired);
    }
  }
  __syncthreads();
}

// What to subtract from logits whose maximum is `max`: -inf minus -inf would be NaN.
__device__ inline float Finite(float max) { return max == kNoKeys ? 0.0f : max; }

// The states of a block's warps for kQueries queries, in shared memory, and how they are combined.
// Aligned for the float4 that o is written by.
template <int kDim, int kWarps, int kQueries>
struct alignas(16) WarpStates {
  float o[kWarps][kQueries][kDim + 4];  // not normalised
  float max[kWarps][kQueries];          // of the logits in powers of two
  float sum[kWarps][kQueries];          // of 2^(logit - max)
  float weight[kWarps][kQueries];
  float old_weight[kQueries];

  // Takes up to 8 queries' states of a warp whose lane 4 r + c has sums over its keys of queries
  // 2c + j, j = 0, 1, and some of their outputs: store(row, j) writes these.
  template <typename Store>
  __device__ void Take(int warp, int lane, const float (&tops)[2], const float (&sums)[2],
                       int queries, const Store& store) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int query = lane % 4 * 2 + j;
      float total = sums[j];
#pragma unroll
      for (int apart = 4; apart < kWarp; apart *= 2) {
        total += __shfl_xor_sync(kAllLanes, total, apart);
      }
      if (lane < 4) {
        max[warp][query] = tops[j];
        sum[warp][query] = total;
      }
      if (query < queries) store(o[warp][query], j);
    }
  }

  // Writes the state of the block, or merges it into what is there, for queries [first_query,
  // first_query + queries) of the head. Begins with a barrier.
  __device__ void Write(const DecodeShape& batch, const DecodeItem& item, const BlockWork& work,
                        int first_query, int queries) {
    __syncthreads();
    const int thread = static_cast<int>(threadIdx.x);
    if (thread < queries) {
      float* lse = item.lse + work.part * item.lse_part_stride +
                   QueryOffset(batch, work, first_query + thread, item.lse_stride, 1);
      Combine(thread, lse, item.merge != 0);
    }
    __syncthreads();
    for (int query = thread / kWarp; query < queries; query += kWarps) {
      float* row = item.o + work.part * item.o_part_stride +
                   QueryOffset(batch, work, first_query + query, item.o_stride, batch.head_dim);
      for (int i = thread % kWarp; i < batch.head_dim; i += kWarp) {
        // Nothing is read from a state that is not there.
        float value = old_weight[query] == 0.0f ? 0.0f : old_weight[query] * row[i];
#pragma unroll
        for (int warp = 0; warp < kWarps; ++warp) {
          value += weight[warp][query] * o[warp][query][i];
        }
        row[i] = value;
      }
    }
  }

 private:
  // The weights of the warps' outputs, and of the one that is there.
  __device__ void Combine(int query, float* lse, bool merge) {
    float top = kNoKeys;
    for (int warp = 0; warp < kWarps; ++warp) top = fmaxf(top, max[warp][query]);
    top = Finite(top);
    float total = 0.0f;
    for (int warp = 0; warp < kWarps; ++warp) {
      const float share = exp2f(max[warp][query] - top);
      weight[warp][query] = share;
      total += share * sum[warp][query];
    }
    float factor = total == 0.0f ? 0.0f : 1.0f / total;
    float state = total == 0.0f ? kNoKeys : top * kLn2 + logf(total);
    float kept = 0.0f;
    const float old = merge ? *lse : kNoKeys;
    if (old != kNoKeys) {
      const float larger = fmaxf(old, state);
      const float mine = expf(state - larger);
      const float theirs = expf(old - larger);
      factor *= mine / (mine + theirs);
      kept = theirs / (mine + theirs);
      state = larger + logf(mine + theirs);
    }
    for (int warp = 0; warp < kWarps; ++warp) weight[warp][query] *= factor;
    old_weight[query] = kept;
    *lse = state;
  }
};

}  // namespace headway::cuda

#endif  // HEADWAY_KERNELS_CUDA_ATTENTION_DECODE_BLOCK_H_
