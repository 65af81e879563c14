// The kernel behind attention_codes.h. Codes become f16, which holds them exactly, on their way
// into the products, and what is not a code stays out of these:
//
//   q · k = q · zero + (q ∘ scale) · code      scale and zero a channel, of a page
//   Σ p v = Σ p zero + Σ (p scale) code        scale and zero a token, of 64 channels
//
// q ∘ scale and p scale are f32, and meet the codes as two f16 numbers, a rounded one and what the
// rounding lost, in units of the largest scale, so that no range is lost. The rest is f32. Nothing
// is rounded to the model's dtype, and a byte of codes takes about as many instructions as it takes
// with 16-bit pages: the kernel is bound by reading until codes come at some 3 TB/s.
#ifndef HEADWAY_KERNELS_CUDA_ATTENTION_CODES_KERNEL_H_
#define HEADWAY_KERNELS_CUDA_ATTENTION_CODES_KERNEL_H_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cstdint>

#include "base/fp8.h"
#include "kernels/cuda/attention_codes.h"
#include "kernels/cuda/attention_decode_block.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/tensor_core.h"

namespace headway::cuda {

__device__ inline uint32_t SubtractPair(uint32_t pair, uint32_t from_both) {
  __half2 a, b;
  memcpy(&a, &pair, sizeof(a));
  memcpy(&b, &from_both, sizeof(b));
  const __half2 difference = __hsub2(a, b);
  memcpy(&pair, &difference, sizeof(pair));
  return pair;
}

__device__ inline float2 WidenPair(uint32_t pair) {
  __half2 halves;
  memcpy(&halves, &pair, sizeof(halves));
  return __half22float2(halves);
}

// Codes as pairs of f16. Unpack gives the pairs of a word of codes: of one byte each, codes 2i and
// 2i + 1; of half a byte, codes i and i + 4. The number that a code stands for in the products is
// (code - kCentre) / kOver.
template <Encoding kEncoding>
struct Code;

// 0x64xx is 1024 + xx.
template <>
struct Code<Encoding::kInt8> {
  static constexpr int kBits = 8;
  static constexpr float kCentre = 128.0f;
  static constexpr float kOver = 1.0f;
  __device__ static void Unpack(uint32_t word, uint32_t* pairs) {
    pairs[0] = SubtractPair(__byte_perm(word, 0x64646464u, 0x4140), 0x64806480u);
    pairs[1] = SubtractPair(__byte_perm(word, 0x64646464u, 0x4342), 0x64806480u);
  }
};
template <>
struct Code<Encoding::kInt4> {
  static constexpr int kBits = 4;
  static constexpr float kCentre = 8.0f;
  static constexpr float kOver = 1.0f;
  __device__ static void Unpack(uint32_t word, uint32_t* pairs) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      pairs[i] = SubtractPair((word >> (4 * i) & 0x000F000Fu) | 0x64006400u, 0x64086408u);
    }
  }
};
// As E4M3ToFloat: an f16 is the code's bits in their places.
template <>
struct Code<Encoding::kFp8E4M3> {
  static constexpr int kBits = 8;
  static constexpr float kCentre = 0.0f;
  static constexpr float kOver = kE4M3OverF16;
  __device__ static void Unpack(uint32_t word, uint32_t* pairs) {
    pairs[0] = Place(__byte_perm(word, 0, 0x1404));
    pairs[1] = Place(__byte_perm(word, 0, 0x3424));
  }
  __device__ static uint32_t Place(uint32_t high_bytes) {
    return (high_bytes & 0x80008000u) | (high_bytes >> 1 & 0x3F803F80u);
  }
};

template <Encoding kEncoding, int kDim, int kTiles>
struct CodesShape {
  static constexpr int kBits = Code<kEncoding>::kBits;
  static constexpr int kWarps = kDim <= 128 ? 8 : 4;
  // Enough of K and V in flight, and a page's parameters read less often; with more queries at a
  // time the registers are for these.
  static constexpr int kKeyTiles = kTiles == 1 && kDim * kBits <= 512 ? 2 : 1;
  static constexpr int kBlocks = kDim == 128 && kTiles > 1 ? 1 : 2;
  // Each of 4 lanes loads so many bytes of a row of K at a time, and so many codes.
  static constexpr int kLoadBytes = std::min(16, kDim* kBits / 32);
  static constexpr int kLoadCodes = kLoadBytes * 8 / kBits;
  static constexpr int kKLoads = kDim / (4 * kLoadCodes);
  static constexpr int kVLoads = kDim / 64;  // of 8 codes each by 8 lanes
};

// kWords words on as many bytes, each byte of which is read once.
template <int kWords>
__device__ void LoadWords(const std::byte* at, uint32_t* words) {
  if constexpr (kWords == 4) {
    const uint4 value = LoadStreaming(at);
    words[0] = value.x;
    words[1] = value.y;
    words[2] = value.z;
    words[3] = value.w;
  } else if constexpr (kWords == 2) {
    asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];"
                 : "=r"(words[0]), "=r"(words[1])
                 : "l"(at));
  } else {
    static_assert(kWords == 1);
    asm volatile("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(words[0]) : "l"(at));
  }
}

// kWords words from `offset` of a row. A row whose pieces are aligned has all of them or none: a
// lane without one of its own loads a neighbour's. Words behind the end of another are 0.
template <int kWords>
__device__ void LoadPiece(const std::byte* row, int offset, int row_bytes, bool aligned,
                          uint32_t* words) {
  if (aligned) {
    LoadWords<kWords>(row + min(offset, row_bytes - kWords * 4), words);
    return;
  }
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    words[i] = 0;
    if (offset + i * 4 < row_bytes) LoadWords<1>(row + offset + i * 4, words + i);
  }
}

// Eight parameters, on 16 bytes or on 4. Warps that share a page share them.
__device__ inline void LoadParams(const std::byte* at, bool aligned, uint32_t (&words)[4]) {
  if (aligned) {
    const uint4 value = __ldg(reinterpret_cast<const uint4*>(at));
    words[0] = value.x;
    words[1] = value.y;
    words[2] = value.z;
    words[3] = value.w;
    return;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) words[i] = __ldg(reinterpret_cast<const uint32_t*>(at) + i);
}

// Brings the line that holds a byte nearer.
inline constexpr int kLine = 128;
__device__ inline void Prefetch(const std::byte* at) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
}

// Number `index` of words of two bf16.
__device__ inline float ParamAt(const uint32_t* words, int index) {
  const uint32_t word = words[index / 2];
  return __uint_as_float(index % 2 == 0 ? word << 16 : word & 0xFFFF0000u);
}
__device__ inline uint32_t LoadParam(const std::byte* at) {
  return __ldg(reinterpret_cast<const uint16_t*>(at));
}

// The power of two below the largest of a warp's numbers, which are not negative, as bits; what is
// not finite does not count, and 2^-100 is the least, so that its inverse is finite.
__device__ inline uint32_t UnitOf(float number) {
  const uint32_t bits = __float_as_uint(number);
  const uint32_t largest = __reduce_max_sync(kAllLanes, bits < 0x7F800000u ? bits : 0u);
  return max(largest & 0x7F800000u, 27u << 23);
}

// 1 / the power of two with these bits.
__device__ inline float InverseOf(uint32_t unit_bits) {
  return __uint_as_float((254u << 23) - unit_bits);
}

__device__ inline float LoadQuery(const void* q, int64_t index, int dtype) {
  switch (static_cast<DType>(dtype)) {
    case DType::kBF16:
      return __bfloat162float(static_cast<const __nv_bfloat16*>(q)[index]);
    case DType::kF16:
      return __half2float(static_cast<const __half*>(q)[index]);
    case DType::kF32:
      break;
  }
  return static_cast<const float*>(q)[index];
}

// Two numbers as the sum of a rounded pair and of a pair of what the rounding lost.
struct HalfSplit {
  uint32_t rounded;
  uint32_t lost;
};
__device__ inline HalfSplit SplitHalf(float low, float high) {
  const uint32_t rounded = PackPair<DType::kF16>(low, high);
  const float2 wide = WidenPair(rounded);
  return {rounded, PackPair<DType::kF16>(low - wide.x, high - wide.y)};
}

__device__ inline uint32_t TransposePairs(uint32_t pair) {
  uint32_t result;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(result) : "r"(pair));
  return result;
}

// Units of q̂ = q ∘ scale and of p scale: with these, numbers 2^-15 of the largest keep 22 bits.
inline constexpr float kQueryUnit = 1024.0f;
inline constexpr float kWeightUnit = 4096.0f;

// Fragments as in DecodeMma (attention_decode.cu). Keys are taken kKeyTiles * 16 at a time, all of
// one page.
template <Encoding kEncoding, int kDim, int kTiles>
__global__ void __launch_bounds__(CodesShape<kEncoding, kDim, kTiles>::kWarps* kWarp,
                                  CodesShape<kEncoding, kDim, kTiles>::kBlocks)
    DecodeCodes(const __grid_constant__ DecodeBatch batch) {
  LetNextStart();
  using Codes = Code<kEncoding>;
  using Shape = CodesShape<kEncoding, kDim, kTiles>;
  constexpr int kWarps = Shape::kWarps;
  constexpr int kKeyTiles = Shape::kKeyTiles;
  constexpr int kChunk = kKeyTiles * 16;
  constexpr int kQueries = kTiles * 8;
  constexpr int kKLoads = Shape::kKLoads;
  constexpr int kKWords = Shape::kLoadBytes / 4;
  constexpr int kKGroups = Shape::kLoadCodes / 8;  // of 8 codes, in a load
  constexpr int kVLoads = Shape::kVLoads;
  constexpr int kWordsOf8 = Codes::kBits / 4;
  __shared__ WarpStates<kDim, kWarps, 8> states;
  __shared__ float4 queries[kTiles][kKLoads][kKGroups][2][kWarp];
  __shared__ float query_factor[kQueries];
  __shared__ KeyRange ranges[kQueries];  // of the tokens
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
  const int row_bytes = head_dim * Codes::kBits / 8;
  const int page_slots = static_cast<int>(batch.page_slots.divisor);
  const std::byte* k_head = item.k + work.head * item.head_stride;
  const std::byte* v_head = item.v + work.head * item.head_stride;
  const std::byte* param_head = item.params + work.head * item.params_head_stride;
  const bool aligned = batch.aligned != 0;

  // Chunks are counted from the first page on.
  auto chunk_of = [&](int key) {
    const int slot = item.first_slot + key;
    const int page = batch.page_slots.Divide(slot);
    return page * static_cast<int>(batch.page_chunks.divisor) +
           batch.page_slots.Rest(slot, page) / kChunk;
  };
  // Where a chunk is: its page, its first slot there, and that slot as a key.
  struct Place {
    int page, slot, key;
  };
  auto place_of = [&](int chunk) {
    Place place;
    place.page = batch.page_chunks.Divide(chunk);
    place.slot = batch.page_chunks.Rest(chunk, place.page) * kChunk;
    place.key = place.page * page_slots + place.slot - item.first_slot;
    return place;
  };

  uint32_t k[kKeyTiles][2][kKLoads][kKWords];
  auto load_k = [&](const Place& place) {
    const std::byte* page = k_head + place.page * item.page_stride;
#pragma unroll
    for (int t = 0; t < kKeyTiles; ++t) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int slot = min(place.slot + t * 16 + half * 8 + r, page_slots - 1);
        const std::byte* row = page + static_cast<int64_t>(slot) * row_bytes;
#pragma unroll
        for (int i = 0; i < kKLoads; ++i) {
          LoadPiece<kKWords>(row, (i * 4 + c) * Shape::kLoadBytes, row_bytes, aligned,
                             k[t][half][i]);
        }
      }
    }
  };
  uint32_t v[kKeyTiles][4][kVLoads][kWordsOf8];
  auto load_v = [&](const Place& place) {
    const std::byte* page = v_head + place.page * item.page_stride;
#pragma unroll
    for (int t = 0; t < kKeyTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int slot = min(place.slot + t * 16 + i / 2 * 8 + c * 2 + i % 2, page_slots - 1);
        const std::byte* row = page + static_cast<int64_t>(slot) * row_bytes;
#pragma unroll
        for (int h = 0; h < kVLoads; ++h) {
          const int dim = min(h * 64 + r * 8, head_dim - 8);
          LoadWords<kWordsOf8>(row + dim * Codes::kBits / 8, v[t][i][h]);
        }
      }
    }
  };

  int chunk = begin < end ? chunk_of(begin) + warp : 0;
  const int last_chunk = begin < end ? chunk_of(end - 1) : -1;
  Place place = place_of(chunk);
  // The first keys are under way while the queries are still computed.
  if (min(place.key + kChunk, end) > KeysOfEarlierSteps(item)) WaitForPrevious();
  if (chunk <= last_chunk) {
    load_k(place);
    load_v(place);
  }
  WaitForPrevious();

  if (thread < kQueries) {
    seen[thread] = thread < work.queries
                       ? ranges[batch.group.Divide(work.first_query + thread) - first_token]
                       : KeyRange{0, 0};
  }
  for (int query = warp; query < kQueries; query += kWarps) {
    float values[kDim / kWarp];
    float largest = 0.0f;
#pragma unroll
    for (int i = 0; i < kDim / kWarp; ++i) {
      const int dim = i * kWarp + lane;
      values[i] = 0.0f;
      if (query < work.queries && dim < head_dim) {
        const int64_t row =
            QueryOffset(batch, work, work.first_query + query, item.q_stride, head_dim);
        values[i] = LoadQuery(item.q, row + dim, batch.q_dtype);
      }
      largest = fmaxf(largest, fabsf(values[i]));
    }
    const uint32_t unit = UnitOf(largest);
    if (lane == 0) query_factor[query] = __uint_as_float(unit) / kQueryUnit;
    const float inverse = kQueryUnit * InverseOf(unit);
#pragma unroll
    for (int i = 0; i < kDim / kWarp; ++i) {
      const int dim = i * kWarp + lane;
      const int load = dim / (4 * Shape::kLoadCodes);
      const int in_load = dim % (4 * Shape::kLoadCodes);
      const int owner = query % 8 * 4 + in_load / Shape::kLoadCodes;
      float4& to = queries[query / 8][load][in_load % Shape::kLoadCodes / 8][dim % 8 / 4][owner];
      reinterpret_cast<float*>(&to)[dim % 4] = values[i] * inverse;
    }
  }

  // This lane's queries are tile * 8 + 2c and the next one.
  float max[kTiles][2];
  float sum[kTiles][2];
  float zeros[kVLoads][kTiles][2] = {};  // this lane's keys' part of Σ p zero
  uint32_t unit_bits[kVLoads];           // of p scale
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      max[n][j] = kNoKeys;
      sum[n][j] = 0.0f;
    }
  }
#pragma unroll
  for (int h = 0; h < kVLoads; ++h) unit_bits[h] = 27u << 23;
  // o[h][w]: rows r and r + 8 are dimensions h * 64 + r * 8 + w * 2 and the next one.
  float o[kVLoads][4][kTiles][4] = {};
  __syncthreads();

  for (; chunk <= last_chunk; chunk += kWarps) {
    const std::byte* params = param_head + place.page * item.params_page_stride;
    const Place next = place_of(chunk + kWarps);
    const bool more = chunk + kWarps <= last_chunk;

    // The page's largest scale of K.
    float largest = 0.0f;
#pragma unroll
    for (int i = 0; i < kKLoads * kKGroups; ++i) {
      const int dim = (i / kKGroups * 4 + c) * Shape::kLoadCodes + i % kKGroups * 8;
      uint32_t scales[4];
      LoadParams(params + min(dim, head_dim - 8) * 2, aligned, scales);
#pragma unroll
      for (int e = 0; e < 8; ++e) largest = fmaxf(largest, ParamAt(scales, e));
    }
    const uint32_t k_unit = UnitOf(largest);
    const float k_inverse = InverseOf(k_unit);

    float s[kKeyTiles][kTiles][4] = {};
    float zero_dot[kTiles] = {};  // q · zero over this lane's dimensions, of query r of the tile
#pragma unroll
    for (int i = 0; i < kKLoads; ++i) {
#pragma unroll
      for (int g = 0; g < kKGroups; ++g) {
        const int dim = min((i * 4 + c) * Shape::kLoadCodes + g * 8, head_dim - 8);
        uint32_t scales[4];
        uint32_t zeros_of_k[4];
        LoadParams(params + dim * 2, aligned, scales);
        LoadParams(params + (head_dim + dim) * 2, aligned, zeros_of_k);
        uint32_t codes[kKeyTiles][2][4];
#pragma unroll
        for (int t = 0; t < kKeyTiles; ++t) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
#pragma unroll
            for (int w = 0; w < kWordsOf8; ++w) {
              Codes::Unpack(k[t][half][i][g * kWordsOf8 + w], &codes[t][half][w * 2]);
            }
          }
        }
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
          const float4 q0 = queries[n][i][g][0][lane];
          const float4 q1 = queries[n][i][g][1][lane];
          const float q[8] = {q0.x, q0.y, q0.z, q0.w, q1.x, q1.y, q1.z, q1.w};
          float x[8];
#pragma unroll
          for (int e = 0; e < 8; ++e) {
            const float scale = ParamAt(scales, e);
            x[e] = q[e] * (scale * k_inverse);
            zero_dot[n] =
                fmaf(q[e], fmaf(scale, Codes::kCentre, ParamAt(zeros_of_k, e)), zero_dot[n]);
          }
          HalfSplit pairs[4];
#pragma unroll
          for (int p = 0; p < 4; ++p) {
            pairs[p] =
                Codes::kBits == 4 ? SplitHalf(x[p], x[p + 4]) : SplitHalf(x[p * 2], x[p * 2 + 1]);
          }
#pragma unroll
          for (int t = 0; t < kKeyTiles; ++t) {
#pragma unroll
            for (int p = 0; p < 4; p += 2) {
              const uint32_t a[4] = {codes[t][0][p], codes[t][1][p], codes[t][0][p + 1],
                                     codes[t][1][p + 1]};
              MultiplyAdd<DType::kF16>(s[t][n], a, pairs[p].rounded, pairs[p + 1].rounded);
              MultiplyAdd<DType::kF16>(s[t][n], a, pairs[p].lost, pairs[p + 1].lost);
            }
          }
        }
      }
    }
    // The next K are on their way while these logits become weights and meet V.
    if (more) {
      load_k(next);
      if (lane * kLine < batch.param_bytes)
        Prefetch(param_head + next.page * item.params_page_stride + lane * kLine);
    }

    // This lane's keys' parameters of V: the scale in the low half, the zero in the high one.
    const std::byte* v_params = params + head_dim * 4;
    const int v_groups = (head_dim + 63) / 64;
    uint32_t v_param[kKeyTiles][2][kVLoads];
#pragma unroll
    for (int t = 0; t < kKeyTiles; ++t) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = t * 16 + half * 8 + r;
        const bool some =
            place.slot + row < page_slots && place.key + row >= begin && place.key + row < end;
#pragma unroll
        for (int h = 0; h < kVLoads; ++h) {
          v_param[t][half][h] = 0;  // of keys that nobody sees nothing is read
          if (!some) continue;
          const std::byte* at =
              v_params + (min(h, v_groups - 1) * page_slots + place.slot + row) * 2;
          v_param[t][half][h] = LoadParam(at) | LoadParam(at + v_groups * page_slots * 2) << 16;
        }
      }
    }

    float decays[kTiles][2];
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      float dot = zero_dot[n];
      dot += __shfl_xor_sync(kAllLanes, dot, 1);
      dot += __shfl_xor_sync(kAllLanes, dot, 2);
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const float zero = __shfl_sync(kAllLanes, dot, (c * 2 + j) * 4);
        const float factor = query_factor[n * 8 + c * 2 + j];
        const KeyRange range = seen[n * 8 + c * 2 + j];
        float top = max[n][j];
#pragma unroll
        for (int t = 0; t < kKeyTiles; ++t) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            float& logit = s[t][n][half * 2 + j];
            const int row = t * 16 + half * 8 + r;
            const int key = place.key + row;
            const bool visible =
                key >= range.begin && key < range.end && place.slot + row < page_slots;
            logit = fmaf(logit, __uint_as_float(k_unit) * Codes::kOver, zero) * factor;
            if (batch.capped != 0) logit = tanhf(logit * batch.cap_scale);
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
        decays[n][j] = decay;
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
      }
    }

#pragma unroll
    for (int h = 0; h < kVLoads; ++h) {
      float v_scale[kKeyTiles][2];
      float v_zero[kKeyTiles][2];
      float top = 0.0f;
#pragma unroll
      for (int t = 0; t < kKeyTiles; ++t) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          v_scale[t][half] = ParamAt(&v_param[t][half][h], 0);
          v_zero[t][half] =
              fmaf(v_scale[t][half], Codes::kCentre, ParamAt(&v_param[t][half][h], 1));
          top = fmaxf(top, v_scale[t][half]);
        }
      }
      const uint32_t bits = ::max(UnitOf(top), unit_bits[h]);
      const float shrunk = __uint_as_float(unit_bits[h]) * InverseOf(bits);
      unit_bits[h] = bits;
      const float inverse = kWeightUnit * InverseOf(bits);
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          zeros[h][n][j] *= decays[n][j];
          const float decay = decays[n][j] * shrunk;
#pragma unroll
          for (int w = 0; w < 4; ++w) {
            o[h][w][n][j] *= decay;
            o[h][w][n][2 + j] *= decay;
          }
        }
      }
#pragma unroll
      for (int t = 0; t < kKeyTiles; ++t) {
        HalfSplit p[kTiles][2];
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            float x[2];
#pragma unroll
            for (int j = 0; j < 2; ++j) {
              // A key that this query does not see may hold anything.
              const float weight = s[t][n][half * 2 + j];
              x[j] = weight == 0.0f ? 0.0f : weight * (v_scale[t][half] * inverse);
              if (weight != 0.0f) zeros[h][n][j] += weight * v_zero[t][half];
            }
            const HalfSplit split = SplitHalf(x[0], x[1]);
            p[n][half] = {TransposePairs(split.rounded), TransposePairs(split.lost)};
          }
        }
        // Pairs of neighbouring keys of each of this lane's 8 dimensions.
        uint32_t codes[2][8];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const uint32_t(&even)[kWordsOf8] = v[t][half * 2][h];
          const uint32_t(&odd)[kWordsOf8] = v[t][half * 2 + 1][h];
          if constexpr (Codes::kBits == 4) {
            Codes::Unpack(__byte_perm(even[0], odd[0], 0x5410), &codes[half][0]);
            Codes::Unpack(__byte_perm(even[0], odd[0], 0x7632), &codes[half][4]);
          } else {
#pragma unroll
            for (int w = 0; w < 2; ++w) {
              Codes::Unpack(__byte_perm(even[w], odd[w], 0x5140), &codes[half][w * 4]);
              Codes::Unpack(__byte_perm(even[w], odd[w], 0x7362), &codes[half][w * 4 + 2]);
            }
          }
        }
#pragma unroll
        for (int w = 0; w < 4; ++w) {
          const uint32_t a[4] = {codes[0][w * 2], codes[0][w * 2 + 1], codes[1][w * 2],
                                 codes[1][w * 2 + 1]};
#pragma unroll
          for (int n = 0; n < kTiles; ++n) {
            MultiplyAdd<DType::kF16>(o[h][w][n], a, p[n][0].rounded, p[n][1].rounded);
            MultiplyAdd<DType::kF16>(o[h][w][n], a, p[n][0].lost, p[n][1].lost);
          }
        }
      }
    }
    if (more) load_v(next);
    place = next;
  }

#pragma unroll
  for (int h = 0; h < kVLoads; ++h) {
    const float unit = __uint_as_float(unit_bits[h]) * (Codes::kOver / kWeightUnit);
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        float zero = zeros[h][n][j];
#pragma unroll
        for (int apart = 4; apart < kWarp; apart *= 2) {
          zero += __shfl_xor_sync(kAllLanes, zero, apart);
        }
#pragma unroll
        for (int w = 0; w < 4; ++w) {
          o[h][w][n][j] = fmaf(o[h][w][n][j], unit, zero);
          o[h][w][n][2 + j] = fmaf(o[h][w][n][2 + j], unit, zero);
        }
      }
    }
  }
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
    if (n * 8 >= work.queries) break;
    if (n > 0) __syncthreads();  // the tile before has been read
    states.Take(warp, lane, max[n], sum[n], min(8, work.queries - n * 8),
                [&](int h, int w, int i) { return o[h][w][n][i]; });
    states.Write(batch, item, work, work.first_query + n * 8, min(8, work.queries - n * 8));
  }
}

template <Encoding kEncoding, int kDim, int kTiles>
cudaError_t LaunchCodes(cudaStream_t stream, DecodeBatch batch, int blocks) {
  using Shape = CodesShape<kEncoding, kDim, kTiles>;
  const int64_t slots = batch.page_slots.divisor;
  batch.page_chunks = Divisor::Of((slots + Shape::kKeyTiles * 16 - 1) / (Shape::kKeyTiles * 16));
  if (batch.head_dim % Shape::kLoadCodes != 0) batch.aligned = 0;
  return LaunchKernel(DecodeCodes<kEncoding, kDim, kTiles>, blocks, Shape::kWarps * kWarp, 0,
                      stream, batch);
}

template <Encoding kEncoding>
cudaError_t LaunchCodes(cudaStream_t stream, const DecodeBatch& batch, int block_queries,
                        int blocks) {
  const bool one = block_queries == 8;
  if (batch.head_dim <= 64) {
    return one ? LaunchCodes<kEncoding, 64, 1>(stream, batch, blocks)
               : LaunchCodes<kEncoding, 64, 2>(stream, batch, blocks);
  }
  if (batch.head_dim <= 128) {
    return one ? LaunchCodes<kEncoding, 128, 1>(stream, batch, blocks)
               : LaunchCodes<kEncoding, 128, 2>(stream, batch, blocks);
  }
  return LaunchCodes<kEncoding, 256, 1>(stream, batch, blocks);
}

}  // namespace headway::cuda

#endif  // HEADWAY_KERNELS_CUDA_ATTENTION_CODES_KERNEL_H_
