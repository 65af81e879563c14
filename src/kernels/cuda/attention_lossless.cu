#include "kernels/cuda/attention_lossless.h"

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/attention_decode_kernel.h"
#include "kernels/cuda/attention_lossless_stage.h"
#include "kernels/cuda/occupancy.h"

namespace headway::cuda {
namespace {

// Before a warp's buffers, which are so many as a launch says.
template <typename Shape>
struct LosslessShared {
  typename Shape::Queries queries;
  KeyRange ranges[Shape::kQueries];  // of the tokens
  KeyRange seen[Shape::kQueries];
  typename Shape::Escapes escapes[Shape::kWarps];
};
template <typename Shape>
using StatesOf = WarpStates<Shape::kDims, Shape::kWarps, 8>;  // where the buffers were

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
__device__ __forceinline__ void WithNumbers(const typename Shape::Escapes& escapes, int count,
                                            const Use& use) {
  if (__builtin_expect(count == 0, 1)) {
    use([](const StagedRow& row, int dim) { return NumbersOf<Shape>(row, dim); });
  } else {
    use([&](const StagedRow& row, int dim) {
      return NumbersWithEscapes<Shape>(row, dim, escapes, count);
    });
  }
}

// A warp's buffers, which its chunks' halves take in turn: K, V, K of the next chunk, and so on. A
// half comes while those before it, one or two, are read.
template <typename Shape>
struct HalfRing {
  typename Shape::Half* first;
  typename Shape::Half* now;
  int count;  // 2 or 3

  __device__ __forceinline__ void Advance() {
    ++now;
    if (now == first + count) now = first;
  }
  // The half at hand has arrived. Ends with a barrier of the warp.
  __device__ __forceinline__ void WaitForNow() const {
    if (count == 3) {
      WaitForCopiesButNewest<2>();
    } else {
      WaitForCopiesButNewest<1>();
    }
    __syncwarp();
  }
};

// DecodeMma, whose products get the same numbers in the same order. `halves` is HalfRing::count.
template <int kDim, int kTiles>
__global__ void __launch_bounds__(LosslessShape<kDim, kTiles>::kWarps* kWarp,
                                  LosslessShape<kDim, kTiles>::kBlocks)
    DecodeLossless(const __grid_constant__ DecodeBatch batch, int halves) {
  LetNextStart();
  using Shape = LosslessShape<kDim, kTiles>;
  using Half = typename Shape::Half;
  constexpr int kChunk = Shape::kChunk;
  constexpr int kApart = Shape::kWarps * kChunk;
  extern __shared__ uint4 memory[];
  auto& shared = *reinterpret_cast<LosslessShared<Shape>*>(memory);
  auto* const buffers = reinterpret_cast<Half*>(&shared + 1);

  constexpr int kCodeBits = 12;
  const BlockKeys keys = FindKeys(batch, Shape::kQueries, kCodeBits, shared.ranges);
  const LosslessHalf of_k = HalfOf(keys, true);
  const LosslessHalf of_v = HalfOf(keys, false);
  const Lane lane = ThisLane();
  const int end = keys.some.end;
  Half* const mine = buffers + lane.warp * halves;
  HalfRing<Shape> ring = {mine, mine, halves};
  auto& escapes = shared.escapes[lane.warp];
  if (keys.head_dim < kDim) {
    // Dimensions that there are not become finite numbers; what queries have of them is 0.
    const int words = halves * static_cast<int>(sizeof(Half) / 4);
    for (int i = lane.lane; i < words; i += kWarp) reinterpret_cast<uint32_t*>(mine)[i] = 0;
    __syncwarp();
  }

  // Starts the copies of K, or V, of a chunk, if there is one.
  const auto copy = [&](bool k, const ChunkPlace& place, Half& to) {
    if (place.chunk < end) CopyChunk<Shape>(keys, k ? of_k : of_v, place, lane.lane, to);
    GroupCopies();
  };
  // The first keys are under way while the queries are still computed.
  const int chunk = keys.some.begin + lane.warp * kChunk;
  const int first_end = halves == 3 ? chunk + kApart + kChunk : chunk + kChunk;
  if (min(first_end, end) > KeysOfEarlierSteps(keys.item)) WaitForPrevious();
  ChunkPlace place = PlaceOfChunk<Shape>(keys, of_k, chunk);
  ChunkPlace place_of_next = PlaceOfChunk<Shape>(keys, of_k, chunk + kApart);
  copy(true, place, mine[0]);
  copy(false, place, mine[1]);
  if (halves == 3) copy(true, place_of_next, mine[2]);
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

  const auto ready = [&](int /*at*/) { ring.WaitForNow(); };
  const auto scores = [&](int /*at*/) {
    const Half& k = *ring.now;
    const ChunkParams params = ParamsOfChunk<Shape>(keys, of_k, place, lane.lane, k, escapes);
    StagedRow rows[Shape::kKeyTiles][2];
#pragma unroll
    for (int t = 0; t < Shape::kKeyTiles; ++t) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        rows[t][half] = RowOf<Shape>(k, params, t * 16 + half * 8 + lane.r);
      }
    }
    WithNumbers<Shape>(escapes, params.escapes, [&](const auto& numbers) {
      MultiplyKeys<Shape>(shared.queries, rows, lane, s, numbers);
    });
  };
  const auto next = [&](int /*at*/) {
    __syncwarp();  // K is read
    copy(halves != 3, place_of_next, *ring.now);
    ring.Advance();
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
    ring.WaitForNow();
    Decay<Shape>(decays, o);
    const Half& v = *ring.now;
    const ChunkParams params = ParamsOfChunk<Shape>(keys, of_v, place, lane.lane, v, escapes);
    StagedRow rows[Shape::kKeyTiles][4];
#pragma unroll
    for (int t = 0; t < Shape::kKeyTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        // Rows behind the last key are copies of it.
        const int row = min(t * 16 + i / 2 * 8 + lane.c * 2 + i % 2, end - 1 - at);
        rows[t][i] = RowOf<Shape>(v, params, row);
      }
    }
    WithNumbers<Shape>(escapes, params.escapes,
                       [&](const auto& numbers) { AddValues<Shape>(s, rows, lane, o, numbers); });
    __syncwarp();  // V is read
    place = place_of_next;
    place_of_next = PlaceOfChunk<Shape>(keys, of_k, at + 2 * kApart);
    if (halves == 3) {
      copy(true, place_of_next, *ring.now);
    } else {
      copy(false, place, *ring.now);
    }
    ring.Advance();
  };
  ForChunks(chunk, end, kApart, ChunkSteps{ready, scores, next, softmax, values});
  __syncthreads();  // the codes have been read
  WriteOutputs<Shape>(keys, lane, max, sum, o, *reinterpret_cast<StatesOf<Shape>*>(buffers));
}

template <typename Shape>
int SharedBytes(int halves) {
  static_assert(sizeof(StatesOf<Shape>) <= sizeof(typename Shape::Half) * Shape::kWarps * 2);
  static_assert(sizeof(LosslessShared<Shape>) % 16 == 0 && sizeof(typename Shape::Half) % 16 == 0);
  return static_cast<int>(sizeof(LosslessShared<Shape>) +
                          sizeof(typename Shape::Half) * Shape::kWarps * halves);
}

// As many as leave room for the blocks that registers allow.
template <typename Shape>
int HalvesOf() {
  constexpr int kReserved = 1024;  // of shared memory, in each block
  int device = 0;
  int shared = 0;
  const bool fit = cudaGetDevice(&device) == cudaSuccess &&
                   cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerMultiprocessor,
                                          device) == cudaSuccess &&
                   Shape::kBlocks * (SharedBytes<Shape>(3) + kReserved) <= shared;
  return fit ? 3 : 2;
}

template <int kDim, int kTiles>
cudaError_t Launch(cudaStream_t stream, const DecodeBatch& batch, int blocks) {
  using Shape = LosslessShape<kDim, kTiles>;
  constexpr auto kKernel = DecodeLossless<kDim, kTiles>;
  const int halves = HalvesOf<Shape>();
  const int bytes = SharedBytes<Shape>(halves);
  const cudaError_t error = AllowShared(kKernel, bytes);
  if (error != cudaSuccess) return error;
  return LaunchKernel(kKernel, blocks, Shape::kWarps * kWarp, bytes, stream, batch, halves);
}

}  // namespace

cudaError_t LaunchLossless(cudaStream_t stream, const DecodeBatch& batch, int block_queries,
                           int blocks) {
  return LaunchForShape(batch.head_dim, block_queries, [&]<int kDim, int kTiles>() {
    return Launch<kDim, kTiles>(stream, batch, blocks);
  });
}

int LosslessBlocksAtOnce(int head_dim) {
  return LaunchForShape(head_dim, 8, [&]<int kDim, int kTiles>() {
    using Shape = LosslessShape<kDim, kTiles>;
    constexpr auto kKernel = DecodeLossless<kDim, kTiles>;
    const int bytes = SharedBytes<Shape>(HalvesOf<Shape>());
    if (AllowShared(kKernel, bytes) != cudaSuccess) return 0;
    return BlocksAtOnce(kKernel, Shape::kWarps * kWarp, bytes);
  });
}

}  // namespace headway::cuda
