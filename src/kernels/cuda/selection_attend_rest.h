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
  constexpr int kAhead = 2;              // more would be more code to fetch, too
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

// The largest logarithm of each query's states, into `tops` of each warp. Has a barrier.
template <int kWarps, int kGroup>
__device__ void FindTops(const AttendWork& work, const PartOf& part, int64_t row, int queries,
                         float (&tops)[kWarps][kGroup]) {
  const int thread = static_cast<int>(threadIdx.x);
  const int query = thread % kGroup;
  float top = kNoKeys;
  for (int i = thread / kGroup; query < queries && i <= part.parts; i += kWarps * kWarp / kGroup) {
    const int at = i < part.parts ? i : work.parts;
    top = fmaxf(top, __ldcg(work.lse + at * work.lse_part_stride + row + query));
  }
#pragma unroll
  for (int apart = kGroup; apart < kWarp; apart *= 2) {
    top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, apart));
  }
  if (thread % kWarp < kGroup) tops[thread / kWarp][query] = top;
  __syncthreads();
}

// Merges the states of a head in the order in which Merge (merge.cu) adds them, by all warps of a
// block; the shared memory of `states` is free. Parts chain, chain + kChains, ... of the list make
// a sum, with the open page behind them in one chain, and these sums the whole. One block does this
// while all others are done, and its code is fetched for it: few instructions, and many loads under
// way. Has barriers.
template <int kDim, int kWarps, int kGroup>
__device__ __noinline__ void MergeParts(const AttendWork& work, const PartOf& part,
                                        PartStates<kDim, kWarps, kGroup>& states) {
  constexpr int kChains = 8;
  constexpr int kThreads = kWarps * kWarp;
  constexpr int kPairs = kGroup * kDim / 2;  // of neighbouring channels
  constexpr int kAtOnce = 64;                // parts whose weights are there
  auto& weights = reinterpret_cast<float(&)[kAtOnce][kGroup]>(states.o);
  static_assert(sizeof(weights) <= sizeof(states.o) && kAtOnce % kChains == 0);
  const int thread = static_cast<int>(threadIdx.x);
  const QueriesOfBlock queries = QueriesHere<kGroup>(work);
  const int64_t row = int64_t{part.head} * work.group + queries.first;
  FindTops(work, part, row, queries.count, states.max);
#pragma unroll 1
  for (int first = 0; first < kPairs; first += kThreads) {
    const int query = (first + thread) / (kDim / 2);
    const int channel = (first + thread) % (kDim / 2) * 2;
    const bool mine = query < queries.count && channel < work.head_dim;
    const float* from = work.o + (row + query) * work.head_dim + channel;
    const auto value_of = [&](int at, float weight) {
      // The o of a state without keys may be anything: it takes no part.
      return mine && weight != 0.0f
                 ? __ldcg(reinterpret_cast<const float2*>(from + at * work.o_part_stride))
                 : make_float2(0.0f, 0.0f);
    };
    const auto weight_of = [&](int at, int of) {
      float top = kNoKeys;
      for (int warp = 0; warp < kWarps; ++warp) top = fmaxf(top, states.max[warp][of]);
      return expf(__ldcg(work.lse + at * work.lse_part_stride + row + of) - Finite(top));
    };
    const float open_weight = mine ? weight_of(work.parts, query) : 0.0f;
    const float2 open = value_of(work.parts, open_weight);
    float2 sums[kChains] = {};
    float totals[kChains] = {};
    for (int begin = 0; begin < part.parts; begin += kAtOnce) {
      __syncthreads();
      for (int i = thread; i < kAtOnce * kGroup; i += kThreads) {
        const int at = begin + i / kGroup;
        const bool there = at < part.parts && i % kGroup < queries.count;
        weights[i / kGroup][i % kGroup] = there ? weight_of(at, i % kGroup) : 0.0f;
      }
      __syncthreads();
#pragma unroll 1
      for (int at = 0; at < min(kAtOnce, part.parts - begin); at += kChains) {
        float2 values[kChains];
#pragma unroll
        for (int i = 0; i < kChains; ++i) {
          values[i] = value_of(begin + at + i, mine ? weights[at + i][query] : 0.0f);
        }
#pragma unroll
        for (int i = 0; i < kChains; ++i) {
          const float weight = mine ? weights[at + i][query] : 0.0f;
          totals[i] += weight;
          sums[i].x = fmaf(weight, values[i].x, sums[i].x);
          sums[i].y = fmaf(weight, values[i].y, sums[i].y);
        }
      }
    }
    float total = 0.0f;
    float2 sum = make_float2(0.0f, 0.0f);
#pragma unroll
    for (int i = 0; i < kChains; ++i) {
      if (work.parts % kChains == i) {
        totals[i] += open_weight;
        sums[i].x = fmaf(open_weight, open.x, sums[i].x);
        sums[i].y = fmaf(open_weight, open.y, sums[i].y);
      }
      total += totals[i];
      sum.x += sums[i].x;
      sum.y += sums[i].y;
    }
    if (!mine) continue;
    const int64_t to = (row + query) * work.head_dim + channel;
    StoreResult(work, to, total == 0.0f ? 0.0f : sum.x / total);
    StoreResult(work, to + 1, total == 0.0f ? 0.0f : sum.y / total);
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
    last = work.attended != 0 || atomicInc(work.arrived + of_head, parts) == parts;
    __threadfence();
  }
  __syncthreads();
  if (!last) return;
  MergeParts(work, part, states);
  __syncthreads();  // the next part's states go where weights and tops were
}

}  // namespace headway::cuda

#endif  // HEADWAY_KERNELS_CUDA_SELECTION_ATTEND_REST_H_
