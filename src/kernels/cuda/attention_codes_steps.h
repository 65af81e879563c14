// The steps of the kernel behind attention_codes.h, in the order in which it takes them: where a
// chunk of keys lies, its copies, the queries, products with K, logits, and products with V.
#ifndef HEADWAY_KERNELS_CUDA_ATTENTION_CODES_STEPS_H_
#define HEADWAY_KERNELS_CUDA_ATTENTION_CODES_STEPS_H_

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/attention_codes_copy.h"
#include "kernels/cuda/attention_codes_shape.h"
#include "kernels/cuda/attention_decode_block.h"
#include "kernels/cuda/attention_decode_steps.h"
#include "kernels/cuda/tensor_core.h"
#include "kernels/cuda/warp.h"

namespace headway::cuda {

// Where parameters of encoded pages are, beside what BlockKeys says of their codes.
struct EncodedPages {
  const std::byte* params;  // of the head
  int page_slots;
  bool aligned;
};

// Where a chunk is: its page, its first slot there and that slot as a key; and which of its rows
// some query sees.
struct Place {
  int page;
  int slot;
  int key;
  int first;
  int last;
};

// Chunks are counted from the first page on.
template <typename Shape>
__device__ __forceinline__ int ChunkOf(const BlockKeys& keys, int key) {
  const DecodeShape& batch = keys.batch;
  const int slot = keys.item.first_slot + key;
  const int page = batch.page_slots.Divide(slot);
  return page * static_cast<int>(batch.page_chunks.divisor) +
         batch.page_slots.Rest(slot, page) / Shape::kChunk;
}

template <typename Shape>
__device__ __forceinline__ Place PlaceOf(const BlockKeys& keys, int page_slots, int chunk) {
  Place place;
  place.page = keys.batch.page_chunks.Divide(chunk);
  place.slot = keys.batch.page_chunks.Rest(chunk, place.page) * Shape::kChunk;
  place.key = place.page * page_slots + place.slot - keys.item.first_slot;
  place.first = ::max(keys.some.begin - place.key, 0);
  place.last = min(min(keys.some.end - place.key, page_slots - place.slot), Shape::kChunk);
  return place;
}

template <typename Shape>
__device__ __forceinline__ void CopyKeys(const BlockKeys& keys, const EncodedPages& pages,
                                         const Place& place, int lane,
                                         typename Shape::Stage& stage) {
  const std::byte* params = pages.params + place.page * keys.item.params_page_stride;
  CopyRows<Shape>(keys.k + place.page * keys.item.page_stride + place.slot * keys.slot_bytes,
                  keys.slot_bytes, place.first, place.last, lane, stage.k);
  CopyParams<2, Shape::kDims>(params, 2, keys.head_dim, keys.head_dim, pages.aligned, lane,
                              stage.k_params[0]);
}

template <typename Shape>
__device__ __forceinline__ void CopyValues(const BlockKeys& keys, const EncodedPages& pages,
                                           const Place& place, int lane,
                                           typename Shape::Stage& stage) {
  const std::byte* params = pages.params + place.page * keys.item.params_page_stride;
  const int groups = (keys.head_dim + 63) / 64;
  CopyRows<Shape>(keys.v + place.page * keys.item.page_stride + place.slot * keys.slot_bytes,
                  keys.slot_bytes, place.first, place.last, lane, stage.v);
  // Scales, then zeros, which lie behind those of the groups that there are.
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    CopyParams<Shape::kGroups, Shape::kChunk>(
        params + (keys.head_dim * 2 + i * groups * pages.page_slots + place.slot) * 2, groups,
        pages.page_slots, pages.page_slots - place.slot, pages.aligned, lane, stage.v_params[i][0]);
  }
}

// The block's queries, each in units of its largest number.
template <typename Shape>
__device__ __forceinline__ void LoadQueries(const BlockKeys& keys, const Lane& lane,
                                            typename Shape::Shared& shared) {
  constexpr int kNumbers = Shape::kDims / kWarp;
  for (int query = lane.warp; query < Shape::kQueries; query += Shape::kWarps) {
    float values[kNumbers];
    float largest = 0.0f;
#pragma unroll
    for (int i = 0; i < kNumbers; ++i) {
      const int dim = i * kWarp + lane.lane;
      values[i] = 0.0f;
      if (query < keys.work.queries && dim < keys.head_dim) {
        values[i] = LoadQuery(keys.item.q, QueryRow(keys, query) + dim, keys.batch.q_dtype);
      }
      largest = fmaxf(largest, fabsf(values[i]));
    }
    const uint32_t unit = UnitOf(largest);
    if (lane.lane == 0) shared.query_factor[query] = __uint_as_float(unit) / kQueryUnit;
    const float inverse = kQueryUnit * InverseOf(unit);
#pragma unroll
    for (int i = 0; i < kNumbers; ++i) {
      const int dim = i * kWarp + lane.lane;
      const int owner = query % 8 * 4 + dim / Shape::kCodes % 4;
      float4& to =
          shared.queries[query / 8][dim / (4 * Shape::kCodes)][dim % Shape::kCodes / 4][owner];
      reinterpret_cast<float*>(&to)[dim % 4] = values[i] * inverse;
    }
  }
}

// The unit of the page's scales of K.
template <typename Shape>
__device__ __forceinline__ uint32_t UnitOfKeys(const typename Shape::Stage& stage, int lane) {
  constexpr int kNumbers = Shape::kDims / kWarp;
  float largest = 0.0f;
  uint32_t some_scales[kNumbers / 2];
  LoadParams<kNumbers>(stage.k_params[0] + lane * kNumbers, some_scales);
#pragma unroll
  for (int i = 0; i < kNumbers; ++i) largest = fmaxf(largest, ParamAt(some_scales, i));
  return UnitOf(largest);
}

// Two pieces of rows of codes.
struct Piece {
  int piece;      // the first
  float inverse;  // of the unit of K's scales
};
// The fragments of q ∘ scale for two pieces of a row from `piece` on, and this lane's dimensions of
// q · zero.
template <typename Shape>
__device__ __forceinline__ void ScaleQueries(const typename Shape::Shared& shared,
                                             const typename Shape::Stage& stage, const Lane& lane,
                                             const Piece& at, float (&zero_dot)[Shape::kQueryTiles],
                                             typename Shape::Scaled& q) {
  constexpr int kCodes = Shape::kCodes;
  constexpr int kPairs = Shape::kPairs;
  using Codes = typename Shape::Codes;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int dim = ((at.piece + i) * 4 + lane.c) * kCodes;
    uint32_t scales[kCodes / 2];
    uint32_t zeros[kCodes / 2];
    LoadParams<kCodes>(stage.k_params[0] + dim, scales);
    LoadParams<kCodes>(stage.k_params[1] + dim, zeros);
#pragma unroll
    for (int n = 0; n < Shape::kQueryTiles; ++n) {
      float x[kCodes];
#pragma unroll
      for (int e = 0; e < kCodes; ++e) {
        if (e % 4 == 0) {
          const float4 some = shared.queries[n][at.piece + i][e / 4][lane.lane];
          x[e] = some.x;
          x[e + 1] = some.y;
          x[e + 2] = some.z;
          x[e + 3] = some.w;
        }
        zero_dot[n] = fmaf(x[e], ParamAt(zeros, e), zero_dot[n]);
        x[e] *= ParamAt(scales, e) * (at.inverse * (Codes::Over(e % kPairs) / Codes::Over(0)));
      }
#pragma unroll
      for (int p = 0; p < kPairs; ++p) q[n][i][p] = SplitHalf(x[p], x[p + kPairs]);
    }
  }
}

// s += (codes of K) q
template <typename Shape>
__device__ __forceinline__ void MultiplyKeys(const typename Shape::Stage& stage, int lane_unit,
                                             int piece, const typename Shape::Scaled& q,
                                             typename Shape::Scores& s) {
#pragma unroll
  for (int t = 0; t < Shape::kKeyTiles; ++t) {
    uint32_t words[4];
    LoadMatrices(stage.k + Shape::UnitAt(lane_unit, t, piece), words);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      uint32_t even[Shape::kPairs];
      uint32_t odd[Shape::kPairs];
      Shape::Codes::Unpack(words[i * 2], even);
      Shape::Codes::Unpack(words[i * 2 + 1], odd);
#pragma unroll
      for (int p = 0; p < Shape::kPairs; p += 2) {
        const uint32_t a[4] = {even[p], odd[p], even[p + 1], odd[p + 1]};
#pragma unroll
        for (int n = 0; n < Shape::kQueryTiles; ++n) {
          MultiplyAdd<DType::kF16>(s[t][n], a, q[n][i][p].rounded, q[n][i][p + 1].rounded);
          MultiplyAdd<DType::kF16>(s[t][n], a, q[n][i][p].lost, q[n][i][p + 1].lost);
        }
      }
    }
  }
}

// Products with codes become logits: a factor makes numbers of them, then the zeros' part is added.
template <typename Shape>
__device__ __forceinline__ void ToLogits(const DecodeShape& batch, float code_factor, float zero,
                                         int n, int j, typename Shape::Scores& s) {
#pragma unroll
  for (int t = 0; t < Shape::kKeyTiles; ++t) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float& logit = s[t][n][half * 2 + j];
      logit = fmaf(logit, code_factor, zero);
      if (batch.capped != 0) logit = tanhf(logit) * batch.logit_scale;
    }
  }
}

// Logits of keys that the query does not see become kNoKeys.
template <typename Shape>
__device__ __forceinline__ void HideKeys(const KeyRange range, const Place& place, int r, int n,
                                         int j, typename Shape::Scores& s) {
#pragma unroll
  for (int t = 0; t < Shape::kKeyTiles; ++t) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = r * Shape::kRowKeys + t * 2 + half;
      const int key = place.key + row;
      const bool visible = key >= range.begin && key < range.end && row < place.last;
      if (!visible) s[t][n][half * 2 + j] = kNoKeys;
    }
  }
}

// Units of p scale grow with the largest scale.
struct WeightUnit {
  float shrunk;   // the unit of before in the new one
  float inverse;  // of the new one
};
template <int kRowKeys>
__device__ __forceinline__ WeightUnit GrowUnit(const uint32_t (&scales)[kRowKeys / 2],
                                               uint32_t& unit_bits) {
  float top = 0.0f;
#pragma unroll
  for (int b = 0; b < kRowKeys; ++b) top = fmaxf(top, ParamAt(scales, b));
  const uint32_t bits = ::max(UnitOf(top), unit_bits);
  const float shrunk = __uint_as_float(unit_bits) * InverseOf(bits);
  unit_bits = bits;
  return {shrunk, kWeightUnit * InverseOf(bits)};
}

template <typename Shape>
__device__ __forceinline__ void Decay(const typename Shape::Rows& decays, float shrunk,
                                      typename Shape::Rows& zeros,
                                      typename Shape::GroupOutputs& o) {
#pragma unroll
  for (int n = 0; n < Shape::kQueryTiles; ++n) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      zeros[n][j] *= decays[n][j];
      const float decay = decays[n][j] * shrunk;
#pragma unroll
      for (int m = 0; m < 4; ++m) {
        o[m][n][j] *= decay;
        o[m][n][2 + j] *= decay;
      }
    }
  }
}

// Scales and zeros of the two keys of a tile that this lane has.
struct TileParams {
  float scales[2];
  float zeros[2];
};
// The fragments of p scale of a tile whose keys' scales and zeros are given, in `inverse` units; Σ
// p zero grows. Without kAllSeen, a key that some query does not see may hold anything: for such
// queries it does not count.
template <typename Shape, bool kAllSeen>
__device__ __forceinline__ void ScaleWeights(const float (&weights)[Shape::kQueryTiles][4],
                                             const TileParams& params, float inverse,
                                             typename Shape::Rows& zeros,
                                             typename Shape::Weights& p) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float scale = params.scales[half];
    const float zero = params.zeros[half];
#pragma unroll
    for (int n = 0; n < Shape::kQueryTiles; ++n) {
      float x[2];
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const float weight = weights[n][half * 2 + j];
        const bool counts = kAllSeen || weight != 0.0f;
        x[j] = counts ? weight * (scale * inverse) : 0.0f;
        if (counts) zeros[n][j] += weight * zero;
      }
      const SplitPair split = SplitHalf(x[0], x[1]);
      p[n][half] = {TransposePairs(split.rounded), TransposePairs(split.lost)};
    }
  }
}

// o += (codes of V) p for tile t of the keys and group h of the channels.
template <typename Shape>
__device__ __forceinline__ void MultiplyValues(const uint4* codes, int lane_unit, int t, int h,
                                               const typename Shape::Weights& p,
                                               typename Shape::GroupOutputs& o) {
#pragma unroll
  for (int piece = 0; piece < Shape::kGroupPieces; piece += 2) {
    uint32_t words[4];
    LoadTransposed(codes + Shape::UnitAt(lane_unit, t, h * Shape::kGroupPieces + piece), words);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      uint32_t even[Shape::kPairs];  // pairs of keys of two rows, of a dimension each
      uint32_t odd[Shape::kPairs];
      Shape::Codes::Unpack(words[i * 2], even);
      Shape::Codes::Unpack(words[i * 2 + 1], odd);
#pragma unroll
      for (int e = 0; e < Shape::kPairs; e += 2) {
        const int m = ((piece + i) * Shape::kPairs + e) / 2;
        const uint32_t a[4] = {even[e], even[e + 1], odd[e], odd[e + 1]};
#pragma unroll
        for (int n = 0; n < Shape::kQueryTiles; ++n) {
          MultiplyAdd<DType::kF16>(o[m][n], a, p[n][0].rounded, p[n][1].rounded);
          MultiplyAdd<DType::kF16>(o[m][n], a, p[n][0].lost, p[n][1].lost);
        }
      }
    }
  }
}

// Sets scales and zeros of values that no query sees to 0: they may be anything.
template <typename Shape>
__device__ __forceinline__ void HideValues(const Place& place, int lane,
                                           typename Shape::Stage& stage) {
  for (int i = lane; i < 2 * Shape::kGroups * Shape::kChunk; i += kWarp) {
    const int row = i % Shape::kChunk;
    if (row < place.first || row >= place.last) stage.v_params[0][0][i] = 0;
  }
  __syncwarp();
}

// Outputs in units of p scale become numbers, with the zeros' part of all lanes.
template <typename Shape>
__device__ __forceinline__ void AddZeros(uint32_t unit_bits, const typename Shape::Rows& zeros,
                                         typename Shape::GroupOutputs& o) {
  using Codes = typename Shape::Codes;
  const float unit = __uint_as_float(unit_bits) * (1.0f / kWeightUnit);
#pragma unroll
  for (int n = 0; n < Shape::kQueryTiles; ++n) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      float zero = zeros[n][j];
#pragma unroll
      for (int apart = 4; apart < kWarp; apart *= 2) {
        zero += __shfl_xor_sync(kAllLanes, zero, apart);
      }
#pragma unroll
      for (int m = 0; m < 4; ++m) {
        o[m][n][j] = fmaf(o[m][n][j], unit * Codes::Over(0), zero);
        o[m][n][2 + j] = fmaf(o[m][n][2 + j], unit * Codes::Over(1), zero);
      }
    }
  }
}

}  // namespace headway::cuda

#endif  // HEADWAY_KERNELS_CUDA_ATTENTION_CODES_STEPS_H_
