// Decode attention over f32 K and V, in f32 throughout: kDim / 8 lanes share a key, each with 8 of
// its dimensions, and the lanes of every such group have a softmax of their own until the end.
#include <cstddef>
#include <cstdint>

#include "kernels/cuda/attention_decode_block.h"
#include "kernels/cuda/attention_decode_launch.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/memory.h"
#include "kernels/cuda/warp.h"

namespace headway::cuda {
namespace {

constexpr int kPlainWarps = 4;

template <int kDim>
__global__ void __launch_bounds__(kPlainWarps* kWarp, 2)
    DecodePlain(const __grid_constant__ DecodeBatch batch) {
  LetNextStart();
  constexpr int kLanes = kDim / 8;
  constexpr int kGroups = kWarp / kLanes;
  constexpr int kUnroll = 4;
  constexpr int kChunk = kGroups * kUnroll;
  __shared__ WarpStates<kDim, kPlainWarps, kPlainQueries> states;
  __shared__ float4 queries[kPlainQueries][2][kLanes];
  __shared__ KeyRange ranges[kPlainQueries];  // of the tokens
  __shared__ KeyRange seen[kPlainQueries];

  const BlockWork work = FindWork(batch, kPlainQueries);
  const DecodeItem& item = batch.items[work.item];
  FindRanges(batch, item, work, ranges);

  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / kWarp;
  const int lane = thread % kWarp;
  const int sub = lane % kLanes;
  const int key_group = lane / kLanes;
  const int first_token = batch.group.Divide(work.first_query);
  const int last_token = batch.group.Divide(work.first_query + work.queries - 1);
  const int begin = ranges[0].begin;
  const int end = ranges[last_token - first_token].end;
  const int head_dim = batch.head_dim;
  const int slot_bytes = head_dim * static_cast<int>(sizeof(float));
  const std::byte* k_head = item.k + work.head * item.head_stride;
  const std::byte* v_head = item.v + work.head * item.head_stride;

  // As in DecodeMma, lanes without a key or dimension load a neighbour's.
  const int dim0 = min(sub * 4, head_dim - 4) * static_cast<int>(sizeof(float));
  const int dim1 = min(kDim / 2 + sub * 4, head_dim - 4) * static_cast<int>(sizeof(float));
  uint4 k[kUnroll][2];
  uint4 v[kUnroll][2];
  auto load = [&](const std::byte* head, int chunk, uint4(&to)[kUnroll][2]) {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int key = min(chunk + u * kGroups + key_group, end - 1);
      const std::byte* at = head + SlotOffset(batch, item, item.first_slot + key, slot_bytes);
      to[u][0] = LoadStreaming(at + dim0);
      to[u][1] = LoadStreaming(at + dim1);
    }
  };

  WaitForPrevious();
  int chunk = begin + warp * kChunk;
  if (chunk < end) load(k_head, chunk, k);

  for (int i = thread; i < kPlainQueries * kDim; i += kPlainWarps * kWarp) {
    const int query = i / kDim;
    const int dim = i % kDim;
    float value = 0.0f;
    if (query < work.queries && dim < head_dim) {
      const int64_t row =
          QueryOffset(batch, work, work.first_query + query, item.q_stride, head_dim);
      value = static_cast<const float*>(item.q)[row + dim];
    }
    reinterpret_cast<float*>(queries)[i] = value;
  }

  if (thread < kPlainQueries) {
    seen[thread] = thread < work.queries
                       ? ranges[batch.group.Divide(work.first_query + thread) - first_token]
                       : KeyRange{0, 0};
  }
  float max[kPlainQueries];
  float sum[kPlainQueries];
#pragma unroll
  for (int n = 0; n < kPlainQueries; ++n) {
    max[n] = kNoKeys;
    sum[n] = 0.0f;
  }
  float o[kPlainQueries][2][4] = {};
  __syncthreads();

  for (; chunk < end; chunk += kPlainWarps * kChunk) {
    load(v_head, chunk, v);

    float s[kUnroll][kPlainQueries] = {};
#pragma unroll
    for (int n = 0; n < kPlainQueries; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float4 q = queries[n][i][sub];
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) {
          s[u][n] = fmaf(q.x, __uint_as_float(k[u][i].x), s[u][n]);
          s[u][n] = fmaf(q.y, __uint_as_float(k[u][i].y), s[u][n]);
          s[u][n] = fmaf(q.z, __uint_as_float(k[u][i].z), s[u][n]);
          s[u][n] = fmaf(q.w, __uint_as_float(k[u][i].w), s[u][n]);
        }
      }
    }
    if (chunk + kPlainWarps * kChunk < end) load(k_head, chunk + kPlainWarps * kChunk, k);

#pragma unroll
    for (int n = 0; n < kPlainQueries; ++n) {
      const KeyRange range = seen[n];
      float top = max[n];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
#pragma unroll
        for (int apart = 1; apart < kLanes; apart *= 2) {
          s[u][n] += __shfl_xor_sync(kAllLanes, s[u][n], apart);
        }
        const int key = chunk + u * kGroups + key_group;
        const bool visible = key >= range.begin && key < range.end;
        if (batch.capped != 0) s[u][n] = tanhf(s[u][n] * batch.cap_scale);
        s[u][n] = visible ? s[u][n] * batch.logit_scale : kNoKeys;
        top = fmaxf(top, s[u][n]);
      }
      const float base = Finite(top);
      const float decay = exp2f(max[n] - base);
      max[n] = top;
      sum[n] *= decay;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        o[n][0][i] *= decay;
        o[n][1][i] *= decay;
      }
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const float p = exp2f(s[u][n] - base);
        sum[n] += p;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
#pragma unroll
          for (int w = 0; w < 4; ++w) {
            o[n][i][w] = fmaf(p, __uint_as_float(Word(v[u][i], w)), o[n][i][w]);
          }
        }
      }
    }
  }

#pragma unroll
  for (int n = 0; n < kPlainQueries; ++n) {
    float top = max[n];
#pragma unroll
    for (int apart = kLanes; apart < kWarp; apart *= 2) {
      top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, apart));
    }
    const float share = exp2f(max[n] - Finite(top));
    float total = sum[n] * share;
#pragma unroll
    for (int apart = kLanes; apart < kWarp; apart *= 2) {
      total += __shfl_xor_sync(kAllLanes, total, apart);
    }
    if (lane == 0) {
      states.max[warp][n] = top;
      states.sum[warp][n] = total;
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        float value = o[n][i][w] * share;
#pragma unroll
        for (int apart = kLanes; apart < kWarp; apart *= 2) {
          value += __shfl_xor_sync(kAllLanes, value, apart);
        }
        if (key_group == 0) states.o[warp][n][i * (kDim / 2) + sub * 4 + w] = value;
      }
    }
  }
  states.Write(batch, item, work, work.first_query, work.queries);
}

}  // namespace

cudaError_t LaunchPlain(cudaStream_t stream, const DecodeBatch& batch, int blocks) {
  const auto kernel = batch.head_dim <= 64    ? DecodePlain<64>
                      : batch.head_dim <= 128 ? DecodePlain<128>
                                              : DecodePlain<256>;
  return LaunchKernel(kernel, blocks, kPlainWarps * kWarp, 0, stream, batch);
}

}  // namespace headway::cuda
