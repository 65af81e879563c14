#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>

#include "base/bytes.h"
#include "kernels/cuda/attention_codes.h"
#include "kernels/cuda/attention_decode.h"
#include "kernels/cuda/attention_decode_block.h"
#include "kernels/cuda/launch.h"
#include "kernels/items.h"

namespace headway::cuda {
namespace {

constexpr int kMaxHeadDim = 256;

// d += a [16, 16] · b [16, 8] on tensor cores. Lane 4 r + c holds
//   a: rows r, r + 8, r, r + 8 at columns 2c, 2c, 2c + 8, 2c + 8, two columns each
//   b: rows 2c and 2c + 8, two rows each, at column r
//   d: rows r, r, r + 8, r + 8 at columns 2c, 2c + 1, 2c, 2c + 1
template <typename T>
__device__ void Mma(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                    uint32_t b1);

template <>
__device__ void Mma<__nv_bfloat16>(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                   uint32_t a3, uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

template <>
__device__ void Mma<__half>(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                            uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Transposes an 8 × 8 matrix of 16-bit numbers; lane 4 r + c holds columns 2c and 2c + 1 of row r.
__device__ uint32_t Transpose(uint32_t pair) {
  uint32_t result;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(result) : "r"(pair));
  return result;
}

__device__ uint32_t Pack(__nv_bfloat16 low, __nv_bfloat16 high) {
  return static_cast<uint32_t>(__bfloat16_as_ushort(low)) |
         static_cast<uint32_t>(__bfloat16_as_ushort(high)) << 16;
}
__device__ uint32_t Pack(__half low, __half high) {
  return static_cast<uint32_t>(__half_as_ushort(low)) |
         static_cast<uint32_t>(__half_as_ushort(high)) << 16;
}

template <typename T>
__device__ T Round(float value);
template <>
__device__ __nv_bfloat16 Round<__nv_bfloat16>(float value) {
  return __float2bfloat16_rn(value);
}
template <>
__device__ __half Round<__half>(float value) {
  return __float2half_rn(value);
}
__device__ float Widen(__nv_bfloat16 value) { return __bfloat162float(value); }
__device__ float Widen(__half value) { return __half2float(value); }

// Two numbers as the sum of a rounded pair and of a pair of what the rounding lost.
struct SplitPair {
  uint32_t rounded;
  uint32_t lost;
};
template <typename T>
__device__ SplitPair Split(float low, float high) {
  const T low_rounded = Round<T>(low);
  const T high_rounded = Round<T>(high);
  return {Pack(low_rounded, high_rounded),
          Pack(Round<T>(low - Widen(low_rounded)), Round<T>(high - Widen(high_rounded)))};
}

__device__ uint32_t Word(const uint4& value, int index) {
  return index == 0 ? value.x : index == 1 ? value.y : index == 2 ? value.z : value.w;
}

// 16-bit K and V on tensor cores, transposed: keys (then dimensions) fill the 16 rows of a product
// and queries its 8 columns, so that a small group wastes little. Fragments are loaded straight
// into registers, 16 bytes a lane: the order of the summed dimensions and of the rows is ours to
// choose.
//
// kDim is head_dim rounded up to a size that is compiled; kTiles × 8 queries are done at a time.
template <int kDim, int kTiles>
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

template <typename T, int kDim, int kTiles>
__global__ void __launch_bounds__(MmaShape<kDim, kTiles>::kWarps* kWarp,
                                  MmaShape<kDim, kTiles>::kBlocks)
    DecodeMma(const __grid_constant__ DecodeBatch batch) {
  LetNextStart();
  using Shape = MmaShape<kDim, kTiles>;
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
    T value = Round<T>(0.0f);
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
          Mma<T>(s[t][n], low.x, high.x, low.y, high.y, q.x, q.y);
          Mma<T>(s[t][n], low.z, high.z, low.w, high.w, q.z, q.w);
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
          const SplitPair pair = Split<T>(s[t][n][half * 2], s[t][n][half * 2 + 1]);
          p[n][half] = {Transpose(pair.rounded), Transpose(pair.lost)};
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
          const uint32_t a0 = __byte_perm(v0, v1, 0x5410);
          const uint32_t a1 = __byte_perm(v0, v1, 0x7632);
          const uint32_t a2 = __byte_perm(v2, v3, 0x5410);
          const uint32_t a3 = __byte_perm(v2, v3, 0x7632);
#pragma unroll
          for (int n = 0; n < kTiles; ++n) {
            Mma<T>(o[h][w][n], a0, a1, a2, a3, p[n][0].rounded, p[n][1].rounded);
            Mma<T>(o[h][w][n], a0, a1, a2, a3, p[n][0].lost, p[n][1].lost);
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

// f32 K and V in f32 throughout: kDim / 8 lanes share a key, each with 8 of its dimensions, and the
// lanes of every such group have a softmax of their own until the end.
constexpr int kPlainWarps = 4;
constexpr int kPlainQueries = 4;

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

template <typename T, int kDim, int kTiles>
cudaError_t LaunchMma(cudaStream_t stream, const DecodeBatch& batch, int blocks) {
  return LaunchKernel(DecodeMma<T, kDim, kTiles>, blocks, MmaShape<kDim, kTiles>::kWarps * kWarp, 0,
                      stream, batch);
}

template <typename T>
cudaError_t LaunchMma(cudaStream_t stream, const DecodeBatch& batch, int block_queries,
                      int blocks) {
  const bool one = block_queries == 8;
  if (batch.head_dim <= 64) {
    return one ? LaunchMma<T, 64, 1>(stream, batch, blocks)
               : LaunchMma<T, 64, 2>(stream, batch, blocks);
  }
  if (batch.head_dim <= 128) {
    return one ? LaunchMma<T, 128, 1>(stream, batch, blocks)
               : LaunchMma<T, 128, 2>(stream, batch, blocks);
  }
  return LaunchMma<T, 256, 1>(stream, batch, blocks);
}

cudaError_t LaunchPlain(cudaStream_t stream, const DecodeBatch& batch, int blocks) {
  const auto kernel = batch.head_dim <= 64    ? DecodePlain<64>
                      : batch.head_dim <= 128 ? DecodePlain<128>
                                              : DecodePlain<256>;
  return LaunchKernel(kernel, blocks, kPlainWarps * kWarp, 0, stream, batch);
}

cudaError_t Launch(cudaStream_t stream, DType dtype, Encoding encoding, const DecodeBatch& batch,
                   int block_queries, int blocks) {
  switch (encoding) {
    case Encoding::kInt8:
      return LaunchCodes<Encoding::kInt8>(stream, batch, block_queries, blocks);
    case Encoding::kFp8E4M3:
      return LaunchCodes<Encoding::kFp8E4M3>(stream, batch, block_queries, blocks);
    case Encoding::kInt4:
      return LaunchCodes<Encoding::kInt4>(stream, batch, block_queries, blocks);
    case Encoding::kNone:
      break;
  }
  switch (dtype) {
    case DType::kBF16:
      return LaunchMma<__nv_bfloat16>(stream, batch, block_queries, blocks);
    case DType::kF16:
      return LaunchMma<__half>(stream, batch, block_queries, blocks);
    case DType::kF32:
      return LaunchPlain(stream, batch, blocks);
  }
  return cudaErrorInvalidValue;
}

// Queries that one block does: as many as the registers hold.
int BlockQueries(DType dtype, Encoding encoding, int head_dim, int64_t queries) {
  if (dtype == DType::kF32 && encoding == Encoding::kNone) return kPlainQueries;
  return queries > 8 && head_dim <= 128 ? 16 : 8;
}

DecodeItem ToDecodeItem(const AttentionItem& item, int group, int block_queries) {
  const int64_t count = item.keys.pages.count;
  const int64_t split = item.split == 0 ? count : std::min(item.split, count);
  return {
      .q = item.q,
      .q_stride = item.q_stride,
      .q_position = item.q_position,
      .k = item.keys.pages.k,
      .v = item.keys.pages.v,
      .params = item.keys.pages.params,
      .params_page_stride = item.keys.pages.params_page_stride,
      .params_head_stride = item.keys.pages.params_head_stride,
      .page_stride = item.keys.pages.page_stride,
      .head_stride = item.keys.pages.head_stride,
      .position = item.keys.position,
      .positions = item.keys.positions,
      .o = item.o,
      .o_stride = item.o_stride,
      .o_part_stride = item.o_part_stride,
      .lse = item.lse,
      .lse_stride = item.lse_stride,
      .lse_part_stride = item.lse_part_stride,
      .tokens = static_cast<int32_t>(item.tokens),
      .first_slot = static_cast<int32_t>(item.keys.pages.first_slot),
      .count = static_cast<int32_t>(count),
      .split = static_cast<int32_t>(split),
      .merge = item.merge ? 1 : 0,
      .parts = Divisor::Of(PartsOf(item)),
      .tiles = Divisor::Of(CeilDiv(item.tokens * group, block_queries)),
  };
}

bool Aligned(const void* pointer, size_t bytes = 16) {
  return std::bit_cast<uintptr_t>(pointer) % bytes == 0;
}

// Parameters on 4 bytes are what there is; on 16 they are read faster.
bool ParamsAligned(const PageRun& pages, int64_t bytes) {
  return Aligned(pages.params, static_cast<size_t>(bytes)) &&
         pages.params_page_stride % bytes == 0 && pages.params_head_stride % bytes == 0;
}

// Those of the items that are in the encoding, or in none.
cudaError_t AttendAlike(cudaStream_t stream, const PageFormat& format, DType activation,
                        Encoding encoding, int group, const AttentionParams& params,
                        std::span<const AttentionItem> items) {
  const bool encoded = encoding != Encoding::kNone;
  const auto takes = [&](const AttentionItem& item) {
    return (item.keys.pages.params != nullptr) == encoded;
  };
  DecodeBatch batch = {};
  batch.aligned = 1;
  int64_t queries = 0;
  for (const AttentionItem& item : items) {
    if (!takes(item)) continue;
    queries = std::max(queries, item.tokens * group);
    if (encoded && !ParamsAligned(item.keys.pages, 16)) batch.aligned = 0;
  }
  const int block_queries = BlockQueries(format.dtype, encoding, format.head_dim, queries);

  batch.head_dim = format.head_dim;
  batch.group = Divisor::Of(group);
  batch.page_slots = Divisor::Of(format.page_slots);
  batch.capped = params.softcap != 0.0f ? 1 : 0;
  batch.logit_scale = (batch.capped != 0 ? params.softcap : params.scale) * kLog2E;
  batch.cap_scale = batch.capped != 0 ? params.scale / params.softcap : 0.0f;
  batch.window = params.window;
  batch.q_dtype = static_cast<int32_t>(activation);

  int64_t blocks = 0;
  auto flush = [&] {
    const cudaError_t error = blocks == 0 ? cudaSuccess
                                          : Launch(stream, format.dtype, encoding, batch,
                                                   block_queries, static_cast<int>(blocks));
    batch.items_count = 0;
    blocks = 0;
    return error;
  };
  for (const AttentionItem& item : items) {
    if (!takes(item)) continue;
    const int64_t more =
        CeilDiv(item.tokens * group, block_queries) * PartsOf(item) * int64_t{item.heads};
    if (more == 0) continue;
    if (more > std::numeric_limits<int32_t>::max()) return cudaErrorInvalidValue;
    if (batch.items_count == kItemsPerLaunch ||
        blocks + more > std::numeric_limits<int32_t>::max()) {
      if (const cudaError_t error = flush(); error != cudaSuccess) return error;
    }
    batch.first_block[batch.items_count] = static_cast<int32_t>(blocks);
    batch.items[batch.items_count] = ToDecodeItem(item, group, block_queries);
    ++batch.items_count;
    blocks += more;
  }
  return flush();
}

}  // namespace

bool CanAttendDecode(const PageFormat& format, DType activation, int group,
                     const AttentionParams& params, const AttentionItem& item) {
  constexpr int64_t kMaxSlots = std::numeric_limits<int32_t>::max() / 2;
  const PageRun& pages = item.keys.pages;
  return format.dtype == activation && format.head_dim >= 8 && format.head_dim <= kMaxHeadDim &&
         format.head_dim % 8 == 0 && format.page_slots > 0 && params.window >= 0 && group > 0 &&
         item.tokens * group <= kMaxSlots && item.key_mass == nullptr &&
         item.transform.inv_freq == nullptr && !(item.merge && item.split != 0) &&
         Aligned(pages.k) && Aligned(pages.v) && pages.page_stride % 16 == 0 &&
         pages.head_stride % 16 == 0 && pages.first_slot + pages.count <= kMaxSlots &&
         (pages.params == nullptr ||
          (format.encoding != Encoding::kNone && ParamsAligned(pages, 4)));
}

cudaError_t AttendDecode(cudaStream_t stream, const PageFormat& format, DType activation, int group,
                         const AttentionParams& params, std::span<const AttentionItem> items) {
  for (const AttentionItem& item : items) {
    if (!CanAttendDecode(format, activation, group, params, item)) return cudaErrorInvalidValue;
  }
  if (format.encoding != Encoding::kNone) {
    const cudaError_t error =
        AttendAlike(stream, format, activation, format.encoding, group, params, items);
    if (error != cudaSuccess) return error;
  }
  return AttendAlike(stream, format, activation, Encoding::kNone, group, params, items);
}

}  // namespace headway::cuda
