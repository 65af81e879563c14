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
#include "kernels/cuda/elements.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/memory.h"
#include "kernels/cuda/tensor_core.h"

namespace headway::cuda {

// kDim is head_dim rounded up to a size that is compiled; kTiles × 8 queries are done at a time.
template <DType kType, int kDim, int kTiles>
struct MmaShape {
  static constexpr int kWarps = kDim <= 128 ? 8 : 4;
  // 16 keys are 8 KiB of K and V at 128 dimensions: enough in flight with 16 warps a processor.
  static constexpr int kKeyTiles = kDim <= 64 && kTiles == 1 ? 2 : 1;
  static constexpr int kBlocks = kDim == 128 && kTiles > 1 ? 1 : 2;
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

template <DType kType, int kDim, int kTiles>
__global__ void __launch_bounds__(MmaShape<kType, kDim, kTiles>::kWarps* kWarp,
                                  MmaShape<kType, kDim, kTiles>::kBlocks)
    DecodeMma(const __grid_constant__ DecodeBatch batch) {
  LetNextStart();
  using T = typename ElementOf<kType>::Type;
  using Shape = MmaShape<kType, kDim, kTiles>;
  constexpr int kWarps = Shape::kWarps;
  constexpr int kKeyTiles = Shape::kKeyTiles;
  constexpr int kChunk = kKeyTiles * 16;
  constexpr int kQueries = kTiles * 8;
  constexpr int kKLoads = kDim / 32;  // of 8 dimensions each by 4 lanes
  constexpr int kVLoads = kDim / 64;  // of 8 dimensions each by 8 lanes
  __shared__ WarpStates<kDim, kWarps, 8> states;
  __shared__ uint4 queries[kTiles][kKLoads][kWarp];  // fragments of the products with K
  __shared__ KeyRange ranges[kQueries];              // of the tokens
  __shared__ KeyRange seen[kQueries];

  const BlockWork work = FindWork(batch, kQueries);
  const DecodeItem& item = batch.items[work.item];
  FindRanges(batch, item, work, ranges);

  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / kWarp;
  const int lane = thread % kWarp;
  const int r = lane / 4;
  const int c = lane % 4;
  const int first_token = batch.group.Divide(work.first_query);
  const int last_token = batch.group.Divide(work.first_query + work.queries - 1);
  const int begin = ranges[0].begin;
  const int end = ranges[last_token - first_token].end;
  const int head_dim = batch.head_dim;
  const int slot_bytes = head_dim * static_cast<int>(sizeof(T));
  const std::byte* k_head = item.k + work.head * item.head_stride;
  const std::byte* v_head = item.v + work.head * item.head_stride;

  // Lanes without a key or dimension of their own load a neighbour's: it is finite if the result
  // is, and counts for nothing.
  uint4 k[kKeyTiles][2][kKLoads];
  auto load_k = [&](int chunk) {
#pragma unroll
    for (int t = 0; t < kKeyTiles; ++t) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int key = min(chunk + t * 16 + half * 8 + r, end - 1);
        const std::byte* at = k_head + SlotOffset(batch, item, item.first_slot + key, slot_bytes);
#pragma unroll
        for (int i = 0; i < kKLoads; ++i) {
          const int dim = Clamp<kDim>(i * 32 + 31, i * 32 + c * 8, head_dim - 8);
          k[t][half][i] = LoadStreaming(at + dim * static_cast<int>(sizeof(T)));
        }
      }
    }
  };
  uint4 v[kKeyTiles][4][kVLoads];
  auto load_v = [&](int chunk) {
#pragma unroll
    for (int t = 0; t < kKeyTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int key = min(chunk + t * 16 + i / 2 * 8 + c * 2 + i % 2, end - 1);
        const std::byte* at = v_head + SlotOffset(batch, item, item.first_slot + key, slot_bytes);
#pragma unroll
        for (int h = 0; h < kVLoads; ++h) {
          const int dim = Clamp<kDim>(h * 64 + 63, h * 64 + r * 8, head_dim - 8);
          v[t][i][h] = LoadStreaming(at + dim * static_cast<int>(sizeof(T)));
        }
      }
    }
  };

  // The first keys are under way while the queries are still computed.
  int chunk = begin + warp * kChunk;
  if (min(chunk + kChunk, end) > KeysOfEarlierSteps(item)) WaitForPrevious();
  if (chunk < end) {
    load_k(chunk);
    load_v(chunk);
  }
  WaitForPrevious();

  if (thread < kQueries) {
    seen[thread] = thread < work.queries
                       ? ranges[batch.group.Divide(work.first_query + thread) - first_token]
                       : KeyRange{0, 0};
  }
  T* fragments = reinterpret_cast<T*>(queries);
  for (int i = thread; i < kQueries * kDim; i += kWarps * kWarp) {
    const int query = i / kDim;
    const int dim = i % kDim;
    T value = FromFloat<kType>(0.0f);
    if (query < work.queries && dim < head_dim) {
      const int64_t row =
          QueryOffset(batch, work, work.first_query + query, item.q_stride, head_dim);
      value = static_cast<const T*>(item.q)[row + dim];
    }
    const int owner = query % 8 * 4 + dim % 32 / 8;
    fragments[((query / 8 * kKLoads + dim / 32) * kWarp + owner) * 8 + dim % 8] = value;
  }

  // This lane's queries are tile * 8 + 2c and the next one.
  float max[kTiles][2];
  float sum[kTiles][2];
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      max[n][j] = kNoKeys;
      sum[n][j] = 0.0f;
    }
  }
  // o[h][w]: rows r and r + 8 are dimensions h * 64 + r * 8 + w * 2 and the next one.
  float o[kVLoads][4][kTiles][4] = {};
  __syncthreads();

  for (; chunk < end; chunk += kWarps * kChunk) {
    if (chunk != begin + warp * kChunk) load_v(chunk);

    float s[kKeyTiles][kTiles][4] = {};
#pragma unroll
    for (int i = 0; i < kKLoads; ++i) {
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        const uint4 q = queries[n][i][lane];
#pragma unroll
        for (int t = 0; t < kKeyTiles; ++t) {
          const uint4 low = k[t][0][i];
          const uint4 high = k[t][1][i];
          const uint32_t first[4] = {low.x, high.x, low.y, high.y};
          MultiplyAdd<kType>(s[t][n], first, q.x, q.y);
          const uint32_t last[4] = {low.z, high.z, low.w, high.w};
          MultiplyAdd<kType>(s[t][n], last, q.z, q.w);
        }
      }
    }
    // The next K are on their way while these logits become weights and meet V.
    if (chunk + kWarps * kChunk < end) load_k(chunk + kWarps * kChunk);

    if (batch.capped != 0) {
#pragma unroll
      for (int t = 0; t < kKeyTiles; ++t) {
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
#pragma unroll
          for (float& logit : s[t][n]) logit = tanhf(logit * batch.cap_scale);
        }
      }
    }
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const KeyRange range = seen[n * 8 + c * 2 + j];
        float top = max[n][j];
#pragma unroll
        for (int t = 0; t < kKeyTiles; ++t) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            float& logit = s[t][n][half * 2 + j];
            const int key = chunk + t * 16 + half * 8 + r;
            const bool visible = key >= range.begin && key < range.end;
            logit = visible ? logit * batch.logit_scale : kNoKeys;
            top = fmaxf(top, logit);
          }
        }
#pragma unroll
        for (int apart = 4; apart < kWarp; apart *= 2) {
          top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, apart));
        }
        const float base = Finite(top);
        const float decay = exp2f(max[n][j] - base);
        max[n][j] = top;
        sum[n][j] *= decay;
#pragma unroll
        for (int t = 0; t < kKeyTiles; ++t) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            float& p = s[t][n][half * 2 + j];
            p = exp2f(p - base);
            sum[n][j] += p;
          }
        }
#pragma unroll
        for (int h = 0; h < kVLoads; ++h) {
#pragma unroll
          for (int w = 0; w < 4; ++w) {
            o[h][w][n][j] *= decay;
            o[h][w][n][2 + j] *= decay;
          }
        }
      }
    }

#pragma unroll
    for (int t = 0; t < kKeyTiles; ++t) {
      // The weights are split in two, so that they lose no more than the products' f32 sums do.
      SplitPair p[kTiles][2];
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const SplitPair pair = Split<kType>(s[t][n][half * 2], s[t][n][half * 2 + 1]);
          p[n][half] = {TransposePairs(pair.rounded), TransposePairs(pair.lost)};
        }
      }
#pragma unroll
      for (int h = 0; h < kVLoads; ++h) {
#pragma unroll
        for (int w = 0; w < 4; ++w) {
          const uint32_t v0 = Word(v[t][0][h], w);
          const uint32_t v1 = Word(v[t][1][h], w);
          const uint32_t v2 = Word(v[t][2][h], w);
          const uint32_t v3 = Word(v[t][3][h], w);
          const uint32_t a[4] = {__byte_perm(v0, v1, 0x5410), __byte_perm(v0, v1, 0x7632),
                                 __byte_perm(v2, v3, 0x5410), __byte_perm(v2, v3, 0x7632)};
#pragma unroll
          for (int n = 0; n < kTiles; ++n) {
            MultiplyAdd<kType>(o[h][w][n], a, p[n][0].rounded, p[n][1].rounded);
            MultiplyAdd<kType>(o[h][w][n], a, p[n][0].lost, p[n][1].lost);
          }
        }
      }
    }
  }

#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
    if (n * 8 >= work.queries) break;
    if (n > 0) __syncthreads();  // the tile before has been read
    states.Take(warp, lane, max[n], sum[n], min(8, work.queries - n * 8), [&](float* row, int j) {
#pragma unroll
      for (int h = 0; h < kVLoads; ++h) {
#pragma unroll
        for (int w = 0; w < 4; w += 2) {
          *reinterpret_cast<float4*>(row + h * 64 + r * 8 + w * 2) = make_float4(
              o[h][w][n][j], o[h][w][n][2 + j], o[h][w + 1][n][j], o[h][w + 1][n][2 + j]);
        }
      }
    });
    states.Write(batch, item, work, work.first_query + n * 8, min(8, work.queries - n * 8));
  }
}

template <DType kType, int kDim, int kTiles>
cudaError_t LaunchMma(cudaStream_t stream, const DecodeBatch& batch, int blocks) {
  return LaunchKernel(DecodeMma<kType, kDim, kTiles>, blocks,
                      MmaShape<kType, kDim, kTiles>::kWarps * kWarp, 0, stream, batch);
}

template <DType kType>
cudaError_t LaunchMma(cudaStream_t stream, const DecodeBatch& batch, int block_queries,
                      int blocks) {
  const bool one = block_queries == 8;
  if (batch.head_dim <= 64) {
    return one ? LaunchMma<kType, 64, 1>(stream, batch, blocks)
               : LaunchMma<kType, 64, 2>(stream, batch, blocks);
  }
  if (batch.head_dim <= 128) {
    return one ? LaunchMma<kType, 128, 1>(stream, batch, blocks)
               : LaunchMma<kType, 128, 2>(stream, batch, blocks);
  }
  return LaunchMma<kType, 256, 1>(stream, batch, blocks);
}

}  // namespace headway::cuda

#endif  // HEADWAY_KERNELS_CUDA_ATTENTION_DECODE_KERNEL_H_
