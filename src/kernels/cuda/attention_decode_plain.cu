// Decode attention over f32 K and V, in f32 throughout: kDim / 8 lanes share a key, each with 8 of
// its dimensions, and the lanes of every such group have a softmax of their own until the end.
#include <cstddef>
#include <cstdint>

#include "kernels/cuda/attention_decode_block.h"
#include "kernels/cuda/attention_decode_launch.h"
#include "kernels/cuda/attention_decode_steps.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/memory.h"
#include "kernels/cuda/warp.h"

namespace headway::cuda {
namespace {

template <int kDim>
struct PlainShape {
  static constexpr int kWarps = 4;
  static constexpr int kLanes = kDim / 8;         // that share a key
  static constexpr int kGroups = kWarp / kLanes;  // of such lanes in a warp
  static constexpr int kUnroll = 4;
  static constexpr int kChunk = kGroups * kUnroll;
  using Queries = float4[kPlainQueries][2][kLanes];
  // Registers of a lane: dimensions 4 sub + i, and kDim / 2 further, of keys kGroups apart.
  using Rows = uint4[kUnroll][2];
  using Scores = float[kUnroll][kPlainQueries];
  using Outputs = float[2][4];  // of a query
};

// What a lane has of a row.
struct PlainLane {
  int sub;        // of the lanes that share a key
  int key_group;  // that they are
  int dim0;       // bytes
  int dim1;
};

template <int kDim>
__device__ __forceinline__ void LoadRows(const BlockKeys& keys, const std::byte* head,
                                         const PlainLane& lane, int chunk,
                                         typename PlainShape<kDim>::Rows& to) {
  using Shape = PlainShape<kDim>;
#pragma unroll
  for (int u = 0; u < Shape::kUnroll; ++u) {
    const int key = min(chunk + u * Shape::kGroups + lane.key_group, keys.some.end - 1);
    const std::byte* at =
        head + SlotOffset(keys.batch, keys.item, keys.item.first_slot + key, keys.slot_bytes);
    to[u][0] = LoadStreaming(at + lane.dim0);
    to[u][1] = LoadStreaming(at + lane.dim1);
  }
}

template <int kDim>
__device__ __forceinline__ void LoadQueries(const BlockKeys& keys, int thread,
                                            typename PlainShape<kDim>::Queries& queries) {
  for (int i = thread; i < kPlainQueries * kDim; i += PlainShape<kDim>::kWarps * kWarp) {
    const int query = i / kDim;
    const int dim = i % kDim;
    float value = 0.0f;
    if (query < keys.work.queries && dim < keys.head_dim) {
      value = static_cast<const float*>(keys.item.q)[QueryRow(keys, query) + dim];
    }
    reinterpret_cast<float*>(queries)[i] = value;
  }
}

// s: this lane's dimensions of K q.
template <int kDim>
__device__ __forceinline__ void Multiply(const typename PlainShape<kDim>::Queries& queries, int sub,
                                         const typename PlainShape<kDim>::Rows& k,
                                         typename PlainShape<kDim>::Scores& s) {
#pragma unroll
  for (int u = 0; u < PlainShape<kDim>::kUnroll; ++u) {
#pragma unroll
    for (int n = 0; n < kPlainQueries; ++n) s[u][n] = 0.0f;
  }
#pragma unroll
  for (int n = 0; n < kPlainQueries; ++n) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float4 q = queries[n][i][sub];
#pragma unroll
      for (int u = 0; u < PlainShape<kDim>::kUnroll; ++u) {
        s[u][n] = fmaf(q.x, __uint_as_float(k[u][i].x), s[u][n]);
        s[u][n] = fmaf(q.y, __uint_as_float(k[u][i].y), s[u][n]);
        s[u][n] = fmaf(q.z, __uint_as_float(k[u][i].z), s[u][n]);
        s[u][n] = fmaf(q.w, __uint_as_float(k[u][i].w), s[u][n]);
      }
    }
  }
}

// Products become logits of query n, those of keys that it does not see kNoKeys. first_key is this
// lane's.
template <int kDim>
__device__ __forceinline__ void ToLogits(const DecodeShape& batch, const KeyRange range,
                                         int first_key, int n,
                                         typename PlainShape<kDim>::Scores& s) {
  using Shape = PlainShape<kDim>;
#pragma unroll
  for (int u = 0; u < Shape::kUnroll; ++u) {
#pragma unroll
    for (int apart = 1; apart < Shape::kLanes; apart *= 2) {
      s[u][n] += __shfl_xor_sync(kAllLanes, s[u][n], apart);
    }
    const int key = first_key + u * Shape::kGroups;
    const bool visible = key >= range.begin && key < range.end;
    if (batch.capped != 0) s[u][n] = tanhf(s[u][n] * batch.cap_scale);
    s[u][n] = visible ? s[u][n] * batch.logit_scale : kNoKeys;
  }
}

// Logits of query n become weights, the softmax that of this lane's keys. Gives the factor of what
// was summed before.
template <int kDim>
__device__ __forceinline__ float WeighKeys(int n, typename PlainShape<kDim>::Scores& s, float& max,
                                           float& sum) {
  float top = max;
#pragma unroll
  for (int u = 0; u < PlainShape<kDim>::kUnroll; ++u) top = fmaxf(top, s[u][n]);
  const float base = Finite(top);
  const float decay = exp2f(max - base);
  max = top;
  sum *= decay;
#pragma unroll
  for (int u = 0; u < PlainShape<kDim>::kUnroll; ++u) {
    s[u][n] = exp2f(s[u][n] - base);
    sum += s[u][n];
  }
  return decay;
}

// o = decay o + V p for query n.
template <int kDim>
__device__ __forceinline__ void AddValues(int n, float decay,
                                          const typename PlainShape<kDim>::Scores& s,
                                          const typename PlainShape<kDim>::Rows& v,
                                          typename PlainShape<kDim>::Outputs& o) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    o[0][i] *= decay;
    o[1][i] *= decay;
  }
#pragma unroll
  for (int u = 0; u < PlainShape<kDim>::kUnroll; ++u) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        o[i][w] = fmaf(s[u][n], __uint_as_float(Word(v[u][i], w)), o[i][w]);
      }
    }
  }
}

template <int kDim>
__device__ __forceinline__ float SumOfGroups(float value) {
#pragma unroll
  for (int apart = PlainShape<kDim>::kLanes; apart < kWarp; apart *= 2) {
    value += __shfl_xor_sync(kAllLanes, value, apart);
  }
  return value;
}

template <int kDim>
__global__ void __launch_bounds__(PlainShape<kDim>::kWarps* kWarp, 2)
    DecodePlain(const __grid_constant__ DecodeBatch batch) {
  LetNextStart();
  using Shape = PlainShape<kDim>;
  __shared__ WarpStates<kDim, Shape::kWarps, kPlainQueries> states;
  __shared__ typename Shape::Queries queries;
  __shared__ KeyRange ranges[kPlainQueries];  // of the tokens
  __shared__ KeyRange seen[kPlainQueries];

  const BlockKeys keys = FindKeys(batch, kPlainQueries, 32, ranges);
  const Lane lane = ThisLane();
  const int sub = lane.lane % Shape::kLanes;
  // As in DecodeMma, lanes without a key or dimension load a neighbour's.
  const PlainLane part = {
      .sub = sub,
      .key_group = lane.lane / Shape::kLanes,
      .dim0 = min(sub * 4, keys.head_dim - 4) * static_cast<int>(sizeof(float)),
      .dim1 = min(kDim / 2 + sub * 4, keys.head_dim - 4) * static_cast<int>(sizeof(float))};
  typename Shape::Rows k;
  typename Shape::Rows v;
  const int end = keys.some.end;

  WaitForPrevious();
  const int chunk = keys.some.begin + lane.warp * Shape::kChunk;
  if (chunk < end) LoadRows<kDim>(keys, keys.k, part, chunk, k);
  LoadQueries<kDim>(keys, lane.thread, queries);
  FillSeen(keys, lane.thread, ranges, seen);
  float max[kPlainQueries];
  float sum[kPlainQueries];
#pragma unroll
  for (int n = 0; n < kPlainQueries; ++n) {
    max[n] = kNoKeys;
    sum[n] = 0.0f;
  }
  typename Shape::Outputs o[kPlainQueries] = {};
  __syncthreads();

  typename Shape::Scores s;
  const auto ready = [&](int at) { LoadRows<kDim>(keys, keys.v, part, at, v); };
  const auto scores = [&](int /*at*/) { Multiply<kDim>(queries, part.sub, k, s); };
  const auto next = [&](int at) {
    if (at < end) LoadRows<kDim>(keys, keys.k, part, at, k);
  };
  float decays[kPlainQueries];
  const auto softmax = [&](int at) {
#pragma unroll
    for (int n = 0; n < kPlainQueries; ++n) {
      ToLogits<kDim>(batch, seen[n], at + part.key_group, n, s);
      decays[n] = WeighKeys<kDim>(n, s, max[n], sum[n]);
    }
  };
  const auto values = [&](int /*at*/) {
#pragma unroll
    for (int n = 0; n < kPlainQueries; ++n) AddValues<kDim>(n, decays[n], s, v, o[n]);
  };
  ForChunks(chunk, end, Shape::kWarps * Shape::kChunk,
            ChunkSteps{ready, scores, next, softmax, values});

#pragma unroll
  for (int n = 0; n < kPlainQueries; ++n) {
    float top = max[n];
#pragma unroll
    for (int apart = Shape::kLanes; apart < kWarp; apart *= 2) {
      top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, apart));
    }
    const float share = exp2f(max[n] - Finite(top));
    const float total = SumOfGroups<kDim>(sum[n] * share);
    if (lane.lane == 0) {
      states.max[lane.warp][n] = top;
      states.sum[lane.warp][n] = total;
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        const float value = SumOfGroups<kDim>(o[n][i][w] * share);
        if (part.key_group == 0) states.o[lane.warp][n][i * (kDim / 2) + part.sub * 4 + w] = value;
      }
    }
  }
  states.Write(batch, keys.item, keys.work, keys.work.first_query, keys.work.queries);
}

}  // namespace

cudaError_t LaunchPlain(cudaStream_t stream, const DecodeBatch& batch, int blocks) {
  const auto kernel = batch.head_dim <= 64    ? DecodePlain<64>
                      : batch.head_dim <= 128 ? DecodePlain<128>
                                              : DecodePlain<256>;
  return LaunchKernel(kernel, blocks, PlainShape<64>::kWarps * kWarp, 0, stream, batch);
}

}  // namespace headway::cuda
