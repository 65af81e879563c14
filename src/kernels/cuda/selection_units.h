// How blocks of threads share the steps from scores to lists: tiles of a head's entries, what they
// tell each other, and the scores of a tile. Included where products and sums are not contracted.
#ifndef HEADWAY_KERNELS_CUDA_SELECTION_UNITS_H_
#define HEADWAY_KERNELS_CUDA_SELECTION_UNITS_H_

#include <cstdint>

#include "kernels/cuda/memory.h"
#include "kernels/cuda/selection_keys.h"
#include "kernels/cuda/selection_weight.h"
#include "kernels/cuda/warp.h"

namespace headway::cuda {

inline constexpr int kListThreads = 512;
inline constexpr int kListWarps = kListThreads / kWarp;
// A thread takes the scores of so many query heads at once, of so many blocks.
inline constexpr int kAtOnce = 4;
inline constexpr int kOfStep = 2;

__device__ inline uint64_t WarpSum64(uint64_t value) {
#pragma unroll
  for (int apart = kWarp / 2; apart > 0; apart /= 2) {
    value += __shfl_xor_sync(kAllLanes, value, apart);
  }
  return value;
}

// The sum of the values of the threads before, and of all. Has barriers.
template <typename T>
__device__ T SumBefore(T value, T (&of_warps)[kListWarps], T& all) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  T sum = value;
#pragma unroll
  for (int apart = 1; apart < kWarp; apart *= 2) {
    const T before = __shfl_up_sync(kAllLanes, sum, apart);
    if (lane >= apart) sum += before;
  }
  if (lane == kWarp - 1) of_warps[warp] = sum;
  __syncthreads();
  static_assert(kListWarps <= kWarp);
  T warps = lane < kListWarps ? of_warps[lane] : T{0};
#pragma unroll
  for (int apart = 1; apart < kWarp; apart *= 2) {
    const T before = __shfl_up_sync(kAllLanes, warps, apart);
    if (lane >= apart) warps += before;
  }
  all = __shfl_sync(kAllLanes, warps, kWarp - 1);
  const T before = __shfl_sync(kAllLanes, warps, warp == 0 ? 0 : warp - 1);
  __syncthreads();
  return sum - value + (warp == 0 ? T{0} : before);
}

// A number that another block of threads waits for: one word is both the number and the sign that
// it is there, so that nothing else must be seen in order.
inline constexpr uint64_t kReady = uint64_t{1} << 63;
__device__ inline void Tell(uint64_t* at, uint64_t value) {
  *static_cast<volatile uint64_t*>(at) = value | kReady;
}
__device__ inline uint64_t Ask(const uint64_t* at) {
  uint64_t value;
  do {
    value = *static_cast<const volatile uint64_t*>(at);
  } while ((value & kReady) == 0);
  return value & ~kReady;
}

// A tile of a head's entries, which one block of threads takes through all steps. Entry i is block
// i, or candidate i; heads have unequal numbers of candidates, in tiles of a size of their own.
struct Unit {
  int head;
  int tile;
  int begin;
  int end;
  int far_end;
};
template <Look kLook>
__device__ Unit UnitOf(const ListWork& work, int index) {
  const int head = index / work.tiles;
  const int tile = index - head * work.tiles;
  const int count = kLook == Look::kAll ? work.blocks : CandidateCount(work.candidates, head);
  const int of_tile =
      kLook == Look::kAll ? work.tile_blocks : (count + work.tiles - 1) / work.tiles;
  const int begin = min(count, tile * of_tile);
  // Blocks that are not far are all candidates.
  return {head, tile, begin, min(count, begin + of_tile), count - (work.blocks - work.far_end)};
}

// Waits until all blocks of threads have come here, once a launch; what they wrote before is seen
// by loads that bypass the L1 cache.
__device__ inline void WaitForAll(const ListWork& work) {
  __syncthreads();
  if (threadIdx.x == 0) {
    uint32_t* arrived = &work.scratch.query_sums->arrived;
    AddArrival(arrived);
    while (Arrivals(arrived) < gridDim.x) {
    }
  }
  __syncthreads();
}

// Weights of a unit: of query head q and block i at [q * stride + i].
struct Weights {
  uint32_t* at;
  int64_t stride;
};
template <Look kLook>
__device__ Weights WeightsOf(const ListWork& work, const Unit& unit, uint32_t* held) {
  if (work.held != 0) return {held - unit.begin, work.tile_blocks};
  float* scores = kLook == Look::kSketches ? work.sketches.tops : work.scratch.scores;
  return {reinterpret_cast<uint32_t*>(scores) + int64_t{unit.head} * work.group * work.stride,
          work.stride};
}

// Scores of some query heads and entries of a unit, from query head `from` and entry `begin` on; of
// sketches they are the largest logits, beside masses.
template <Look kLook>
struct SomeScores {
  float of[kOfStep][kAtOnce];
  uint32_t masses[kOfStep][kAtOnce];

  __device__ void Load(const ListWork& work, const Unit& unit, int from, int begin) {
    const int64_t first = (int64_t{unit.head} * work.group + from) * work.stride;
    const float* scores = kLook == Look::kSketches ? work.sketches.tops : work.scratch.scores;
#pragma unroll
    for (int step = 0; step < kOfStep; ++step) {
      const int i = begin + step * kListThreads;
#pragma unroll
      for (int q = 0; q < kAtOnce; ++q) {
        const bool there = i < unit.end && from + q < work.group;
        const int64_t at = first + int64_t{q} * work.stride + i;
        of[step][q] = there ? __ldcg(scores + at) : 0.0f;
        if constexpr (kLook == Look::kSketches) {
          masses[step][q] = there ? __ldcg(work.sketches.masses + at) : 0;
        }
      }
    }
  }

  __device__ uint32_t Weight(float largest, int step, int q) const {
    const uint32_t weight = ShareWeightOf(largest, of[step][q]);
    if constexpr (kLook != Look::kSketches) return weight;
    return selection::MassWeight(masses[step][q], weight);
  }
};

// The largest score of a query head, from those of its tiles.
template <Look kLook>
__device__ float LargestScore(const ListWork& work, int64_t query_head) {
  if constexpr (kLook == Look::kSketches) {
    return __uint_as_float(OfOrderedBits(__ldcg(work.scratch.tops + query_head)));
  }
  float top = -INFINITY;
#pragma unroll
  for (int first = 0; first < SelectionScratch::kTilesMax; first += kWarp) {
    const int i = first + static_cast<int>(threadIdx.x) % kWarp;
    const float* from = work.scratch.maxima + query_head * SelectionScratch::kTilesMax + i;
    top = fmaxf(top, i < work.score_tiles ? __ldcg(from) : -INFINITY);
  }
#pragma unroll
  for (int apart = kWarp / 2; apart > 0; apart /= 2) {
    top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, apart));
  }
  return top;
}

}  // namespace headway::cuda

#endif  // HEADWAY_KERNELS_CUDA_SELECTION_UNITS_H_
