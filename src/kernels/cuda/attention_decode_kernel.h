// The kernel behind attention_decode_launch.h for 16-bit K and V on tensor cores, transposed: keys
// (then dimensions) fill the 16 rows of a product and queries its 8 columns, so that a small group
// wastes little. Fragments are loaded straight into registers, 16 bytes a lane: the order of the
// summed dimensions and of the rows is ours to choose.
#ifndef HEADWAY_KERNELS_CUDA_ATTENTION_DECODE_KERNEL_H_
#define HEADWAY_KERNELS_CUDA_ATTENTION_DECODE_KERNEL_H_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/attention_decode_block.h"
#include "kernels/cuda/attention_decode_launch.h"
#include "kernels/cuda/attention_decode_steps.h"
#include "kernels/cuda/elements.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/memory.h"
#include "kernels/cuda/occupancy.h"
#include "kernels/cuda/tensor_core.h"

namespace headway::cuda {

// kDim is head_dim rounded up to a size that is compiled; kTiles × 8 queries are done at a time.
template <DType kType, int kDim, int kTiles>
struct MmaShape {
  static constexpr int kWarps = kDim <= 128 ? 8 : 4;
  // 16 keys are 8 KiB of K and V at 128 dimensions: enough in flight with 16 warps a processor.
  static constexpr int kKeyTiles = kDim <= 64 && kTiles == 1 ? 2 : 1;
  static constexpr int kBlocks = kDim == 128 && kTiles > 1 ? 1 : 2;

  static constexpr DType kElement = kType;
  using T = typename ElementOf<kType>::Type;
  static constexpr int kElementBytes = static_cast<int>(sizeof(T));
  static constexpr int kDims = kDim;
  static constexpr int kQueryTiles = kTiles;
  static constexpr int kQueries = kTiles * 8;
  static constexpr int kChunk = kKeyTiles * 16;
  static constexpr int kKLoads = kDim / 32;       // of 8 dimensions each by 4 lanes
  static constexpr int kVLoads = kDim / 64;       // of 8 dimensions each by 8 lanes
  using Queries = uint4[kTiles][kKLoads][kWarp];  // fragments of the products with K
  // Registers of lane 4 r + c.
  using Keys = uint4[kKeyTiles][2][kKLoads];
  using Values = uint4[kKeyTiles][4][kVLoads];
  using Scores = float[kKeyTiles][kTiles][4];
  using Rows = float[kTiles][2];  // of queries 2c and 2c + 1 of each tile
  // o[h][w]: rows r and r + 8 are dimensions h * 64 + r * 8 + w * 2 and the next one.
  using Outputs = float[kVLoads][4][kTiles][4];
  __device__ static float Power(float x) { return exp2f(x); }
};

// min(dim, last), known to be `dim` where the lanes' dimensions, up to `largest`, are in every
// head that is not done with a smaller kDim.
template <int kDim>
__device__ int Clamp(int largest, int dim, int last) {
  return kDim > 64 && largest < kDim / 2 ? dim : min(dim, last);
}

__device__ inline uint32_t Pack(__nv_bfloat16 low, __nv_bfloat16 high) {
  return static_cast<uint32_t>(__bfloat16_as_ushort(low)) |
         static_cast<uint32_t>(__bfloat16_as_ushort(high)) << 16;
}
__device__ inline uint32_t Pack(__half low, __half high) {
  return static_cast<uint32_t>(__half_as_ushort(low)) |
         static_cast<uint32_t>(__half_as_ushort(high)) << 16;
}

template <DType kType>
__device__ SplitPair Split(float low, float high) {
  const auto low_rounded = FromFloat<kType>(low);
  const auto high_rounded = FromFloat<kType>(high);
  return {Pack(low_rounded, high_rounded), Pack(FromFloat<kType>(low - AsFloat(low_rounded)),
                                                FromFloat<kType>(high - AsFloat(high_rounded)))};
}

// Lanes without a key or dimension of their own load a neighbour's: it is finite if the result is,
// and counts for nothing.
template <typename Shape>
__device__ __forceinline__ void LoadKeys(const BlockKeys& keys, const Lane& lane, int chunk,
                                         typename Shape::Keys& k) {
  const int head_dim = keys.head_dim;
#pragma unroll
  for (int t = 0; t < Shape::kKeyTiles; ++t) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int key = min(chunk + t * 16 + half * 8 + lane.r, keys.some.end - 1);
      const std::byte* slot =
          keys.k + SlotOffset(keys.batch, keys.item, keys.item.first_slot + key, keys.slot_bytes);
#pragma unroll
      for (int i = 0; i < Shape::kKLoads; ++i) {
        const int dim = Clamp<Shape::kDims>(i * 32 + 31, i * 32 + lane.c * 8, head_dim - 8);
        k[t][half][i] = LoadStreaming(slot + dim * Shape::kElementBytes);
      }
    }
  }
}

template <typename Shape>
__device__ __forceinline__ void LoadValues(const BlockKeys& keys, const Lane& lane, int chunk,
                                           typename Shape::Values& v) {
  const int head_dim = keys.head_dim;
#pragma unroll
  for (int t = 0; t < Shape::kKeyTiles; ++t) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int key = min(chunk + t * 16 + i / 2 * 8 + lane.c * 2 + i % 2, keys.some.end - 1);
      const std::byte* slot =
          keys.v + SlotOffset(keys.batch, keys.item, keys.item.first_slot + key, keys.slot_bytes);
#pragma unroll
      for (int h = 0; h < Shape::kVLoads; ++h) {
        const int dim = Clamp<Shape::kDims>(h * 64 + 63, h * 64 + lane.r * 8, head_dim - 8);
        v[t][i][h] = LoadStreaming(slot + dim * Shape::kElementBytes);
      }
    }
  }
}

// 8 neighbouring numbers, with one load where they lie on 16 bytes.
template <typename T>
__device__ __forceinline__ uint4 LoadEight(const T* from) {
  if (reinterpret_cast<uintptr_t>(from) % 16 == 0) return LoadOnce(from);
  T eight[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) eight[i] = from[i];
  return {Pack(eight[0], eight[1]), Pack(eight[2], eight[3]), Pack(eight[4], eight[5]),
          Pack(eight[6], eight[7])};
}

// Fragments of the block's queries; zeros for dimensions and queries that there are not.
template <typename Shape>
__device__ __forceinline__ void LoadQueries(const BlockKeys& keys, int thread,
                                            typename Shape::Queries& queries) {
  constexpr int kEights = Shape::kDims / 8;
  for (int i = thread; i < Shape::kQueries * kEights; i += Shape::kWarps * kWarp) {
    const int query = i / kEights;
    const int dim = i % kEights * 8;
    uint4 eight = {0, 0, 0, 0};
    if (query < keys.work.queries && dim < keys.head_dim) {
      eight = LoadEight(static_cast<const typename Shape::T*>(keys.item.q) + QueryRow(keys, query) +
                        dim);
    }
    queries[query / 8][dim / 32][query % 8 * 4 + dim % 32 / 8] = eight;
  }
}

// s += K q over the dimensions of load i, of which k has the numbers.
template <typename Shape>
__device__ __forceinline__ void MultiplyLoad(const typename Shape::Queries& queries,
                                             const Lane& lane, int i,
                                             const uint4 (&k)[Shape::kKeyTiles][2],
                                             typename Shape::Scores& s) {
#pragma unroll
  for (int n = 0; n < Shape::kQueryTiles; ++n) {
    const uint4 q = queries[n][i][lane.lane];
#pragma unroll
    for (int t = 0; t < Shape::kKeyTiles; ++t) {
      const uint4 low = k[t][0];
      const uint4 high = k[t][1];
      const uint32_t first[4] = {low.x, high.x, low.y, high.y};
      MultiplyAdd<Shape::kElement>(s[t][n], first, q.x, q.y);
      const uint32_t last[4] = {low.z, high.z, low.w, high.w};
      MultiplyAdd<Shape::kElement>(s[t][n], last, q.z, q.w);
    }
  }
}

// s = K q
template <typename Shape>
__device__ __forceinline__ void Multiply(const typename Shape::Queries& queries, const Lane& lane,
                                         const typename Shape::Keys& k, typename Shape::Scores& s) {
  Clear(s);
#pragma unroll
  for (int i = 0; i < Shape::kKLoads; ++i) {
    uint4 some[Shape::kKeyTiles][2];
#pragma unroll
    for (int t = 0; t < Shape::kKeyTiles; ++t) {
      some[t][0] = k[t][0][i];
      some[t][1] = k[t][1][i];
    }
    MultiplyLoad<Shape>(queries, lane, i, some, s);
  }
}

// tanh of the products, where logits are capped.
template <typename Shape>
__device__ __forceinline__ void Cap(const DecodeShape& batch, typename Shape::Scores& s) {
  if (batch.capped != 0) {
#pragma unroll
    for (int t = 0; t < Shape::kKeyTiles; ++t) {
#pragma unroll
      for (int n = 0; n < Shape::kQueryTiles; ++n) {
#pragma unroll
        for (float& logit : s[t][n]) logit = tanhf(logit * batch.cap_scale);
      }
    }
  }
}

// Products become logits, those of keys that a query does not see kNoKeys. first_key is this row's.
template <typename Shape>
__device__ __forceinline__ void Mask(const KeyRange range, float scale, int first_key, int n, int j,
                                     typename Shape::Scores& s) {
#pragma unroll
  for (int t = 0; t < Shape::kKeyTiles; ++t) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float& logit = s[t][n][half * 2 + j];
      const int key = first_key + t * 16 + half * 8;
      const bool visible = key >= range.begin && key < range.end;
      logit = visible ? logit * scale : kNoKeys;
    }
  }
}

template <typename Shape>
__device__ __forceinline__ void Decay(const typename Shape::Rows& decays,
                                      typename Shape::Outputs& o) {
#pragma unroll
  for (int n = 0; n < Shape::kQueryTiles; ++n) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
#pragma unroll
      for (int h = 0; h < Shape::kVLoads; ++h) {
#pragma unroll
        for (int w = 0; w < 4; ++w) {
          o[h][w][n][j] *= decays[n][j];
          o[h][w][n][2 + j] *= decays[n][j];
        }
      }
    }
  }
}

// The weights of a tile of keys, split in two, so that they lose no more than the products' f32
// sums do.
template <typename Shape>
__device__ __forceinline__ void SplitWeights(const float (&s)[Shape::kQueryTiles][4],
                                             SplitPair (&p)[Shape::kQueryTiles][2]) {
#pragma unroll
  for (int n = 0; n < Shape::kQueryTiles; ++n) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const SplitPair pair = Split<Shape::kElement>(s[n][half * 2], s[n][half * 2 + 1]);
      p[n][half] = {TransposePairs(pair.rounded), TransposePairs(pair.lost)};
    }
  }
}

// o += V p over a tile of keys and the dimensions of a load.
template <typename Shape>
__device__ __forceinline__ void AddLoad(const SplitPair (&p)[Shape::kQueryTiles][2],
                                        const uint4 (&v)[4], float (&o)[4][Shape::kQueryTiles][4]) {
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    const uint32_t v0 = Word(v[0], w);
    const uint32_t v1 = Word(v[1], w);
    const uint32_t v2 = Word(v[2], w);
    const uint32_t v3 = Word(v[3], w);
    const uint32_t a[4] = {__byte_perm(v0, v1, 0x5410), __byte_perm(v0, v1, 0x7632),
                           __byte_perm(v2, v3, 0x5410), __byte_perm(v2, v3, 0x7632)};
#pragma unroll
    for (int n = 0; n < Shape::kQueryTiles; ++n) {
      MultiplyAdd<Shape::kElement>(o[w][n], a, p[n][0].rounded, p[n][1].rounded);
      MultiplyAdd<Shape::kElement>(o[w][n], a, p[n][0].lost, p[n][1].lost);
    }
  }
}

// o += V p
template <typename Shape>
__device__ __forceinline__ void AddValues(const typename Shape::Scores& s,
                                          const typename Shape::Values& v,
                                          typename Shape::Outputs& o) {
#pragma unroll
  for (int t = 0; t < Shape::kKeyTiles; ++t) {
    SplitPair p[Shape::kQueryTiles][2];
    SplitWeights<Shape>(s[t], p);
#pragma unroll
    for (int h = 0; h < Shape::kVLoads; ++h) {
      const uint4 some[4] = {v[t][0][h], v[t][1][h], v[t][2][h], v[t][3][h]};
      AddLoad<Shape>(p, some, o[h]);
    }
  }
}

// The warps' outputs become the block's.
template <typename Shape, typename States>
__device__ __forceinline__ void WriteOutputs(const BlockKeys& keys, const Lane& lane,
                                             const typename Shape::Rows& max,
                                             const typename Shape::Rows& sum,
                                             const typename Shape::Outputs& o, States& states) {
  WriteStates(keys, lane, max, sum, states, [&](float* row, int n, int j) {
#pragma unroll
    for (int h = 0; h < Shape::kVLoads; ++h) {
#pragma unroll
      for (int w = 0; w < 4; w += 2) {
        *reinterpret_cast<float4*>(row + h * 64 + lane.r * 8 + w * 2) =
            make_float4(o[h][w][n][j], o[h][w][n][2 + j], o[h][w + 1][n][j], o[h][w + 1][n][2 + j]);
      }
    }
  });
}

template <DType kType, int kDim, int kTiles, typename Batch>
__global__ void __launch_bounds__(MmaShape<kType, kDim, kTiles>::kWarps* kWarp,
                                  MmaShape<kType, kDim, kTiles>::kBlocks)
    DecodeMma(const __grid_constant__ Batch batch) {
  LetNextStart();
  using Shape = MmaShape<kType, kDim, kTiles>;
  constexpr int kChunk = Shape::kChunk;
  __shared__ WarpStates<kDim, Shape::kWarps, 8> states;
  __shared__ typename Shape::Queries queries;
  __shared__ KeyRange ranges[Shape::kQueries];  // of the tokens
  __shared__ KeyRange seen[Shape::kQueries];

  const BlockWork work = FindWork(batch, Shape::kQueries);
  const DecodeItem& item = batch.Item(work.item);
  const BlockKeys keys = FindKeys(batch, item, work, Shape::kElementBytes * 8, ranges);
  const Lane lane = ThisLane();
  const int end = keys.some.end;

  typename Shape::Keys k;
  typename Shape::Values v;

  // The first keys are under way while the queries are still computed.
  const int chunk = keys.some.begin + lane.warp * kChunk;
  if (min(chunk + kChunk, end) > KeysOfEarlierSteps(keys.item)) WaitForPrevious();
  if (chunk < end) {
    LoadKeys<Shape>(keys, lane, chunk, k);
    LoadValues<Shape>(keys, lane, chunk, v);
  }
  WaitForPrevious();
  FillSeen(keys, lane.thread, ranges, seen);
  LoadQueries<Shape>(keys, lane.thread, queries);

  typename Shape::Scores s;
  typename Shape::Rows max;
  typename Shape::Rows sum;
  typename Shape::Rows decays;
  typename Shape::Outputs o = {};
  StartSoftmax(max, sum);
  __syncthreads();

  const auto ready = [&](int at) {
    if (at != chunk) LoadValues<Shape>(keys, lane, at, v);
  };
  const auto scores = [&](int /*at*/) { Multiply<Shape>(queries, lane, k, s); };
  const auto next = [&](int at) {
    if (at < end) LoadKeys<Shape>(keys, lane, at, k);
  };
  const auto softmax = [&](int at) {
    Cap<Shape>(batch, s);
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        Mask<Shape>(seen[n * 8 + lane.c * 2 + j], batch.logit_scale, at + lane.r, n, j, s);
        decays[n][j] = Weigh<Shape>(n, j, s, max[n][j], sum[n][j]);
      }
    }
  };
  const auto values = [&](int /*at*/) {
    Decay<Shape>(decays, o);
    AddValues<Shape>(s, v, o);
  };
  ForChunks(chunk, end, Shape::kWarps * kChunk, ChunkSteps{ready, scores, next, softmax, values});

  WriteOutputs<Shape>(keys, lane, max, sum, o, states);
}

template <DType kType, typename Batch>
cudaError_t LaunchMma(cudaStream_t stream, const Batch& batch, int block_queries, int blocks) {
  return LaunchForShape(batch.head_dim, block_queries, [&]<int kDim, int kTiles>() {
    return LaunchKernel(DecodeMma<kType, kDim, kTiles, Batch>, blocks,
                        MmaShape<kType, kDim, kTiles>::kWarps * kWarp, 0, stream, batch);
  });
}

template <DType kType>
int MmaBlocksAtOnce(int head_dim) {
  return LaunchForShape(head_dim, 8, [&]<int kDim, int kTiles>() {
    return BlocksAtOnce(DecodeMma<kType, kDim, kTiles, DecodeBatch>,
                        MmaShape<kType, kDim, kTiles>::kWarps * kWarp, 0);
  });
}

}  // namespace headway::cuda

#endif  // HEADWAY_KERNELS_CUDA_ATTENTION_DECODE_KERNEL_H_
