// From scores to lists of blocks in one kernel: weights and their sums, worth and its histograms,
// lists. All of it in integers, or in one order.
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/bytes.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/selection_keys.h"
#include "kernels/cuda/selection_queries.h"
#include "kernels/cuda/selection_weight.h"
#include "kernels/cuda/warp.h"
#include "kernels/cuda/workspace.h"

// Compiled without contraction of products and sums, as the definition is.
namespace headway::cuda {
namespace {

constexpr int kListThreads = 512;
constexpr int kWarps = kListThreads / kWarp;
// A thread takes the scores of so many query heads at once, of so many blocks.
constexpr int kAtOnce = 4;
constexpr int kOfStep = 2;
constexpr int kOfLoad = 8;  // codes that a thread lists at once
constexpr int kTilesMax = SelectionScratch::kTilesMax;
constexpr int kNone = selection::kWorthCodes;  // the code of a block that is not far: above all
constexpr int kHeldBytes = 64 << 10;           // of weights in shared memory, at most
constexpr int kHeldAnyway = 32 << 10;          // which a kernel may have without asking

__device__ uint64_t WarpSum64(uint64_t value) {
#pragma unroll
  for (int apart = kWarp / 2; apart > 0; apart /= 2) {
    value += __shfl_xor_sync(kAllLanes, value, apart);
  }
  return value;
}

// A number that another block of threads waits for: one word is both the number and the sign that
// it is there, so that nothing else must be seen in order.
constexpr uint64_t kReady = uint64_t{1} << 63;
__device__ void Tell(uint64_t* at, uint64_t value) {
  *static_cast<volatile uint64_t*>(at) = value | kReady;
}
__device__ uint64_t Ask(const uint64_t* at) {
  uint64_t value;
  do {
    value = *static_cast<const volatile uint64_t*>(at);
  } while ((value & kReady) == 0);
  return value & ~kReady;
}

// What a look chooses among: all blocks, or the candidates that the first look has listed.
enum class Look : uint8_t { kFirst, kSecond };

// A tile of a head's entries, which one block of threads takes through all steps. Entry i is block
// i, or candidate i.
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
  const int count = kLook == Look::kFirst ? work.blocks : __ldcg(work.candidates.counts + head);
  const int begin = min(count, tile * work.tile_blocks);
  // Blocks that are not far are all candidates.
  return {head, tile, begin, min(count, begin + work.tile_blocks),
          count - (work.blocks - work.far_end)};
}

// Waits until all blocks of threads have come here, once a launch; what they wrote before is seen
// by loads that bypass the L1 cache.
__device__ void WaitForAll(const ListWork& work) {
  __syncthreads();
  if (threadIdx.x == 0) {
    uint32_t* arrived = &work.scratch.query_sums->arrived;
    __threadfence();
    atomicAdd(arrived, 1u);
    while (*static_cast<volatile uint32_t*>(arrived) < gridDim.x) {
    }
    __threadfence();
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
  float* scores = kLook == Look::kFirst ? work.scratch.scores : work.candidates.tops;
  return {reinterpret_cast<uint32_t*>(scores) + int64_t{unit.head} * work.group * work.stride,
          work.stride};
}

// Scores of some query heads and entries of a unit, from query head `from` and entry `begin` on; of
// a second look they are the largest logits, beside masses.
template <Look kLook>
struct SomeScores {
  float of[kOfStep][kAtOnce];
  uint32_t masses[kOfStep][kAtOnce];

  __device__ void Load(const ListWork& work, const Unit& unit, int from, int begin) {
    const int64_t first = (int64_t{unit.head} * work.group + from) * work.stride;
    const float* scores = kLook == Look::kFirst ? work.scratch.scores : work.candidates.tops;
#pragma unroll
    for (int step = 0; step < kOfStep; ++step) {
      const int i = begin + step * kListThreads;
#pragma unroll
      for (int q = 0; q < kAtOnce; ++q) {
        const bool there = i < unit.end && from + q < work.group;
        const int64_t at = first + int64_t{q} * work.stride + i;
        of[step][q] = there ? __ldcg(scores + at) : 0.0f;
        if constexpr (kLook == Look::kSecond) {
          masses[step][q] = there ? __ldcg(work.candidates.masses + at) : 0;
        }
      }
    }
  }

  __device__ uint32_t Weight(float largest, int step, int q) const {
    const uint32_t weight = ShareWeightOf(largest, of[step][q]);
    if constexpr (kLook == Look::kFirst) return weight;
    return selection::MassWeight(masses[step][q], weight);
  }
};

// The largest score of a query head, from those of its tiles.
template <Look kLook>
__device__ float LargestScore(const ListWork& work, int64_t query_head) {
  if constexpr (kLook == Look::kSecond) {
    return __uint_as_float(OfOrderedBits(__ldcg(work.scratch.tops + query_head)));
  }
  float top = -INFINITY;
  for (int i = static_cast<int>(threadIdx.x) % kWarp; i < work.score_tiles; i += kWarp) {
    top = fmaxf(top, __ldcg(work.scratch.maxima + query_head * kTilesMax + i));
  }
#pragma unroll
  for (int apart = kWarp / 2; apart > 0; apart /= 2) {
    top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, apart));
  }
  return top;
}

// Scores become weights, which are added up.
template <Look kLook>
__device__ void Weigh(const ListWork& work, const Unit& unit, const Weights& weights) {
  __shared__ float largest[kSelectGroupMax];
  __shared__ uint64_t sums[kSelectGroupMax][kWarps];
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % kWarp;
  const int warp = thread / kWarp;
  const int64_t first = int64_t{unit.head} * work.group;
  SomeScores<kLook> scores;
  bool loaded = true;  // the first are on their way while the largest ones are found
  scores.Load(work, unit, 0, unit.begin + thread);
  for (int query = warp; query < work.group; query += kWarps) {
    const float top = LargestScore<kLook>(work, first + query);
    if (lane == 0) largest[query] = top;
  }
  __syncthreads();
  for (int from = 0; from < work.group; from += kAtOnce) {
    const int queries = min(kAtOnce, work.group - from);
    uint64_t sum[kAtOnce] = {};
    for (int begin = unit.begin + thread; begin < unit.end; begin += kOfStep * kListThreads) {
      if (!loaded) scores.Load(work, unit, from, begin);
      loaded = false;
#pragma unroll
      for (int step = 0; step < kOfStep; ++step) {
        const int i = begin + step * kListThreads;
#pragma unroll
        for (int q = 0; q < kAtOnce; ++q) {
          if (i >= unit.end || q >= queries) continue;
          const uint32_t weight = scores.Weight(largest[from + q], step, q);
          weights.at[(from + q) * weights.stride + i] = weight;
          sum[q] += weight;
        }
      }
    }
#pragma unroll
    for (int q = 0; q < kAtOnce; ++q) {
      if (q >= queries) continue;
      const uint64_t all = WarpSum64(sum[q]);
      if (lane == 0) sums[from + q][warp] = all;
    }
  }
  __syncthreads();
  if (thread >= work.group) return;
  uint64_t all = 0;
  for (int i = 0; i < kWarps; ++i) all += sums[thread][i];
  Tell(&work.scratch.query_sums[first + thread].sums[unit.tile], all);
}

// Worth of a unit's far blocks, its codes, and how often each code is there: `histogram` is 0
// before and after. Heads that share a budget share a histogram.
__device__ void Value(const ListWork& work, const Unit& unit, const Weights& weights,
                      uint32_t (&histogram)[selection::kWorthCodes]) {
  __shared__ float sums[kSelectGroupMax];
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % kWarp;
  for (int query = thread / kWarp; query < work.group; query += kWarps) {
    const auto& told = work.scratch.query_sums[int64_t{unit.head} * work.group + query].sums;
    uint64_t sum = 0;
    for (int i = lane; i < work.tiles; i += kWarp) sum += Ask(told + i);
    sum = WarpSum64(sum);
    if (lane == 0) sums[query] = static_cast<float>(sum);  // as ShareOf rounds it
  }
  __syncthreads();
  uint16_t* codes = work.scratch.codes + int64_t{unit.head} * work.stride;
  uint32_t zeros = 0;  // most codes may be 0
  for (int i = unit.begin + thread; i < unit.end; i += kListThreads) {
    if (i < work.far_begin || i >= unit.far_end) {
      codes[i] = kNone;
      continue;
    }
    float worth = 0.0f;
#pragma unroll 4
    for (int query = 0; query < work.group; ++query) {
      const uint32_t weight = weights.at[query * weights.stride + i];
      if (weight != 0) worth += static_cast<float>(weight) / sums[query];
    }
    const uint32_t code = selection::WorthCode(worth);
    codes[i] = static_cast<uint16_t>(code);
    if (code == 0) {
      ++zeros;
    } else {
      atomicAdd(&histogram[code], 1u);
    }
  }
  zeros = __reduce_add_sync(kAllLanes, zeros);
  if (lane == 0 && zeros != 0) atomicAdd(&histogram[0], zeros);
  __syncthreads();
  const int64_t row = work.layer != 0 ? 0 : unit.head;
  for (int i = thread; i < selection::kWorthCodes; i += kListThreads) {
    if (histogram[i] == 0) continue;
    atomicAdd(&work.scratch.histograms[row * selection::kWorthCodes + i], histogram[i]);
    histogram[i] = 0;
  }
}

// Two counts in one number: blocks that are listed for certain, and those whose code is the
// threshold.
__device__ constexpr uint64_t Counts(uint32_t certain, uint32_t equal) {
  return uint64_t{certain} | uint64_t{equal} << 31;
}
__device__ constexpr int Certain(uint64_t counts) { return static_cast<int>(counts & 0x7FFFFFFF); }
__device__ constexpr int Equal(uint64_t counts) {
  return static_cast<int>(counts >> 31 & 0x7FFFFFFF);
}

// The sum of the values of the threads before, and of all. Has barriers.
template <typename T>
__device__ T SumBefore(T value, T (&of_warps)[kWarps], T& all) {
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
  static_assert(kWarps <= kWarp);
  T warps = lane < kWarps ? of_warps[lane] : T{0};
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

struct Threshold {
  int code;       // greater ones are listed
  int64_t quota;  // of the equal ones of all heads that share a budget, in their order
};

// How many blocks have the share of all worth that is asked for; `before` are blocks of greater
// codes than these. Has barriers.
__device__ uint32_t BlocksOfTopP(const ListWork& work, const FourCodes& codes, uint32_t before,
                                 uint32_t heads) {
  __shared__ uint64_t of_warps[kWarps];
  __shared__ uint64_t found;
  if (threadIdx.x == 0) found = 0;
  uint64_t all;
  const uint64_t worth = SumBefore(codes.Worth(), of_warps, all);
  codes.Find(selection::WorthWanted(all, work.top_p.share, kTopPBits), worth, before, &found);
  __syncthreads();
  const uint64_t least = static_cast<uint64_t>(work.top_p.least_blocks) * heads;
  const uint64_t most = static_cast<uint64_t>(work.far_blocks) * heads;
  return static_cast<uint32_t>(min(max(found, least), most));
}

// Each thread looks at four codes; the first threads have the greatest. Has barriers.
__device__ Threshold FindThreshold(const ListWork& work, int head) {
  __shared__ uint32_t of_warps[kWarps];
  __shared__ uint32_t found[2];
  constexpr int kCodes = selection::kWorthCodes;
  static_assert(kCodes == 4 * kListThreads);
  const int four = kListThreads - 1 - static_cast<int>(threadIdx.x);
  const int64_t row = work.layer != 0 ? 0 : head;
  const uint4 there =
      __ldcg(reinterpret_cast<const uint4*>(work.scratch.histograms + row * kCodes) + four);
  const FourCodes codes = {4 * four + 3, {there.w, there.z, there.y, there.x}};
  const uint32_t heads = static_cast<uint32_t>(work.layer != 0 ? work.heads : 1);
  uint32_t all;
  uint32_t before = SumBefore(there.x + there.y + there.z + there.w, of_warps, all);
  const uint32_t wanted = work.top_p.share != 0 ? BlocksOfTopP(work, codes, before, heads)
                                                : static_cast<uint32_t>(work.far_blocks) * heads;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (before < wanted && wanted <= before + codes.counts[i]) {
      found[0] = static_cast<uint32_t>(codes.highest - i);
      found[1] = wanted - before;
    }
    before += codes.counts[i];
  }
  __syncthreads();
  return {static_cast<int>(found[0]), found[1]};
}

// Codes [begin, begin + 8) of a head, -1 from `end` on.
__device__ void LoadCodes(const uint16_t* codes, int begin, int end, int (&values)[kOfLoad]) {
#pragma unroll
  for (int i = 0; i < kOfLoad; ++i) {
    values[i] = begin + i < end ? int{__ldcg(codes + begin + i)} : -1;
  }
}

// What is listed before a unit.
struct Before {
  uint64_t of_head;  // Counts of the head's tiles before
  uint64_t equal;    // blocks of the heads before, which share its budget, whose code is equal
};

// Adds up what the units before have told, or will. Has barriers.
__device__ Before AskBefore(const ListWork& work, const Unit& unit) {
  __shared__ unsigned long long sums[2];
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < 2) sums[thread] = 0;
  __syncthreads();
  const int of_head = unit.head * work.tiles;
  uint64_t before[2] = {};
  for (int i = (work.layer != 0 ? 0 : of_head) + thread; i < of_head + unit.tile;
       i += kListThreads) {
    const int head = i / work.tiles;
    const uint64_t* told =
        &work.scratch.query_sums[int64_t{head} * work.group].told[i - head * work.tiles];
    const uint64_t value = Ask(told);
    if (head == unit.head) {
      before[0] += value;
    } else {
      before[1] += static_cast<uint64_t>(Equal(value));
    }
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint64_t sum = WarpSum64(before[i]);
    if (thread % kWarp == 0 && sum != 0) atomicAdd(&sums[i], static_cast<unsigned long long>(sum));
  }
  __syncthreads();
  return {sums[0], sums[1]};
}

// Lists a unit's blocks, a run of neighbours a thread.
template <Look kLook>
__device__ void List(const ListWork& work, const Unit& unit) {
  __shared__ uint64_t of_warps[kWarps];
  const int thread = static_cast<int>(threadIdx.x);
  const uint16_t* codes = work.scratch.codes + int64_t{unit.head} * work.stride;
  const int32_t* candidates = work.candidates.blocks + int64_t{unit.head} * work.stride;
  const int of_thread = (work.tile_blocks + kListThreads - 1) / kListThreads;
  const int begin = min(unit.end, unit.begin + thread * of_thread);
  const int end = min(unit.end, begin + of_thread);
  int values[kOfLoad];
  LoadCodes(codes, begin, end, values);
  const Threshold threshold = FindThreshold(work, unit.head);

  uint32_t certain = 0;
  uint32_t equal = 0;
  for (int at = begin; at < end; at += kOfLoad) {
    if (of_thread > kOfLoad) LoadCodes(codes, at, end, values);
#pragma unroll
    for (int i = 0; i < kOfLoad; ++i) {
      certain += values[i] > threshold.code ? 1 : 0;
      equal += values[i] == threshold.code ? 1 : 0;
    }
  }
  uint64_t all;
  uint64_t counts = SumBefore(Counts(certain, equal), of_warps, all);
  if (thread == 0) {
    uint64_t* told = &work.scratch.query_sums[int64_t{unit.head} * work.group].told[unit.tile];
    Tell(told, all);
  }
  const Before before = AskBefore(work, unit);
  counts += before.of_head;
  const auto quota =
      static_cast<int>(max(int64_t{0}, threshold.quota - static_cast<int64_t>(before.equal)));
  if (thread == 0 && unit.tile + 1 == work.tiles) {
    const uint64_t total = before.of_head + all;
    work.counts[unit.head] = Certain(total) + min(Equal(total), quota);
  }

  int ties = Equal(counts);
  int32_t* to =
      work.listed + int64_t{unit.head} * work.capacity + Certain(counts) + min(ties, quota);
  for (int at = begin; at < end; at += kOfLoad) {
    if (of_thread > kOfLoad) LoadCodes(codes, at, end, values);
#pragma unroll
    for (int i = 0; i < kOfLoad; ++i) {
      const bool tie = values[i] == threshold.code;
      if (values[i] > threshold.code || (tie && ties < quota)) {
        *to++ = kLook == Look::kFirst ? at + i : __ldcg(candidates + at + i);
      }
      ties += tie ? 1 : 0;
    }
  }
}

// All steps from scores to lists. Blocks of threads wait for each other: there are no more than
// run at once.
template <Look kLook>
__global__ void __launch_bounds__(kListThreads, 2) Choose(const __grid_constant__ ListWork work) {
  __shared__ uint32_t histogram[selection::kWorthCodes];
  extern __shared__ uint32_t held[];
  LetNextStart();
  for (int i = static_cast<int>(threadIdx.x); i < selection::kWorthCodes; i += kListThreads) {
    histogram[i] = 0;
  }
  WaitForPrevious();
  const int units = work.heads * work.tiles;
  const auto each = [&](const auto& function) {
    for (int i = static_cast<int>(blockIdx.x); i < units; i += static_cast<int>(gridDim.x)) {
      function(UnitOf<kLook>(work, i));
      __syncthreads();
    }
  };
  if (work.clear_tops != 0 && blockIdx.x == 0) ClearTops(work.scratch, work.heads * work.group);
  each([&](const Unit& unit) { Weigh<kLook>(work, unit, WeightsOf<kLook>(work, unit, held)); });
  each([&](const Unit& unit) { Value(work, unit, WeightsOf<kLook>(work, unit, held), histogram); });
  WaitForAll(work);
  // Units wait for those before them, which no block of threads takes after later ones.
  each([&](const Unit& unit) { List<kLook>(work, unit); });
}

}  // namespace

cudaError_t ListBest(cudaStream_t stream, ListWork work) {
  // At most one block of threads a multiprocessor: whatever else runs there ends without them, and
  // the next kernel of the stream starts when all of these have started, so that all come to run at
  // once.
  constexpr int64_t kTileBlocks = 256;  // at least
  const int multiprocessors = Multiprocessors();
  const int64_t tiles = std::min<int64_t>(
      std::clamp<int64_t>(multiprocessors / work.heads, 1, SelectionScratch::kListTilesMax),
      CeilDiv(work.stride, kTileBlocks));
  work.tile_blocks = static_cast<int32_t>(CeilDiv(work.stride, tiles));
  work.tiles = static_cast<int32_t>(CeilDiv(work.stride, work.tile_blocks));
  const int64_t units = int64_t{work.heads} * work.tiles;
  const int64_t held = int64_t{work.tile_blocks} * work.group * 4;
  work.held = units <= multiprocessors && held <= kHeldBytes ? 1 : 0;
  const auto kernel = work.second != 0 ? Choose<Look::kSecond> : Choose<Look::kFirst>;
  if (work.held != 0 && held > kHeldAnyway) {
    const cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kHeldBytes);
    if (error != cudaSuccess) return error;
  }
  // Blocks of threads wait for each other: all of them run at once, whatever else does. They may
  // come to run while scores are made.
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeCooperative;
  attributes[0].val.cooperative = 1;
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(std::min<int64_t>(units, multiprocessors)));
  config.blockDim = dim3(kListThreads);
  config.dynamicSmemBytes = work.held != 0 ? static_cast<size_t>(held) : 0;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = OverlapsKernels() ? 2 : 1;
  return cudaLaunchKernelEx(&config, kernel, work);
}

}  // namespace headway::cuda
