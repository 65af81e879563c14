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
#include "kernels/cuda/attention_codes_shape.h"
#include "kernels/cuda/attention_codes_steps.h"
#include "kernels/cuda/attention_decode_block.h"
#include "kernels/cuda/attention_decode_launch.h"
#include "kernels/cuda/attention_decode_steps.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/occupancy.h"
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
  extern __shared__ uint4 memory[];
  auto& shared = *reinterpret_cast<typename Shape::Shared*>(memory);

  const BlockKeys keys = FindKeys(batch, Shape::kQueries, Codes::kBits, shared.ranges);
  const Lane lane = ThisLane();
  const EncodedPages pages = {
      .params = keys.item.params + keys.work.head * keys.item.params_head_stride,
      .page_slots = static_cast<int>(batch.page_slots.divisor),
      .aligned = batch.aligned != 0};
  typename Shape::Stage& stage = shared.stages[lane.warp];
  const int lane_unit = Shape::LaneUnit(lane.lane);

  const bool any = keys.some.begin < keys.some.end;
  const int chunk = any ? ChunkOf<Shape>(keys, keys.some.begin) + lane.warp : 0;
  const int end = any ? ChunkOf<Shape>(keys, keys.some.end - 1) + 1 : 0;
  Place place = PlaceOf<Shape>(keys, pages.page_slots, chunk);
  // The first keys are under way while the queries are still computed.
  if (min(place.key + kChunk, keys.some.end) > KeysOfEarlierSteps(keys.item)) WaitForPrevious();
  if (chunk < end) {
    CopyKeys<Shape>(keys, pages, place, lane.lane, stage);
    GroupCopies();
    CopyValues<Shape>(keys, pages, place, lane.lane, stage);
    GroupCopies();
  }
  WaitForPrevious();
  FillSeen(keys, lane.thread, shared.ranges, shared.seen);
  LoadQueries<Shape>(keys, lane, shared);

  typename Shape::Scores s;
  float zero_dot[kTiles];  // q · zero over this lane's dimensions, of query r of the tile
  uint32_t k_unit;
  bool whole;
  typename Shape::Rows max;
  typename Shape::Rows sum;
  typename Shape::Rows decays;
  typename Shape::Rows zeros[Shape::kGroups] = {};  // this lane's keys' part of Σ p zero
  uint32_t unit_bits[Shape::kGroups];               // of p scale
  typename Shape::GroupOutputs o[Shape::kGroups] = {};
  StartSoftmax(max, sum);
#pragma unroll
  for (int h = 0; h < Shape::kGroups; ++h) unit_bits[h] = 27u << 23;
  __syncthreads();

  Place place_of_next;
  const auto ready = [&](int at) {
    place_of_next = PlaceOf<Shape>(keys, pages.page_slots, at + kWarps);
    WaitForCopiesButNewest();
    __syncwarp();  // K is there
  };
  const auto scores = [&](int /*at*/) {
    k_unit = UnitOfKeys<Shape>(stage, lane.lane);
    const float inverse = InverseOf(k_unit);
    Clear(s);
#pragma unroll
    for (int n = 0; n < kTiles; ++n) zero_dot[n] = 0.0f;
#pragma unroll 1
    for (int piece = 0; piece < Shape::kPieces; piece += 2) {
      typename Shape::Scaled q;
      ScaleQueries<Shape>(shared, stage, lane, {piece, inverse}, zero_dot, q);
      MultiplyKeys<Shape>(stage, lane_unit, piece, q, s);
    }
  };
  const auto next = [&](int at) {
    __syncwarp();  // K is read
    if (at < end) CopyKeys<Shape>(keys, pages, place_of_next, lane.lane, stage);
    GroupCopies();
  };
  const auto softmax = [&](int /*at*/) {
    whole =
        place.key >= keys.all.begin && place.key + kChunk <= keys.all.end && place.last == kChunk;
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      float dot = zero_dot[n];
      dot += __shfl_xor_sync(kAllLanes, dot, 1);
      dot += __shfl_xor_sync(kAllLanes, dot, 2);
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int query = n * 8 + lane.c * 2 + j;
        const float factor =
            shared.query_factor[query] * (batch.capped != 0 ? batch.cap_scale : batch.logit_scale);
        const float code_factor = __uint_as_float(k_unit) * Codes::Over(0) * factor;
        const float zero = __shfl_sync(kAllLanes, dot, (lane.c * 2 + j) * 4) * factor;
        ToLogits<Shape>(batch, code_factor, zero, n, j, s);
        if (!whole) HideKeys<Shape>(shared.seen[query], place, lane.r, n, j, s);
        decays[n][j] = Weigh<Shape>(n, j, s, max[n][j], sum[n][j]);
      }
    }
  };
  const auto add_values = [&](auto kAllSeen) {
#pragma unroll
    for (int h = 0; h < Shape::kGroups; ++h) {
      uint32_t scales[kRowKeys / 2];
      uint32_t zeros_of_v[kRowKeys / 2];
      LoadParams<kRowKeys>(stage.v_params[0][h] + lane.r * kRowKeys, scales);
      LoadParams<kRowKeys>(stage.v_params[1][h] + lane.r * kRowKeys, zeros_of_v);
      const WeightUnit unit = GrowUnit<kRowKeys>(scales, unit_bits[h]);
      Decay<Shape>(decays, unit.shrunk, zeros[h], o[h]);
#pragma unroll
      for (int t = 0; t < Shape::kKeyTiles; ++t) {
        const TileParams params = {{ParamAt(scales, t * 2), ParamAt(scales, t * 2 + 1)},
                                   {ParamAt(zeros_of_v, t * 2), ParamAt(zeros_of_v, t * 2 + 1)}};
        typename Shape::Weights p;
        ScaleWeights<Shape, kAllSeen.value>(s[t], params, unit.inverse, zeros[h], p);
        MultiplyValues<Shape>(stage.v, lane_unit, t, h, p, o[h]);
      }
    }
  };
  const auto values = [&](int at) {
    WaitForCopiesButNewest();
    __syncwarp();  // V is there
    if (whole) {
      add_values(std::true_type{});
    } else {
      HideValues<Shape>(place, lane.lane, stage);
      add_values(std::false_type{});
    }
    __syncwarp();  // V is read
    if (at + kWarps < end) CopyValues<Shape>(keys, pages, place_of_next, lane.lane, stage);
    GroupCopies();
    place = place_of_next;
  };
  ForChunks(chunk, end, kWarps, ChunkSteps{ready, scores, next, softmax, values});

#pragma unroll
  for (int h = 0; h < Shape::kGroups; ++h) AddZeros<Shape>(unit_bits[h], zeros[h], o[h]);
  __syncthreads();  // the codes have been read
  WriteStates(keys, lane, max, sum, shared.states, [&](float* row, int n, int j) {
#pragma unroll
    for (int h = 0; h < Shape::kGroups; ++h) {
#pragma unroll
      for (int m = 0; m < 4; ++m) {
        constexpr int kPairs = Shape::kPairs;
        const int dim = h * 64 + m * 2 / kPairs * 8 * kPairs + lane.r * kPairs + m * 2 % kPairs;
        *reinterpret_cast<float2*>(row + dim) = make_float2(o[h][m][n][j], o[h][m][n][2 + j]);
      }
    }
  });
}

template <Encoding kEncoding, int kDim, int kTiles>
cudaError_t LaunchCodes(cudaStream_t stream, DecodeBatch batch, int blocks) {
  using Shape = CodesShape<kEncoding, kDim, kTiles>;
  constexpr auto kKernel = DecodeCodes<kEncoding, kDim, kTiles>;
  constexpr int kShared = static_cast<int>(sizeof(typename Shape::Shared));
  const cudaError_t error = AllowShared(kKernel, kShared);
  if (error != cudaSuccess) return error;
  const int64_t slots = batch.page_slots.divisor;
  batch.page_chunks = Divisor::Of((slots + Shape::kChunk - 1) / Shape::kChunk);
  if (slots % 8 != 0) batch.aligned = 0;
  return LaunchKernel(kKernel, blocks, Shape::kWarps * kWarp, kShared, stream, batch);
}

template <Encoding kEncoding>
cudaError_t LaunchCodes(cudaStream_t stream, const DecodeBatch& batch, int block_queries,
                        int blocks) {
  return LaunchForShape(batch.head_dim, block_queries, [&]<int kDim, int kTiles>() {
    return LaunchCodes<kEncoding, kDim, kTiles>(stream, batch, blocks);
  });
}

template <Encoding kEncoding>
int CodesBlocksAtOnce(int head_dim) {
  return LaunchForShape(head_dim, 8, [&]<int kDim, int kTiles>() {
    using Shape = CodesShape<kEncoding, kDim, kTiles>;
    constexpr auto kKernel = DecodeCodes<kEncoding, kDim, kTiles>;
    constexpr int kShared = static_cast<int>(sizeof(typename Shape::Shared));
    if (AllowShared(kKernel, kShared) != cudaSuccess) {
      cudaGetLastError();  // it is handled
      return 0;
    }
    return BlocksAtOnce(kKernel, Shape::kWarps * kWarp, kShared);
  });
}

}  // namespace headway::cuda

#endif  // HEADWAY_KERNELS_CUDA_ATTENTION_CODES_KERNEL_H_
