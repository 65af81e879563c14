#include "kernels/cuda/attention_lossless.h"

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/attention_decode_kernel.h"
#include "kernels/cuda/attention_lossless_load.h"

namespace headway::cuda {
namespace {

// DecodeMma, whose products get the same numbers in the same order: codes wait in the registers
// where numbers would, and are unpacked before they are multiplied.
template <int kDim, int kTiles>
__global__ void __launch_bounds__(LosslessShape<kDim, kTiles>::kWarps* kWarp,
                                  LosslessShape<kDim, kTiles>::kBlocks)
    DecodeLossless(const __grid_constant__ DecodeBatch batch) {
  LetNextStart();
  using Shape = LosslessShape<kDim, kTiles>;
  constexpr int kChunk = Shape::kChunk;
  __shared__ WarpStates<kDim, Shape::kWarps, 8> states;
  __shared__ typename Shape::Queries queries;
  __shared__ KeyRange ranges[Shape::kQueries];  // of the tokens
  __shared__ KeyRange seen[Shape::kQueries];

  constexpr int kCodeBits = 12;
  const BlockKeys keys = FindKeys(batch, Shape::kQueries, kCodeBits, ranges);
  const LosslessHalf of_k = HalfOf(keys, true);
  const LosslessHalf of_v = HalfOf(keys, false);
  const Lane lane = ThisLane();
  const int end = keys.some.end;

  typename Shape::KeyCodes k;
  typename Shape::ValueCodes v;

  // The first keys are under way while the queries are still computed.
  const int chunk = keys.some.begin + lane.warp * kChunk;
  if (min(chunk + kChunk, end) > KeysOfEarlierSteps(keys.item)) WaitForPrevious();
  if (chunk < end) {
    LoadKeyCodes<Shape>(keys, of_k, lane, chunk, k);
    LoadValueCodes<Shape>(keys, of_v, lane, chunk, v);
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
    if (at != chunk) LoadValueCodes<Shape>(keys, of_v, lane, at, v);
  };
  const auto scores = [&](int at) {
    typename Shape::Keys numbers;
    UnpackKeys<Shape>(keys, of_k, lane, at, k, numbers);
    Multiply<Shape>(queries, lane, numbers, s);
  };
  const auto next = [&](int at) {
    if (at < end) LoadKeyCodes<Shape>(keys, of_k, lane, at, k);
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
  const auto values = [&](int at) {
    Decay<Shape>(decays, o);
    typename Shape::Values numbers;
    UnpackValues<Shape>(keys, of_v, lane, at, v, numbers);
    AddValues<Shape>(s, numbers, o);
  };
  ForChunks(chunk, end, Shape::kWarps * kChunk, ChunkSteps{ready, scores, next, softmax, values});
  WriteOutputs<Shape>(keys, lane, max, sum, o, states);
}

template <int kDim, int kTiles>
cudaError_t Launch(cudaStream_t stream, const DecodeBatch& batch, int blocks) {
  return LaunchKernel(DecodeLossless<kDim, kTiles>, blocks,
                      LosslessShape<kDim, kTiles>::kWarps * kWarp, 0, stream, batch);
}

}  // namespace

cudaError_t LaunchLossless(cudaStream_t stream, const DecodeBatch& batch, int block_queries,
                           int blocks) {
  return LaunchForShape(batch.head_dim, block_queries, [&]<int kDim, int kTiles>() {
    return Launch<kDim, kTiles>(stream, batch, blocks);
  });
}

}  // namespace headway::cuda
