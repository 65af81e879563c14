// What the kernels of AttendDecode share: which keys a block takes, the order in which a warp works
// on them, the softmax, and how states are written.
#ifndef HEADWAY_KERNELS_CUDA_ATTENTION_DECODE_STEPS_H_
#define HEADWAY_KERNELS_CUDA_ATTENTION_DECODE_STEPS_H_

#include <cstddef>

#include "kernels/cuda/attention_decode_block.h"
#include "kernels/cuda/warp.h"

namespace headway::cuda {

// Where a thread is in its block. Lane 4 r + c has row r and columns 2c and 2c + 1 of a product.
struct Lane {
  int thread;
  int warp;
  int lane;
  int r;
  int c;
};

__device__ __forceinline__ Lane ThisLane() {
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % kWarp;
  return {.thread = thread, .warp = thread / kWarp, .lane = lane, .r = lane / 4, .c = lane % 4};
}

// The keys of one KV head that the queries of a block see.
struct BlockKeys {
  const DecodeShape& batch;
  const DecodeItem& item;
  BlockWork work;
  int first_token;
  KeyRange some;  // that at least one query sees
  KeyRange all;   // that every query sees
  const std::byte* k;
  const std::byte* v;
  int head_dim;
  int slot_bytes;  // of a key, or a value
};

// Fills `ranges` for the tokens of the block, whose item this is. Ends with a barrier.
__device__ __forceinline__ BlockKeys FindKeys(const DecodeShape& batch, const DecodeItem& item,
                                              const BlockWork& work, int element_bits,
                                              KeyRange* ranges) {
  FindRanges(batch, item, work, ranges);
  const int first_token = batch.group.Divide(work.first_query);
  const int last_token = batch.group.Divide(work.first_query + work.queries - 1);
  return {.batch = batch,
          .item = item,
          .work = work,
          .first_token = first_token,
          .some = {ranges[0].begin, ranges[last_token - first_token].end},
          .all = {ranges[last_token - first_token].begin, ranges[0].end},
          .k = item.k + work.head * item.head_stride,
          .v = item.v + work.head * item.head_stride,
          .head_dim = batch.head_dim,
          .slot_bytes = batch.head_dim * element_bits / 8};
}
__device__ __forceinline__ BlockKeys FindKeys(const DecodeBatch& batch, int block_queries,
                                              int element_bits, KeyRange* ranges) {
  const BlockWork work = FindWork(batch, block_queries);
  return FindKeys(batch, batch.Item(work.item), work, element_bits, ranges);
}

// The keys that each query sees; those behind the block's last query see none.
template <int kQueries>
__device__ __forceinline__ void FillSeen(const BlockKeys& keys, int thread, const KeyRange* ranges,
                                         KeyRange (&seen)[kQueries]) {
  if (thread < kQueries) {
    seen[thread] =
        thread < keys.work.queries
            ? ranges[keys.batch.group.Divide(keys.work.first_query + thread) - keys.first_token]
            : KeyRange{0, 0};
  }
}

// Where the numbers of query i of the block begin in the item's q.
__device__ __forceinline__ int64_t QueryRow(const BlockKeys& keys, int query) {
  return QueryOffset(keys.batch, keys.work, keys.work.first_query + query, keys.item.q_stride,
                     keys.head_dim);
}

// Sets an accumulator of products to zero. (Loops count: with a range-for some kernels spilled
// registers.)
template <int kTiles, int kQueryTiles>
__device__ __forceinline__ void Clear(float (&s)[kTiles][kQueryTiles][4]) {
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int n = 0; n < kQueryTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) s[t][n][i] = 0.0f;
    }
  }
}

// Sets the softmax of a lane's queries to that of no keys.
template <int kQueryTiles>
__device__ __forceinline__ void StartSoftmax(float (&max)[kQueryTiles][2],
                                             float (&sum)[kQueryTiles][2]) {
#pragma unroll
  for (int n = 0; n < kQueryTiles; ++n) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      max[n][j] = kNoKeys;
      sum[n][j] = 0.0f;
    }
  }
}

// Logits of query j of tile n become weights 2^(logit - max). The maximum is that of the warp's
// keys, the sum that of this lane's. Returns the factor of all that was summed before.
template <typename Shape>
__device__ __forceinline__ float Weigh(int n, int j, typename Shape::Scores& s, float& max,
                                       float& sum) {
  float top = max;
#pragma unroll
  for (int t = 0; t < Shape::kKeyTiles; ++t) {
#pragma unroll
    for (int half = 0; half < 2; ++half) top = fmaxf(top, s[t][n][half * 2 + j]);
  }
#pragma unroll
  for (int apart = 4; apart < kWarp; apart *= 2) {
    top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, apart));
  }
  const float base = Finite(top);
  const float decay = Shape::Power(max - base);
  max = top;
  sum *= decay;
#pragma unroll
  for (int t = 0; t < Shape::kKeyTiles; ++t) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float& p = s[t][n][half * 2 + j];
      p = Shape::Power(p - base);
      sum += p;
    }
  }
  return decay;
}

// What a kernel does with a chunk of keys, in this order: it waits for what it needs, multiplies
// the keys by the queries, sends for the keys of the warp's next chunk, makes weights of the
// products, and adds the values. Each step is called with its chunk, `next` with the next one,
// which may lie behind the last. What steps hand to each other are arrays of the kernel: in a
// struct they would not stay in registers.
template <typename Ready, typename Scores, typename Next, typename Softmax, typename Values>
struct ChunkSteps {
  Ready ready;
  Scores scores;
  Next next;
  Softmax softmax;
  Values values;
};

// The order of work of all kernels of AttendDecode: a warp takes every `apart`-th chunk in front of
// `end`.
template <typename Steps>
__device__ __forceinline__ void ForChunks(int chunk, int end, int apart, const Steps& steps) {
  for (; chunk < end; chunk += apart) {
    steps.ready(chunk);
    steps.scores(chunk);
    steps.next(chunk + apart);
    steps.softmax(chunk);
    steps.values(chunk);
  }
}

// Combines the warps' states of all queries into the block's. store(row, n, j) writes this lane's
// outputs of query j of tile n.
template <int kQueryTiles, typename States, typename Store>
__device__ __forceinline__ void WriteStates(const BlockKeys& keys, const Lane& lane,
                                            const float (&max)[kQueryTiles][2],
                                            const float (&sum)[kQueryTiles][2], States& states,
                                            const Store& store) {
#pragma unroll
  for (int n = 0; n < kQueryTiles; ++n) {
    if (n * 8 >= keys.work.queries) break;
    if (n > 0) __syncthreads();  // the tile before has been read
    const int queries = min(8, keys.work.queries - n * 8);
    states.Take(lane.warp, lane.lane, max[n], sum[n], queries,
                [&](float* row, int j) { store(row, n, j); });
    states.Write(keys.batch, keys.item, keys.work, keys.work.first_query + n * 8, queries);
  }
}

}  // namespace headway::cuda

#endif  // HEADWAY_KERNELS_CUDA_ATTENTION_DECODE_STEPS_H_
