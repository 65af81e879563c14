// The rest of a decode's attention (DecodeRest) in the launch that attends to listed blocks: a
// block of threads takes a head's open page as one more part, and the one that is done last with a
// head's parts merges their states.
#ifndef HEADWAY_KERNELS_CUDA_SELECTION_ATTEND_REST_H_
#define HEADWAY_KERNELS_CUDA_SELECTION_ATTEND_REST_H_

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/attention_decode_block.h"
#include "kernels/cuda/elements.h"
#include "kernels/cuda/selection_attend.h"
#include "kernels/cuda/selection_attend_parts.h"
#include "kernels/cuda/selection_attend_rows.h"
#include "kernels/cuda/selection_attend_states.h"
#include "kernels/cuda/tensor_core.h"
#include "kernels/cuda/warp.h"

namespace headway::cuda {

// The query heads of a group that a block of threads takes.
struct QueriesOfBlock {
  int first;
  int count;
};
template <int kGroup>
__device__ QueriesOfBlock QueriesHere(const AttendWork& work) {
  const int first = static_cast<int>(blockIdx.y) * kGroup;
  return {first, min(kGroup, work.group - first)};
}

// The rows of a head in its open page.
struct OpenRows {
  const std::byte* k;
  const std::byte* v;
};
__device__ inline OpenRows OpenRowsOf(const AttendWork& work, int head) {
  const int in_group = head % work.table.group_heads;
  const int first = head - in_group;
  const int heads = min(work.table.group_heads, work.heads - first);
  const int64_t stride = int64_t{work.open_lines} * 16;
  const std::byte* k = work.open_pages + (2 * first + in_group) * stride;
  return {k, k + heads * stride};
}

// A lane's softmax over the keys that it and its neighbours have in hand, one at a time.
template <int kGroup>
struct LaneSoftmax {
  float max[kGroup];
  float sum[kGroup];
  float o[kGroup][8];  // of the lane's channels

  __device__ LaneSoftmax() {
#pragma unroll
    for (int query = 0; query < kGroup; ++query) {
      max[query] = kNoKeys;
      sum[query] = 0.0f;
#pragma unroll
      for (float& value : o[query]) value = 0.0f;
    }
  }
  __device__ void Scale(int query, float top) {
    const float factor = Exp2(max[query] - Finite(top));
    max[query] = top;
    sum[query] *= factor;
#pragma unroll
    for (float& value : o[query]) value *= factor;
  }
  __device__ void Add(int query, float logit, const float (&v)[8]) {
    Scale(query, fmaxf(max[query], logit));
    const float weight = Exp2(logit - Finite(max[query]));
    sum[query] += weight;
#pragma unroll
    for (int i = 0; i < 8; ++i) o[query][i] = fmaf(weight, v[i], o[query][i]);
  }
};

// The states of a block's warps for the open page of a head, whose rows are kOpen. It is short:
// what counts is that its keys are under way at once. In a function of its own, so that the
// attention to blocks has all registers.
template <Rows kOpen, int kDim, int kWarps, int kGroup>
__device__ __noinline__ void AttendOpenRows(const AttendWork& work, int head,
                                            PartStates<kDim, kWarps, kGroup>& states) {
  constexpr int kLanes = kDim / 8;
  constexpr int kKeys = kWarp / kLanes;  // of a warp, at once
  constexpr int kAhead = 4;
  constexpr int kStep = kWarps * kKeys;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int sub = lane % kLanes;
  const bool has_channels = sub * 8 < work.head_dim;
  const int row_bytes = work.head_dim / 8 * BytesOfEight(kOpen);
  const OpenRows rows = OpenRowsOf(work, head);
  const QueriesOfBlock queries = QueriesHere<kGroup>(work);
  float q[kGroup][8];
  LoadQueries<kGroup>(work, (int64_t{head} * work.group + queries.first) * work.head_dim,
                      queries.count, sub, q);
  LaneSoftmax<kGroup> softmax;
  for (int begin = warp * kKeys; begin < work.open_keys; begin += kAhead * kStep) {
    Eight<kOpen> k[kAhead];
    Eight<kOpen> v[kAhead];
    const int first = begin + lane / kLanes;
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int at = (first + i * kStep) * row_bytes + sub * BytesOfEight(kOpen);
      // What lies behind the last key may be anything.
      if (has_channels && first + i * kStep < work.open_keys) {
        k[i].Load(rows.k + at);
        v[i].Load(rows.v + at);
      } else {
        k[i].Clear();
        v[i].Clear();
      }
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      float key[8];
      float value[8];
      k[i].Widen(key);
      v[i].Widen(value);
#pragma unroll
      for (int query = 0; query < kGroup; ++query) {
        float logit = q[query][0] * key[0];
#pragma unroll
        for (int j = 1; j < 8; ++j) logit = fmaf(q[query][j], key[j], logit);
#pragma unroll
        for (int apart = kLanes / 2; apart > 0; apart /= 2) {
          logit += __shfl_xor_sync(kAllLanes, logit, apart);
        }
        softmax.Add(query, first + i * kStep < work.open_keys ? logit : kNoKeys, value);
      }
    }
  }
#pragma unroll
  for (int query = 0; query < kGroup; ++query) {
    float top = softmax.max[query];
#pragma unroll
    for (int apart = kLanes; apart < kWarp; apart *= 2) {
      top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, apart));
    }
    softmax.Scale(query, top);
    float sum = softmax.sum[query];
#pragma unroll
    for (int apart = kLanes; apart < kWarp; apart *= 2) {
      sum += __shfl_xor_sync(kAllLanes, sum, apart);
    }
    if (lane == 0) {
      states.max[warp][query] = top;
      states.sum[warp][query] = sum;
    }
  }
  states.TakeOutputs(softmax.o, warp, lane);
}

// Open pages are in the dtype of the queries, whatever closed ones are.
template <Rows kRows, int kDim, int kWarps, int kGroup>
__device__ void AttendOpenPage(const AttendWork& work, int head,
                               PartStates<kDim, kWarps, kGroup>& states) {
  if constexpr (!IsEncoded(kRows)) {
    AttendOpenRows<kRows>(work, head, states);
  } else if (static_cast<DType>(work.q_dtype) == DType::kBF16) {
    AttendOpenRows<Rows::kBF16>(work, head, states);
  } else if (static_cast<DType>(work.q_dtype) == DType::kF16) {
    AttendOpenRows<Rows::kF16>(work, head, states);
  } else {
    AttendOpenRows<Rows::kF32>(work, head, states);
  }
}

__device__ inline void StoreResult(const AttendWork& work, int64_t at, float value) {
  switch (static_cast<DType>(work.q_dtype)) {
    case DType::kBF16:
      static_cast<__nv_bfloat16*>(work.result)[at] = FromFloat<DType::kBF16>(value);
      return;
    case DType::kF16:
      static_cast<__half*>(work.result)[at] = FromFloat<DType::kF16>(value);
      return;
    case DType::kF32:
      static_cast<float*>(work.result)[at] = value;
      return;
  }
}

// The chains of parts that Merge (merge.cu) adds up, for the queries of a block of threads: parts
// chain, chain + kChains, ... of a head's list, and behind them, in one chain, its open page.
inline constexpr int kChains = 8;
template <int kDim, int kGroup>
struct Chain {
  static constexpr int kOfLane = (kDim + kWarp - 1) / kWarp;  // channels of a query
  static constexpr int kAhead = 2;                            // parts under way at once
  int chain;
  int listed;  // parts of the list
  int count;   // and the open page
  float lses[kAhead][kGroup];
  float values[kAhead][kGroup][kOfLane];
  float o[kGroup][kOfLane];
  float total[kGroup];

  __device__ Chain(const AttendWork& work, const PartOf& part, int of) : chain(of) {
    listed = part.parts > chain ? (part.parts - chain + kChains - 1) / kChains : 0;
    count = listed + (work.parts % kChains == chain ? 1 : 0);
#pragma unroll
    for (int query = 0; query < kGroup; ++query) {
      total[query] = 0.0f;
#pragma unroll
      for (float& value : o[query]) value = 0.0f;
    }
  }

  // Those from the first-th of the chain on.
  __device__ void Load(const AttendWork& work, int64_t row, int queries, int first) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int at = first + i < listed ? chain + (first + i) * kChains : work.parts;
      const float* o_from = work.o + at * work.o_part_stride + row * work.head_dim;
      const float* lse_from = work.lse + at * work.lse_part_stride + row;
#pragma unroll
      for (int query = 0; query < kGroup; ++query) {
        const bool there = first + i < count && query < queries;
        lses[i][query] = there ? __ldcg(lse_from + query) : kNoKeys;
#pragma unroll
        for (int j = 0; j < kOfLane; ++j) {
          const int channel = j * kWarp + lane;
          const bool mine = there && channel < work.head_dim;
          values[i][query][j] = mine ? __ldcg(o_from + query * work.head_dim + channel) : 0.0f;
        }
      }
    }
  }
  // Adds what is loaded; `tops` are the largest logarithms.
  __device__ void Add(const float (&tops)[kGroup]) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
#pragma unroll
      for (int query = 0; query < kGroup; ++query) {
        const float weight = expf(lses[i][query] - tops[query]);
        total[query] += weight;
#pragma unroll
        for (int j = 0; j < kOfLane; ++j) {
          // The o of a state without keys may be anything: it takes no part.
          const float value = lses[i][query] == kNoKeys ? 0.0f : values[i][query][j];
          o[query][j] = fmaf(weight, value, o[query][j]);
        }
      }
    }
  }
};

// The largest logarithms of the queries' states, found by a warp.
template <int kGroup>
__device__ void FindTops(const AttendWork& work, const PartOf& part, int64_t row, int queries,
                         float (&tops)[kGroup]) {
#pragma unroll
  for (float& top : tops) top = kNoKeys;
  for (int i = static_cast<int>(threadIdx.x) % kWarp; i <= part.parts; i += kWarp) {
    const int at = i < part.parts ? i : work.parts;
#pragma unroll
    for (int query = 0; query < kGroup; ++query) {
      if (query >= queries) continue;
      tops[query] = fmaxf(tops[query], __ldcg(work.lse + at * work.lse_part_stride + row + query));
    }
  }
#pragma unroll
  for (float& top : tops) {
#pragma unroll
    for (int apart = 1; apart < kWarp; apart *= 2) {
      top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, apart));
    }
    top = Finite(top);
  }
}

// Merges the states of a head in the order in which Merge adds them, by all warps of a block; the
// shared memory of `states` is free. Has barriers.
template <int kDim, int kWarps, int kGroup>
__device__ __noinline__ void MergeParts(const AttendWork& work, const PartOf& part,
                                        PartStates<kDim, kWarps, kGroup>& states) {
  constexpr int kThreads = kWarps * kWarp;
  constexpr int kOfThread = (kGroup * kDim + kThreads - 1) / kThreads;
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / kWarp;
  const int lane = thread % kWarp;
  const QueriesOfBlock queries = QueriesHere<kGroup>(work);
  const int64_t row = int64_t{part.head} * work.group + queries.first;
  using OfWarp = Chain<kDim, kGroup>;
  float tops[kGroup];
  float sums[kOfThread] = {};
  float totals[kOfThread] = {};
  for (int first = 0; first < kChains; first += kWarps) {
    OfWarp chain(work, part, first + warp);
    chain.Load(work, row, queries.count, 0);  // under way while the tops are found
    if (first == 0) FindTops(work, part, row, queries.count, tops);
    for (int at = 0; at < chain.count; at += OfWarp::kAhead) {
      if (at > 0) chain.Load(work, row, queries.count, at);
      chain.Add(tops);
    }
#pragma unroll
    for (int query = 0; query < kGroup; ++query) {
#pragma unroll
      for (int j = 0; j < OfWarp::kOfLane; ++j) {
        states.o[warp][query][j * kWarp + lane] = chain.o[query][j];
      }
      if (lane == 0) states.sum[warp][query] = chain.total[query];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kOfThread; ++i) {
      const int at = min(thread + i * kThreads, kGroup * kDim - 1);
      for (int from = 0; from < kWarps; ++from) {
        sums[i] += states.o[from][at / kDim][at % kDim];
        totals[i] += states.sum[from][at / kDim];
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < kOfThread; ++i) {
    const int at = thread + i * kThreads;
    const int query = at / kDim;
    const int channel = at % kDim;
    if (query >= queries.count || channel >= work.head_dim) continue;
    StoreResult(work, (row + query) * work.head_dim + channel,
                totals[i] == 0.0f ? 0.0f : sums[i] / totals[i]);
  }
}

// Writes the state of a part, and merges the head's where all are there. Has barriers.
template <int kDim, int kWarps, int kGroup>
__device__ void FinishPart(const AttendWork& work, const PartOf& part,
                           PartStates<kDim, kWarps, kGroup>& states) {
  __shared__ bool last;
  const QueriesOfBlock queries = QueriesHere<kGroup>(work);
  const int64_t row = int64_t{part.head} * work.group + queries.first;
  const int at = part.IsOpen() ? work.parts : part.part;
  states.Write(work.o + at * work.o_part_stride + row * work.head_dim,
               work.lse + at * work.lse_part_stride + row, queries.count, work.head_dim);
  if (work.result == nullptr) return;
  if (threadIdx.x == 0) {
    // What this block has written is seen by the one that counts to the last part, which leaves 0
    // for the next launch.
    __threadfence();
    const auto of_head = static_cast<unsigned>(part.head) * gridDim.y + blockIdx.y;
    const auto parts = static_cast<unsigned>(part.parts);
    last = atomicInc(work.arrived + of_head, parts) == parts;
    __threadfence();
  }
  __syncthreads();
  if (last) MergeParts(work, part, states);
}

}  // namespace headway::cuda

#endif  // HEADWAY_KERNELS_CUDA_SELECTION_ATTEND_REST_H_
