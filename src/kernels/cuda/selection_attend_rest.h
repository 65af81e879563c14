// The rest of a decode's attention (DecodeRest) in the launch that attends to listed blocks: a
// block of threads takes a head's open page as one more part, and the one that is done last with a
// head's parts merges their states.
#ifndef HEADWAY_KERNELS_CUDA_SELECTION_ATTEND_REST_H_
#define HEADWAY_KERNELS_CUDA_SELECTION_ATTEND_REST_H_

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/attention_decode_block.h"
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
  const int in_group = work.table.InGroup(head);
  const int first = head - in_group;
  const int heads = min(work.table.group_heads.Size(), work.heads - first);
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
      const int at = (first + i * kStep) * row_bytes;
      // What lies behind the last key may be anything.
      if (has_channels && first + i * kStep < work.open_keys) {
        k[i].Load(rows.k + at, sub, work.head_dim);
        v[i].Load(rows.v + at, sub, work.head_dim);
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

// Two neighbouring channels; `at` is even.
__device__ inline void StoreResults(const AttendWork& work, int64_t at, float2 values) {
  switch (static_cast<DType>(work.q_dtype)) {
    case DType::kBF16:
      static_cast<uint32_t*>(work.result)[at / 2] = PackPair<DType::kBF16>(values.x, values.y);
      return;
    case DType::kF16:
      static_cast<uint32_t*>(work.result)[at / 2] = PackPair<DType::kF16>(values.x, values.y);
      return;
    case DType::kF32:
      static_cast<float2*>(work.result)[at / 2] = values;
      return;
  }
}

// Merges the states of a head in the order in which Merge (merge.cu) adds them; a warp has two
// channels a lane of one query. Parts chain, chain + kChains, ... of the list make a sum, with the
// open page behind them in one chain, and these sums the whole. One block does this while all
// others are done, so that no load waits for another: not even to know whether it is needed.
template <int kDim, int kWarps, int kGroup>
__device__ void MergeParts(const AttendWork& work, const PartOf& part) {
  constexpr int kChains = 8;
  constexpr int kAtOnce = 2 * kChains;          // parts whose values are under way
  constexpr int kOfQuery = kDim / (2 * kWarp);  // warps
  static_assert(kWarp % kAtOnce == 0);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const QueriesOfBlock queries = QueriesHere<kGroup>(work);
#pragma unroll 1
  for (int at = static_cast<int>(threadIdx.x) / kWarp; at < queries.count * kOfQuery;
       at += kWarps) {
    const int64_t row = int64_t{part.head} * work.group + queries.first + at / kOfQuery;
    const int channel = (at % kOfQuery * kWarp + lane) * 2;
    const bool mine = channel < work.head_dim;
    const float* o = work.o + row * work.head_dim + (mine ? channel : 0);
    const float* lse = work.lse + row;
    const auto lse_of = [&](int of) {
      const float there = __ldcg(lse + min(of, work.parts) * work.lse_part_stride);
      return of < part.parts ? there : kNoKeys;
    };
    float2 values[kAtOnce];
    const auto load = [&](int begin) {
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        values[i] = __ldcg(
            reinterpret_cast<const float2*>(o + min(begin + i, work.parts) * work.o_part_stride));
      }
    };
    float own = lse_of(lane);
    const float open_lse = __ldcg(lse + work.parts * work.lse_part_stride);
    const float2 open =
        __ldcg(reinterpret_cast<const float2*>(o + work.parts * work.o_part_stride));
    load(0);
    float top = fmaxf(own, open_lse);
#pragma unroll 1
    for (int i = lane + kWarp; i < part.parts; i += kWarp) top = fmaxf(top, lse_of(i));
#pragma unroll
    for (int apart = 1; apart < kWarp; apart *= 2) {
      top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, apart));
    }
    top = Finite(top);
    float2 sums[kChains] = {};
    float totals[kChains] = {};
    const auto add = [&](int chain, float weight, float2 value) {
      totals[chain] += weight;
      // The o of a state without keys may be anything: it takes no part.
      sums[chain].x = fmaf(weight, weight == 0.0f ? 0.0f : value.x, sums[chain].x);
      sums[chain].y = fmaf(weight, weight == 0.0f ? 0.0f : value.y, sums[chain].y);
    };
#pragma unroll 1
    for (int begin = 0;;) {
      const float weight = expf(own - top);
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        add(i % kChains, __shfl_sync(kAllLanes, weight, begin % kWarp + i), values[i]);
      }
      begin += kAtOnce;
      if (begin >= part.parts) break;
      load(begin);
      if (begin % kWarp == 0) own = lse_of(begin + lane);
    }
    const float open_weight = expf(open_lse - top);
    float total = 0.0f;
    float2 sum = make_float2(0.0f, 0.0f);
#pragma unroll
    for (int i = 0; i < kChains; ++i) {
      add(i, work.parts % kChains == i ? open_weight : 0.0f, open);
      total += totals[i];
      sum.x += sums[i].x;
      sum.y += sums[i].y;
    }
    const float by = total == 0.0f ? 1.0f : total;
    if (mine) {
      StoreResults(work, row * work.head_dim + channel, make_float2(sum.x / by, sum.y / by));
    }
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
    // The last part leaves 0 for the next launch.
    const auto of_head = static_cast<unsigned>(part.head) * gridDim.y + blockIdx.y;
    const auto parts = static_cast<unsigned>(part.parts);
    last = work.attended != 0 || Arrive(work.arrived + of_head, parts) == parts;
  }
  __syncthreads();
  if (last) MergeParts<kDim, kWarps, kGroup>(work, part);
}

}  // namespace headway::cuda

#endif  // HEADWAY_KERNELS_CUDA_SELECTION_ATTEND_REST_H_
