// The kernel behind attention_codes.h. Codes become f16, which holds them exactly, on their way
// into the products, and what is not a code stays out of these:
//
//   q · k = q · zero + (q ∘ scale) · code      scale and zero a channel, of a page
//   Σ p v = Σ p zero + Σ (p scale) code        scale and zero a token, of 64 channels
//
// q ∘ scale and p scale are f32, and meet the codes as two f16 numbers, a rounded one and what the
// rounding lost, in units of the largest scale, so that no range is lost. The rest is f32. Nothing
// is rounded to the model's dtype.
//
// A byte of codes is worth up to four of a 16-bit page, so instructions count: q ∘ scale and the
// softmax's steps are done once for all keys of a page, which one warp takes at a time. Codes pass
// through shared memory, each warp's its own: V arrives while K is used, and the next K while V is.
// With 128 dimensions and up to 8 queries, 64 keys take some 1400 instructions of a warp.
#ifndef HEADWAY_KERNELS_CUDA_ATTENTION_CODES_KERNEL_H_
#define HEADWAY_KERNELS_CUDA_ATTENTION_CODES_KERNEL_H_

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/attention_codes.h"
#include "kernels/cuda/attention_codes_copy.h"
#include "kernels/cuda/attention_codes_shape.h"
#include "kernels/cuda/attention_decode_block.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/tensor_core.h"
#include "kernels/cuda/warp.h"

namespace headway::cuda {

template <Encoding kEncoding, int kDim, int kTiles>
__global__ void __launch_bounds__(CodesShape<kEncoding, kDim, kTiles>::kWarps* kWarp,
                                  CodesShape<kEncoding, kDim, kTiles>::kBlocks)
    DecodeCodes(const __grid_constant__ DecodeBatch batch) {
  LetNextStart();
  using Codes = Code<kEncoding>;
  using Shape = CodesShape<kEncoding, kDim, kTiles>;
  constexpr int kWarps = Shape::kWarps;
  constexpr int kChunk = Shape::kChunk;
  constexpr int kRowKeys = Shape::kRowKeys;
  constexpr int kKeyTiles = Shape::kKeyTiles;
  constexpr int kQueries = Shape::kQueries;
  constexpr int kPieces = Shape::kPieces;
  constexpr int kGroups = Shape::kGroups;
  constexpr int kCodes = Shape::kCodes;
  constexpr int kPairs = Shape::kPairs;
  extern __shared__ uint4 memory[];
  auto& shared = *reinterpret_cast<typename Shape::Shared*>(memory);

  const BlockWork work = FindWork(batch, kQueries);
  const DecodeItem& item = batch.items[work.item];
  FindRanges(batch, item, work, shared.ranges);

  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / kWarp;
  const int lane = thread % kWarp;
  const int r = lane / 4;
  const int c = lane % 4;
  const int first_token = batch.group.Divide(work.first_query);
  const int last_token = batch.group.Divide(work.first_query + work.queries - 1);
  const int begin = shared.ranges[0].begin;
  const int end = shared.ranges[last_token - first_token].end;
  // Keys that all queries see.
  const KeyRange common = {shared.ranges[last_token - first_token].begin, shared.ranges[0].end};
  const int head_dim = batch.head_dim;
  const int row_bytes = head_dim * Codes::kBits / 8;
  const int page_slots = static_cast<int>(batch.page_slots.divisor);
  const std::byte* k_head = item.k + work.head * item.head_stride;
  const std::byte* v_head = item.v + work.head * item.head_stride;
  const std::byte* param_head = item.params + work.head * item.params_head_stride;
  const bool aligned = batch.aligned != 0;
  typename Shape::Stage& stage = shared.stages[warp];
  const int lane_unit = Shape::LaneUnit(lane);

  // Chunks are counted from the first page on.
  auto chunk_of = [&](int key) {
    const int slot = item.first_slot + key;
    const int page = batch.page_slots.Divide(slot);
    return page * static_cast<int>(batch.page_chunks.divisor) +
           batch.page_slots.Rest(slot, page) / kChunk;
  };
  // Where a chunk is: its page, its first slot there and that slot as a key; and which of its rows
  // somebody sees.
  struct Place {
    int page, slot, key, first, last;
  };
  auto place_of = [&](int chunk) {
    Place place;
    place.page = batch.page_chunks.Divide(chunk);
    place.slot = batch.page_chunks.Rest(chunk, place.page) * kChunk;
    place.key = place.page * page_slots + place.slot - item.first_slot;
    place.first = ::max(begin - place.key, 0);
    place.last = min(min(end - place.key, page_slots - place.slot), kChunk);
    return place;
  };
  auto copy_k = [&](const Place& place) {
    const std::byte* params = param_head + place.page * item.params_page_stride;
    CopyRows<Shape>(k_head + place.page * item.page_stride + place.slot * row_bytes, row_bytes,
                    place.first, place.last, lane, stage.k);
    CopyParams<2, kDim>(params, 2, head_dim, head_dim, aligned, lane, stage.k_params[0]);
  };
  auto copy_v = [&](const Place& place) {
    const std::byte* params = param_head + place.page * item.params_page_stride;
    const int groups = (head_dim + 63) / 64;
    CopyRows<Shape>(v_head + place.page * item.page_stride + place.slot * row_bytes, row_bytes,
                    place.first, place.last, lane, stage.v);
    // Scales, then zeros, which lie behind those of the groups that there are.
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      CopyParams<kGroups, kChunk>(
          params + (head_dim * 2 + i * groups * page_slots + place.slot) * 2, groups, page_slots,
          page_slots - place.slot, aligned, lane, stage.v_params[i][0]);
    }
  };

  int chunk = begin < end ? chunk_of(begin) + warp : 0;
  const int last_chunk = begin < end ? chunk_of(end - 1) : -1;
  Place place = place_of(chunk);
  // The first keys are under way while the queries are still computed.
  if (min(place.key + kChunk, end) > KeysOfEarlierSteps(item)) WaitForPrevious();
  if (chunk <= last_chunk) {
    copy_k(place);
    GroupCopies();
    copy_v(place);
    GroupCopies();
  }
  WaitForPrevious();

  if (thread < kQueries) {
    shared.seen[thread] =
        thread < work.queries
            ? shared.ranges[batch.group.Divide(work.first_query + thread) - first_token]
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
    if (lane == 0) shared.query_factor[query] = __uint_as_float(unit) / kQueryUnit;
    const float inverse = kQueryUnit * InverseOf(unit);
#pragma unroll
    for (int i = 0; i < kDim / kWarp; ++i) {
      const int dim = i * kWarp + lane;
      const int owner = query % 8 * 4 + dim / kCodes % 4;
      float4& to = shared.queries[query / 8][dim / (4 * kCodes)][dim % kCodes / 4][owner];
      reinterpret_cast<float*>(&to)[dim % 4] = values[i] * inverse;
    }
  }

  // This lane's queries are tile * 8 + 2c and the next one.
  float max[kTiles][2];
  float sum[kTiles][2];
  float zeros[kGroups][kTiles][2] = {};  // this lane's keys' part of Σ p zero
  uint32_t unit_bits[kGroups];           // of p scale
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      max[n][j] = kNoKeys;
      sum[n][j] = 0.0f;
    }
  }
#pragma unroll
  for (int h = 0; h < kGroups; ++h) unit_bits[h] = 27u << 23;
  // o[h][m]: rows r and r + 8 of matrix m of group h are two neighbouring dimensions.
  float o[kGroups][4][kTiles][4] = {};
  __syncthreads();

  for (; chunk <= last_chunk; chunk += kWarps) {
    const Place next = place_of(chunk + kWarps);
    const bool more = chunk + kWarps <= last_chunk;
    WaitForCopiesButNewest();
    __syncwarp();  // K is there

    // The page's largest scale of K.
    float largest = 0.0f;
    uint32_t some_scales[kDim / kWarp / 2];
    LoadParams<kDim / kWarp>(stage.k_params[0] + lane * (kDim / kWarp), some_scales);
#pragma unroll
    for (int i = 0; i < kDim / kWarp; ++i) largest = fmaxf(largest, ParamAt(some_scales, i));
    const uint32_t k_unit = UnitOf(largest);
    const float k_inverse = InverseOf(k_unit);

    float s[kKeyTiles][kTiles][4] = {};
    float zero_dot[kTiles] = {};  // q · zero over this lane's dimensions, of query r of the tile
#pragma unroll 1
    for (int piece = 0; piece < kPieces; piece += 2) {
      SplitPair q[kTiles][2][kPairs];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int dim = ((piece + i) * 4 + c) * kCodes;
        uint32_t scales[kCodes / 2];
        uint32_t zeros_of_k[kCodes / 2];
        LoadParams<kCodes>(stage.k_params[0] + dim, scales);
        LoadParams<kCodes>(stage.k_params[1] + dim, zeros_of_k);
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
          float x[kCodes];
#pragma unroll
          for (int e = 0; e < kCodes; ++e) {
            if (e % 4 == 0) {
              const float4 some = shared.queries[n][piece + i][e / 4][lane];
              x[e] = some.x;
              x[e + 1] = some.y;
              x[e + 2] = some.z;
              x[e + 3] = some.w;
            }
            zero_dot[n] = fmaf(x[e], ParamAt(zeros_of_k, e), zero_dot[n]);
            x[e] *= ParamAt(scales, e) * (k_inverse * (Codes::Over(e % kPairs) / Codes::Over(0)));
          }
#pragma unroll
          for (int p = 0; p < kPairs; ++p) q[n][i][p] = SplitHalf(x[p], x[p + kPairs]);
        }
      }
#pragma unroll
      for (int t = 0; t < kKeyTiles; ++t) {
        uint32_t words[4];
        LoadMatrices(stage.k + Shape::UnitAt(lane_unit, t, piece), words);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          uint32_t even[kPairs];
          uint32_t odd[kPairs];
          Codes::Unpack(words[i * 2], even);
          Codes::Unpack(words[i * 2 + 1], odd);
#pragma unroll
          for (int p = 0; p < kPairs; p += 2) {
            const uint32_t a[4] = {even[p], odd[p], even[p + 1], odd[p + 1]};
#pragma unroll
            for (int n = 0; n < kTiles; ++n) {
              MultiplyAdd<DType::kF16>(s[t][n], a, q[n][i][p].rounded, q[n][i][p + 1].rounded);
              MultiplyAdd<DType::kF16>(s[t][n], a, q[n][i][p].lost, q[n][i][p + 1].lost);
            }
          }
        }
      }
    }
    __syncwarp();  // K is read
    if (more) copy_k(next);
    GroupCopies();

    const bool whole =
        place.key >= common.begin && place.key + kChunk <= common.end && place.last == kChunk;
    float decays[kTiles][2];
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      float dot = zero_dot[n];
      dot += __shfl_xor_sync(kAllLanes, dot, 1);
      dot += __shfl_xor_sync(kAllLanes, dot, 2);
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const float factor = shared.query_factor[n * 8 + c * 2 + j] *
                             (batch.capped != 0 ? batch.cap_scale : batch.logit_scale);
        const float code_factor = __uint_as_float(k_unit) * Codes::Over(0) * factor;
        const float zero = __shfl_sync(kAllLanes, dot, (c * 2 + j) * 4) * factor;
#pragma unroll
        for (int t = 0; t < kKeyTiles; ++t) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            float& logit = s[t][n][half * 2 + j];
            logit = fmaf(logit, code_factor, zero);
            if (batch.capped != 0) logit = tanhf(logit) * batch.logit_scale;
          }
        }
        if (!whole) {
          const KeyRange range = shared.seen[n * 8 + c * 2 + j];
#pragma unroll
          for (int t = 0; t < kKeyTiles; ++t) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
              const int row = r * kRowKeys + t * 2 + half;
              const int key = place.key + row;
              const bool visible = key >= range.begin && key < range.end && row < place.last;
              if (!visible) s[t][n][half * 2 + j] = kNoKeys;
            }
          }
        }
        float top = max[n][j];
#pragma unroll
        for (int t = 0; t < kKeyTiles; ++t) {
          top = fmaxf(top, fmaxf(s[t][n][j], s[t][n][2 + j]));
        }
#pragma unroll
        for (int apart = 4; apart < kWarp; apart *= 2) {
          top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, apart));
        }
        const float base = Finite(top);
        const float decay = Exp2(max[n][j] - base);
        decays[n][j] = decay;
        max[n][j] = top;
        sum[n][j] *= decay;
#pragma unroll
        for (int t = 0; t < kKeyTiles; ++t) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            float& p = s[t][n][half * 2 + j];
            p = Exp2(p - base);
            sum[n][j] += p;
          }
        }
      }
    }

    // A key that not all queries see may hold anything: for those that do not it does not count.
    auto add_values = [&](auto kAllSeen) {
#pragma unroll
      for (int h = 0; h < kGroups; ++h) {
        uint32_t scales[kRowKeys / 2];
        uint32_t zeros_of_v[kRowKeys / 2];
        LoadParams<kRowKeys>(stage.v_params[0][h] + r * kRowKeys, scales);
        LoadParams<kRowKeys>(stage.v_params[1][h] + r * kRowKeys, zeros_of_v);
        float top = 0.0f;
#pragma unroll
        for (int b = 0; b < kRowKeys; ++b) top = fmaxf(top, ParamAt(scales, b));
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
            for (int m = 0; m < 4; ++m) {
              o[h][m][n][j] *= decay;
              o[h][m][n][2 + j] *= decay;
            }
          }
        }
#pragma unroll
        for (int t = 0; t < kKeyTiles; ++t) {
          SplitPair p[kTiles][2];
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const float scale = ParamAt(scales, t * 2 + half);
            const float zero = ParamAt(zeros_of_v, t * 2 + half);
#pragma unroll
            for (int n = 0; n < kTiles; ++n) {
              float x[2];
#pragma unroll
              for (int j = 0; j < 2; ++j) {
                const float weight = s[t][n][half * 2 + j];
                const bool counts = kAllSeen.value || weight != 0.0f;
                x[j] = counts ? weight * (scale * inverse) : 0.0f;
                if (counts) zeros[h][n][j] += weight * zero;
              }
              const SplitPair split = SplitHalf(x[0], x[1]);
              p[n][half] = {TransposePairs(split.rounded), TransposePairs(split.lost)};
            }
          }
#pragma unroll
          for (int piece = 0; piece < Shape::kGroupPieces; piece += 2) {
            uint32_t words[4];
            LoadTransposed(stage.v + Shape::UnitAt(lane_unit, t, h * Shape::kGroupPieces + piece),
                           words);
#pragma unroll
            for (int i = 0; i < 2; ++i) {
              uint32_t even[kPairs];  // pairs of keys of two rows, of a dimension each
              uint32_t odd[kPairs];
              Codes::Unpack(words[i * 2], even);
              Codes::Unpack(words[i * 2 + 1], odd);
#pragma unroll
              for (int e = 0; e < kPairs; e += 2) {
                const int m = ((piece + i) * kPairs + e) / 2;
                const uint32_t a[4] = {even[e], even[e + 1], odd[e], odd[e + 1]};
#pragma unroll
                for (int n = 0; n < kTiles; ++n) {
                  MultiplyAdd<DType::kF16>(o[h][m][n], a, p[n][0].rounded, p[n][1].rounded);
                  MultiplyAdd<DType::kF16>(o[h][m][n], a, p[n][0].lost, p[n][1].lost);
                }
              }
            }
          }
        }
      }
    };
    WaitForCopiesButNewest();
    __syncwarp();  // V is there
    if (whole) {
      add_values(std::true_type{});
    } else {
      // Of keys that nobody sees nothing counts.
      for (int i = lane; i < 2 * kGroups * kChunk; i += kWarp) {
        const int row = i % kChunk;
        if (row < place.first || row >= place.last) stage.v_params[0][0][i] = 0;
      }
      __syncwarp();
      add_values(std::false_type{});
    }
    __syncwarp();  // V is read
    if (more) copy_v(next);
    GroupCopies();
    place = next;
  }

#pragma unroll
  for (int h = 0; h < kGroups; ++h) {
    const float unit = __uint_as_float(unit_bits[h]) * (1.0f / kWeightUnit);
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
        for (int m = 0; m < 4; ++m) {
          o[h][m][n][j] = fmaf(o[h][m][n][j], unit * Codes::Over(0), zero);
          o[h][m][n][2 + j] = fmaf(o[h][m][n][2 + j], unit * Codes::Over(1), zero);
        }
      }
    }
  }
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
    if (n * 8 >= work.queries) break;
    __syncthreads();  // the codes, and the tile before, have been read
    shared.states.Take(
        warp, lane, max[n], sum[n], min(8, work.queries - n * 8), [&](float* row, int j) {
#pragma unroll
          for (int h = 0; h < kGroups; ++h) {
#pragma unroll
            for (int m = 0; m < 4; ++m) {
              const int dim = h * 64 + m * 2 / kPairs * 8 * kPairs + r * kPairs + m * 2 % kPairs;
              *reinterpret_cast<float2*>(row + dim) = make_float2(o[h][m][n][j], o[h][m][n][2 + j]);
            }
          }
        });
    shared.states.Write(batch, item, work, work.first_query + n * 8, min(8, work.queries - n * 8));
  }
}

template <Encoding kEncoding, int kDim, int kTiles>
cudaError_t LaunchCodes(cudaStream_t stream, DecodeBatch batch, int blocks) {
  using Shape = CodesShape<kEncoding, kDim, kTiles>;
  constexpr auto kKernel = DecodeCodes<kEncoding, kDim, kTiles>;
  constexpr int kShared = static_cast<int>(sizeof(typename Shape::Shared));
  // Every device that launches it has to be told.
  cudaError_t error =
      cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
  if (error != cudaSuccess) return error;
  error = cudaFuncSetAttribute(kKernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                               cudaSharedmemCarveoutMaxShared);
  if (error != cudaSuccess) return error;
  const int64_t slots = batch.page_slots.divisor;
  batch.page_chunks = Divisor::Of((slots + Shape::kChunk - 1) / Shape::kChunk);
  if (slots % 8 != 0) batch.aligned = 0;
  return LaunchKernel(kKernel, blocks, Shape::kWarps * kWarp, kShared, stream, batch);
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
