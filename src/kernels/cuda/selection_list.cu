// From scores to lists of blocks in one kernel: weights and their sums, worth and its histograms,
// lists. All of it in integers, or in one order.
#include <cooperative_groups.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/bytes.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/selection_candidates.h"
#include "kernels/cuda/selection_keys.h"
#include "kernels/cuda/selection_queries.h"
#include "kernels/cuda/selection_units.h"
#include "kernels/cuda/warp.h"
#include "kernels/cuda/workspace.h"

// Compiled without contraction of products and sums, as the definition is.
namespace headway::cuda {
namespace {

constexpr int kOfLoad = 8;                     // codes that a thread lists at once
constexpr int kNone = selection::kWorthCodes;  // the code of a block that is not far: above all
constexpr int kHeldBytes = 64 << 10;           // of weights in shared memory, at most
constexpr int kHeldAnyway = 24 << 10;  // which a kernel may have without asking, beside its own

// Scores become weights, which are added up.
template <Look kLook>
__device__ void Weigh(const ListWork& work, const Unit& unit, const Weights& weights) {
  __shared__ float largest[kSelectGroupMax];
  __shared__ uint64_t sums[kSelectGroupMax][kListWarps];
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % kWarp;
  const int warp = thread / kWarp;
  const int64_t first = int64_t{unit.head} * work.group;
  SomeScores<kLook> scores;
  bool loaded = true;  // the first are on their way while the largest ones are found
  scores.Load(work, unit, 0, unit.begin + thread);
  for (int query = warp; query < work.group; query += kListWarps) {
    const float top = LargestScore<kLook>(work, first + query);
    if (lane == 0) largest[query] = top;
  }
  __syncthreads();
  for (int from = 0; from < work.group; from += kAtOnce) {
    const int queries = min(kAtOnce, work.group - from);
    uint64_t sum[kAtOnce] = {};
    for (int begin = unit.begin; begin < unit.end; begin += kOfStep * kListThreads) {
      if (!loaded) scores.Load(work, unit, from, begin + thread);
      loaded = false;
#pragma unroll
      for (int step = 0; step < kOfStep; ++step) {
        if (begin + step * kListThreads >= unit.end) break;  // of all threads
        // Also of what is not there: no weight is to wait for the one before.
        const int i = begin + step * kListThreads + thread;
        uint32_t some[kAtOnce];
#pragma unroll
        for (int q = 0; q < kAtOnce; ++q) {
          const uint32_t weight = scores.Weight(largest[from + q], step, q);
          some[q] = i < unit.end && q < queries ? weight : 0;
          sum[q] += some[q];
        }
#pragma unroll
        for (int q = 0; q < kAtOnce; ++q) {
          if (i < unit.end && q < queries) weights.at[(from + q) * weights.stride + i] = some[q];
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
  for (int i = 0; i < kListWarps; ++i) all += sums[thread][i];
  Tell(&work.scratch.query_sums[first + thread].sums[unit.tile], all);
}

// Worth of a unit's far blocks, its codes, and how often each code is there: `histogram` is 0
// before and after. Heads that share a budget share a histogram.
__device__ void Value(const ListWork& work, const Unit& unit, const Weights& weights,
                      uint32_t (&histogram)[selection::kWorthCodes]) {
  __shared__ float sums[kSelectGroupMax];
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % kWarp;
  for (int query = thread / kWarp; query < work.group; query += kListWarps) {
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

struct Threshold {
  int code;       // greater ones are listed
  int64_t quota;  // of the equal ones of all heads that share a budget, in their order
};

// How many blocks have the share of all worth that is asked for; `before` are blocks of greater
// codes than these. Has barriers.
__device__ uint32_t BlocksOfTopP(const ListWork& work, const FourCodes& codes, uint32_t before,
                                 uint32_t heads) {
  __shared__ uint64_t of_warps[kListWarps];
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
  __shared__ uint32_t of_warps[kListWarps];
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
      found[1] = work.whole_codes != 0 ? codes.counts[i] : wanted - before;
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
  __shared__ uint64_t of_warps[kListWarps];
  const int thread = static_cast<int>(threadIdx.x);
  const uint16_t* codes = work.scratch.codes + int64_t{unit.head} * work.stride;
  const int of_thread = (unit.end - unit.begin + kListThreads - 1) / kListThreads;
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
    const int count = Certain(total) + min(Equal(total), quota);
    work.counts[unit.head] = count;
    AddListed(work.listed_of_all, count);
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
        *to++ = kLook == Look::kAll ? at + i : CandidateAt(work.candidates, unit.head, at + i);
      }
      ties += tie ? 1 : 0;
    }
  }
}

using Histogram = uint32_t[selection::kWorthCodes];

__device__ void ClearHistogram(Histogram& histogram) {
  for (int i = static_cast<int>(threadIdx.x); i < selection::kWorthCodes; i += kListThreads) {
    histogram[i] = 0;
  }
}

// Calls function(unit) for each unit of a block of threads; `own` is the first.
template <Look kLook, typename Function>
__device__ void EachUnit(const ListWork& work, const Unit& own, const Function& function) {
  const int units = work.heads * work.tiles;
  Unit unit = own;
#pragma unroll 1
  for (int i = static_cast<int>(blockIdx.x); i < units; i += static_cast<int>(gridDim.x)) {
    if (i >= static_cast<int>(gridDim.x)) unit = UnitOf<kLook>(work, i);
    function(unit);
    __syncthreads();
  }
}

// All steps from scores to lists. Blocks of threads wait for each other: there are no more than
// run at once, and no more than units.
template <Look kLook>
__device__ void ListScored(const ListWork& work, const Unit& own, Histogram& histogram,
                           uint32_t* held) {
  EachUnit<kLook>(work, own, [&](const Unit& unit) {
    Weigh<kLook>(work, unit, WeightsOf<kLook>(work, unit, held));
  });
  EachUnit<kLook>(work, own, [&](const Unit& unit) {
    Value(work, unit, WeightsOf<kLook>(work, unit, held), histogram);
  });
  WaitForAll(work);
  // Units wait for those before them, which no block of threads takes after later ones.
  EachUnit<kLook>(work, own, [&](const Unit& unit) { List<kLook>(work, unit); });
}

template <Look kLook>
__global__ void __launch_bounds__(kListThreads, 1) Choose(const __grid_constant__ ListWork work) {
  __shared__ Histogram histogram;
  extern __shared__ uint32_t held[];
  LetNextStart();
  ClearHistogram(histogram);
  BringParameters<sizeof(work)>(work);
  const auto block = static_cast<int>(blockIdx.x);
  Unit own;
  if constexpr (kLook == Look::kAll) own = UnitOf<kLook>(work, block);  // of parameters alone
  WaitForPrevious();
  if constexpr (kLook != Look::kAll) own = UnitOf<kLook>(work, block);
  if (work.clear_tops != 0 && blockIdx.x == 0) ClearTops(work.scratch, work.heads * work.group);
  ListScored<kLook>(work, own, histogram, held);
}

// The same of candidates, whose scores are made first.
template <int kDim, int kLoad>
__global__ void __launch_bounds__(kListThreads, 1)
    ChooseCandidates(const __grid_constant__ CandidateWork work) {
  constexpr Look kLook = Look::kSummaries;
  __shared__ Histogram histogram;
  __shared__ QueryCodes<kDim> codes;
  __shared__ WarpMaxima maxima;
  extern __shared__ uint32_t held[];
  const ListWork& list = work.list;
  LetNextStart();
  ClearHistogram(histogram);
  WaitForPrevious();
  const Unit own = UnitOf<kLook>(list, static_cast<int>(blockIdx.x));
  ClearSums(list.scratch, list.heads, list.group);
  CandidateScorer<kDim, kLoad> scorer = {codes, maxima};
  EachUnit<kLook>(list, own, [&](const Unit& unit) { scorer.Score(work, unit); });
  cooperative_groups::this_grid().sync();
  ListScored<kLook>(list, own, histogram, held);
}

// Cuts `entries` entries of a head, on average, into tiles of at least so many; returns the bytes
// of shared memory that hold a tile's weights.
int64_t CutTiles(int64_t entries, int64_t least, ListWork& work) {
  // At most one block of threads a multiprocessor: whatever else runs there ends without them, and
  // the next kernel of the stream starts when all of these have started, so that all come to run at
  // once.
  const int multiprocessors = Multiprocessors();
  const int64_t tiles = std::min<int64_t>(
      std::clamp<int64_t>(multiprocessors / work.heads, 1, SelectionScratch::kListTilesMax),
      CeilDiv(entries, least));
  work.tile_blocks = static_cast<int32_t>(CeilDiv(work.stride, tiles));
  work.tiles = static_cast<int32_t>(CeilDiv(work.stride, work.tile_blocks));
  const int64_t held = int64_t{work.tile_blocks} * work.group * 4;
  work.held = int64_t{work.heads} * work.tiles <= multiprocessors && held <= kHeldBytes ? 1 : 0;
  return work.held != 0 ? held : 0;
}

// Launches blocks of threads that wait for each other, all of which must come to run.
template <typename Work>
cudaError_t LaunchTogether(cudaStream_t stream, void (*kernel)(Work), const ListWork& list,
                           int64_t held, const Work& work, bool cooperative) {
  if (held > kHeldAnyway) {
    const cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kHeldBytes);
    if (error != cudaSuccess) return error;
  }
  const dim3 grid(static_cast<unsigned>(
      std::min<int64_t>(int64_t{list.heads} * list.tiles, Multiprocessors())));
  if (!cooperative) {
    return LaunchKernel(kernel, grid, kListThreads, static_cast<size_t>(held), stream, work);
  }
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeCooperative;
  attributes[0].val.cooperative = 1;
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = dim3(kListThreads);
  config.dynamicSmemBytes = static_cast<size_t>(held);
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = OverlapsKernels() ? 2 : 1;
  return cudaLaunchKernelEx(&config, kernel, work);
}

template <int kLoad>
cudaError_t LaunchCandidates(cudaStream_t stream, const CandidateWork& work, int64_t held) {
  const int head_dim = work.queries.head_dim;
  const auto kernel = head_dim <= 64    ? ChooseCandidates<64, kLoad>
                      : head_dim <= 128 ? ChooseCandidates<128, kLoad>
                                        : ChooseCandidates<256, kLoad>;
  return LaunchTogether(stream, kernel, work.list, held, work, /*cooperative=*/true);
}

}  // namespace

cudaError_t ListBest(cudaStream_t stream, Look look, ListWork work) {
  constexpr int64_t kTileBlocks = 256;
  const int64_t held = CutTiles(work.stride, kTileBlocks, work);
  const auto kernel = look == Look::kAll ? Choose<Look::kAll> : Choose<Look::kSketches>;
  return LaunchTogether(stream, kernel, work, held, work, /*cooperative=*/work.alone == 0);
}

cudaError_t ListBestCandidates(cudaStream_t stream, CodeLoads loads, CandidateWork work,
                               int64_t candidates) {
  constexpr int64_t kTileBlocks = 128;  // a product for each of half of the warps
  const int64_t held = CutTiles(candidates, kTileBlocks, work.list);
  work.list.score_tiles = work.list.tiles;
  return loads == CodeLoads::kBytes16 ? LaunchCandidates<16>(stream, work, held)
                                      : LaunchCandidates<8>(stream, work, held);
}

}  // namespace headway::cuda
