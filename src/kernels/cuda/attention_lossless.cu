#include "kernels/cuda/attention_lossless.h"

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/attention_decode_kernel.h"
#include "kernels/cuda/attention_lossless_stage.h"
#include "kernels/cuda/occupancy.h"

namespace headway::cuda {
namespace {

template <typename Shape>
struct LosslessShared {
  union {
    typename Shape::Stage stages[Shape::kWarps];
    WarpStates<Shape::kDims, Shape::kWarps, 8> states;
  };
  typename Shape::Queries queries;
  KeyRange ranges[Shape::kQueries];  // of the tokens
  KeyRange seen[Shape::kQueries];
};

// s = K q, where numbers(row, dim) are those of eight dimensions of a row.
template <typename Shape, typename Numbers>
__device__ __forceinline__ void MultiplyKeys(const typename Shape::Queries& queries,
                                             const StagedRow (&rows)[Shape::kKeyTiles][2],
                                             const Lane& lane, typename Shape::Scores& s,
                                             const Numbers& numbers) {
  Clear(s);
#pragma unroll
  for (int i = 0; i < Shape::kKLoads; ++i) {
    uint4 k[Shape::kKeyTiles][2];
#pragma unroll
    for (int t = 0; t < Shape::kKeyTiles; ++t) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        k[t][half] = numbers(rows[t][half], i * 32 + lane.c * 8);
      }
    }
    MultiplyLoad<Shape>(queries, lane, i, k, s);
  }
}

// o += V p
template <typename Shape, typename Numbers>
__device__ __forceinline__ void AddValues(const typename Shape::Scores& s,
                                          const StagedRow (&rows)[Shape::kKeyTiles][4],
                                          const Lane& lane, typename Shape::Outputs& o,
                                          const Numbers& numbers) {
#pragma unroll
  for (int t = 0; t < Shape::kKeyTiles; ++t) {
    SplitPair p[Shape::kQueryTiles][2];
    SplitWeights<Shape>(s[t], p);
#pragma unroll
    for (int h = 0; h < Shape::kVLoads; ++h) {
      uint4 v[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) v[i] = numbers(rows[t][i], h * 64 + lane.r * 8);
      AddLoad<Shape>(p, v, o[h]);
    }
  }
}

// Calls use(numbers) with a function that gives the numbers of a chunk's rows.
template <typename Shape, typename Use>
__device__ __forceinline__ void WithNumbers(const typename Shape::Stage& stage, int escapes,
                                            const Use& use) {
  if (__builtin_expect(escapes == 0, 1)) {
    use([](const StagedRow& row, int dim) { return NumbersOf<Shape>(row, dim); });
  } else {
    const Escapes some = {stage.escapes, stage.escapes[0], escapes};
    use([&](const StagedRow& row, int dim) {
      uint4 numbers = NumbersOf<Shape>(row, dim);
      some.Apply(row.row, dim, numbers);
      return numbers;
    });
  }
}

// DecodeMma, whose products get the same numbers in the same order. The instructions that make
// numbers of codes bound it: 16 keys of 128 dimensions take some 800 of a warp, of plain pages 650.
template <int kDim, int kTiles>
__global__ void __launch_bounds__(LosslessShape<kDim, kTiles>::kWarps* kWarp,
                                  LosslessShape<kDim, kTiles>::kBlocks)
    DecodeLossless(const __grid_constant__ DecodeBatch batch) {
  LetNextStart();
  using Shape = LosslessShape<kDim, kTiles>;
  constexpr int kChunk = Shape::kChunk;
  constexpr int kApart = Shape::kWarps * kChunk;
  extern __shared__ uint4 memory[];
  auto& shared = *reinterpret_cast<LosslessShared<Shape>*>(memory);

  constexpr int kCodeBits = 12;
  const BlockKeys keys = FindKeys(batch, Shape::kQueries, kCodeBits, shared.ranges);
  const LosslessHalf of_k = HalfOf(keys, true);
  const LosslessHalf of_v = HalfOf(keys, false);
  const Lane lane = ThisLane();
  const int end = keys.some.end;
  typename Shape::Stage& stage = shared.stages[lane.warp];
  if (keys.head_dim < kDim) {
    // Dimensions that there are not become finite numbers; what queries have of them is 0.
    for (int i = lane.lane; i < static_cast<int>(sizeof(stage) / 4); i += kWarp) {
      reinterpret_cast<uint32_t*>(&stage)[i] = 0;
    }
    __syncwarp();
  }

  // The first keys are under way while the queries are still computed.
  const int chunk = keys.some.begin + lane.warp * kChunk;
  if (min(chunk + kChunk, end) > KeysOfEarlierSteps(keys.item)) WaitForPrevious();
  ChunkPlace place = PlaceOfChunk<Shape>(keys, of_k, chunk);
  ChunkPlace place_of_next = place;
  if (chunk < end) {
    CopyChunk<Shape>(keys, of_k, place, lane.lane, stage.k);
    GroupCopies();
    CopyChunk<Shape>(keys, of_v, place, lane.lane, stage.v);
    GroupCopies();
  }
  WaitForPrevious();
  FillSeen(keys, lane.thread, shared.ranges, shared.seen);
  LoadQueries<Shape>(keys, lane.thread, shared.queries);

  typename Shape::Scores s;
  typename Shape::Rows max;
  typename Shape::Rows sum;
  typename Shape::Rows decays;
  typename Shape::Outputs o = {};
  StartSoftmax(max, sum);
  __syncthreads();

  const auto ready = [&](int /*at*/) {
    WaitForCopiesButNewest();
    __syncwarp();  // K is there
  };
  const auto scores = [&](int /*at*/) {
    const ChunkParams params = ParamsOfChunk<Shape>(keys, of_k, place, lane.lane, stage.k, stage);
    StagedRow rows[Shape::kKeyTiles][2];
#pragma unroll
    for (int t = 0; t < Shape::kKeyTiles; ++t) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        rows[t][half] = RowOf<Shape>(stage.k, params, t * 16 + half * 8 + lane.r);
      }
    }
    WithNumbers<Shape>(stage, params.escapes, [&](const auto& numbers) {
      MultiplyKeys<Shape>(shared.queries, rows, lane, s, numbers);
    });
  };
  const auto next = [&](int at) {
    __syncwarp();  // K is read
    place_of_next = PlaceOfChunk<Shape>(keys, of_k, at);
    if (at < end) CopyChunk<Shape>(keys, of_k, place_of_next, lane.lane, stage.k);
    GroupCopies();
  };
  const auto softmax = [&](int at) {
    Cap<Shape>(batch, s);
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        Mask<Shape>(shared.seen[n * 8 + lane.c * 2 + j], batch.logit_scale, at + lane.r, n, j, s);
        decays[n][j] = Weigh<Shape>(n, j, s, max[n][j], sum[n][j]);
      }
    }
  };
  const auto values = [&](int at) {
    WaitForCopiesButNewest();
    __syncwarp();  // V is there
    Decay<Shape>(decays, o);
    const ChunkParams params = ParamsOfChunk<Shape>(keys, of_v, place, lane.lane, stage.v, stage);
    StagedRow rows[Shape::kKeyTiles][4];
#pragma unroll
    for (int t = 0; t < Shape::kKeyTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        // Rows behind the last key are copies of it.
        const int row = min(t * 16 + i / 2 * 8 + lane.c * 2 + i % 2, end - 1 - at);
        rows[t][i] = RowOf<Shape>(stage.v, params, row);
      }
    }
    WithNumbers<Shape>(stage, params.escapes,
                       [&](const auto& numbers) { AddValues<Shape>(s, rows, lane, o, numbers); });
    __syncwarp();  // V is read
    if (at + kApart < end) CopyChunk<Shape>(keys, of_v, place_of_next, lane.lane, stage.v);
    GroupCopies();
    place = place_of_next;
  };
  ForChunks(chunk, end, kApart, ChunkSteps{ready, scores, next, softmax, values});
  __syncthreads();  // the codes have been read
  WriteOutputs<Shape>(keys, lane, max, sum, o, shared.states);
}

template <int kDim, int kTiles>
cudaError_t Launch(cudaStream_t stream, const DecodeBatch& batch, int blocks) {
  using Shape = LosslessShape<kDim, kTiles>;
  constexpr auto kKernel = DecodeLossless<kDim, kTiles>;
  constexpr auto kShared = static_cast<int>(sizeof(LosslessShared<Shape>));
  const cudaError_t error = AllowShared(kKernel, kShared);
  if (error != cudaSuccess) return error;
  return LaunchKernel(kKernel, blocks, Shape::kWarps * kWarp, kShared, stream, batch);
}

}  // namespace

cudaError_t LaunchLossless(cudaStream_t stream, const DecodeBatch& batch, int block_queries,
                           int blocks) {
  return LaunchForShape(batch.head_dim, block_queries, [&]<int kDim, int kTiles>() {
    return Launch<kDim, kTiles>(stream, batch, blocks);
  });
}

}  // namespace headway::cuda
