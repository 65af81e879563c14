// From scores to lists of blocks: weights and their sums, worth and its histograms, lists. All of
// it in integers, or in one order.
#include <cstddef>
#include <cstdint>

#include "base/bytes.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/selection_keys.h"
#include "kernels/cuda/warp.h"

// Compiled without contraction of products and sums, as the definition is.
namespace headway::cuda {
namespace {

constexpr int kTileThreads = 256;
constexpr int kListThreads = 1024;
constexpr int kOfLoad = 8;  // codes that a lister takes at once
constexpr int kTilesMax = SelectionScratch::kTilesMax;
constexpr int kNone = selection::kWorthCodes;  // a threshold that no code reaches

__device__ uint64_t WarpSum64(uint64_t value) {
#pragma unroll
  for (int apart = kWarp / 2; apart > 0; apart /= 2) {
    value += __shfl_xor_sync(kAllLanes, value, apart);
  }
  return value;
}

// The part of `count` that a tile has: a multiple of 4 but at the end.
struct Tile {
  int begin;
  int end;
};
__device__ Tile TileOf(int count) {
  const int tiles = static_cast<int>(gridDim.x);
  const int of_tile = (count + tiles * 4 - 1) / (tiles * 4) * 4;
  const int begin = min(count, static_cast<int>(blockIdx.x) * of_tile);
  return {begin, min(count, begin + of_tile)};
}

// Scores become weights, which are added up. blockIdx.y is a query head.
__global__ void __launch_bounds__(kTileThreads) Weights(const __grid_constant__ ListWork work) {
  __shared__ uint64_t sums[kTileThreads / kWarp];
  FollowPrevious();
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % kWarp;
  const int64_t query_head = blockIdx.y;
  float largest = -INFINITY;
  for (int i = lane; i < work.score_tiles; i += kWarp) {
    largest = fmaxf(largest, work.scratch.maxima[query_head * kTilesMax + i]);
  }
#pragma unroll
  for (int apart = kWarp / 2; apart > 0; apart /= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, apart));
  }
  float* scores = work.scratch.scores + query_head * work.blocks;
  const Tile tile = TileOf(work.blocks);
  uint64_t sum = 0;
#pragma unroll 4
  for (int i = tile.begin + thread; i < tile.end; i += kTileThreads) {
    const uint32_t weight = selection::ShareWeight(largest, scores[i]);
    scores[i] = __uint_as_float(weight);
    sum += weight;
  }
  sum = WarpSum64(sum);
  if (lane == 0) sums[thread / kWarp] = sum;
  __syncthreads();
  if (thread != 0) return;
  for (int i = 1; i < kTileThreads / kWarp; ++i) sum += sums[i];
  work.scratch.query_sums[query_head].sums[blockIdx.x] = sum;
}

// Worth of the far blocks, its codes, and how often each code is there. blockIdx.y is a KV head.
__global__ void __launch_bounds__(kTileThreads) Worth(const __grid_constant__ ListWork work) {
  constexpr int kGroupMax = 16;
  __shared__ uint64_t sums[kGroupMax];
  __shared__ uint32_t histogram[selection::kWorthCodes];
  LetNextStart();
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % kWarp;
  const int64_t head = blockIdx.y;
  for (int i = thread; i < selection::kWorthCodes; i += kTileThreads) histogram[i] = 0;
  WaitForPrevious();
  for (int query = thread / kWarp; query < work.group; query += kTileThreads / kWarp) {
    uint64_t sum = 0;
    for (int i = lane; i < work.weight_tiles; i += kWarp) {
      sum += work.scratch.query_sums[head * work.group + query].sums[i];
    }
    sum = WarpSum64(sum);
    if (lane == 0) sums[query] = sum;
  }
  __syncthreads();
  const Tile tile = TileOf(work.far_end - work.far_begin);
  const auto* weights = reinterpret_cast<const uint32_t*>(work.scratch.scores) +
                        head * work.group * work.blocks + work.far_begin;
  uint16_t* codes = work.scratch.codes + head * work.blocks + work.far_begin;
  uint32_t zeros = 0;  // most codes may be 0
  for (int i = tile.begin + thread; i < tile.end; i += kTileThreads) {
    float worth = 0.0f;
#pragma unroll 4
    for (int query = 0; query < work.group; ++query) {
      worth += selection::ShareOf(weights[int64_t{query} * work.blocks + i], sums[query]);
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
  for (int i = thread; i < selection::kWorthCodes; i += kTileThreads) {
    if (histogram[i] != 0) {
      atomicAdd(&work.scratch.histograms[head * selection::kWorthCodes + i], histogram[i]);
    }
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
constexpr uint64_t kReady = uint64_t{1} << 63;

// The sum of the values of the threads before, and of all. Has barriers.
template <typename T>
__device__ T SumBefore(T value, T (&of_warps)[kListThreads / kWarp], T& all) {
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
  static_assert(kListThreads / kWarp == kWarp);
  T warps = of_warps[lane];
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
  int code;   // greater ones are listed
  int quota;  // of the head's equal ones, in their order
};

// Each thread looks at two codes; the first threads have the greatest.
__device__ Threshold FindThreshold(const ListWork& work, int head) {
  __shared__ uint32_t of_warps[kListThreads / kWarp];
  __shared__ int found[2];
  constexpr int kCodes = selection::kWorthCodes;
  static_assert(kCodes == 2 * kListThreads);
  const int thread = static_cast<int>(threadIdx.x);
  const int pair = kListThreads - 1 - thread;
  const auto* histograms = reinterpret_cast<const uint2*>(work.scratch.histograms);
  uint2 there = make_uint2(0, 0);
  const int first = work.layer != 0 ? 0 : head;
  const int last = work.layer != 0 ? work.heads - 1 : head;
#pragma unroll 8
  for (int i = first; i <= last; ++i) {
    const uint2 more = __ldcg(histograms + int64_t{i} * (kCodes / 2) + pair);
    there.x += more.x;
    there.y += more.y;
  }
  const uint32_t wanted =
      static_cast<uint32_t>(work.far_blocks) * static_cast<uint32_t>(last - first + 1);
  uint32_t all;
  const uint32_t before = SumBefore(there.x + there.y, of_warps, all);
  if (before < wanted && wanted <= before + there.y) {
    found[0] = 2 * pair + 1;
    found[1] = static_cast<int>(wanted - before);
  } else if (before + there.y < wanted && wanted <= before + there.y + there.x) {
    found[0] = 2 * pair;
    found[1] = static_cast<int>(wanted - before - there.y);
  }
  __syncthreads();
  const Threshold threshold = {found[0], found[1]};
  if (work.layer == 0) return threshold;
  // What the heads before take.
  uint32_t taken = 0;
  for (int i = thread % kWarp; i < head; i += kWarp) {
    taken += __ldcg(work.scratch.histograms + int64_t{i} * kCodes + threshold.code);
  }
  taken = __reduce_add_sync(kAllLanes, taken);
  return {threshold.code, max(0, threshold.quota - static_cast<int>(taken))};
}

// Codes [begin, begin + 8) of a head; those of blocks that are not far are above all.
__device__ void LoadCodes(const ListWork& work, const uint16_t* codes, int begin, int end,
                          int (&values)[kOfLoad]) {
  if (begin >= work.far_begin && begin + kOfLoad <= min(end, work.far_end) &&
      work.blocks % 4 == 0) {
    const uint2 low = __ldcg(reinterpret_cast<const uint2*>(codes + begin));
    const uint2 high = __ldcg(reinterpret_cast<const uint2*>(codes + begin + 4));
    const uint32_t words[4] = {low.x, low.y, high.x, high.y};
#pragma unroll
    for (int i = 0; i < kOfLoad; ++i) {
      values[i] = static_cast<int>(words[i / 2] >> (16 * (i % 2)) & 0xFFFFu);
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < kOfLoad; ++i) {
    const int block = begin + i;
    values[i] = block >= end                                      ? -1
                : block < work.far_begin || block >= work.far_end ? kNone
                                                                  : int{__ldcg(codes + block)};
  }
}

// Lists the blocks of a head, blockIdx.y, that are of this lister, blockIdx.x. Listers tell those
// behind them how many theirs are: blocks of threads start in their order.
__global__ void __launch_bounds__(kListThreads) List(const __grid_constant__ ListWork work) {
  __shared__ uint64_t of_warps[kListThreads / kWarp];
  __shared__ uint64_t before_lister;
  FollowPrevious();
  const int thread = static_cast<int>(threadIdx.x);
  const int head = static_cast<int>(blockIdx.y);
  const int lister = static_cast<int>(blockIdx.x);
  const Threshold threshold = FindThreshold(work, head);
  const uint16_t* codes = work.scratch.codes + int64_t{head} * work.blocks;
  const int of_thread = work.lister_blocks / kListThreads;
  const int begin = min(work.blocks, lister * work.lister_blocks + thread * of_thread);
  const int end = min(work.blocks, begin + of_thread);

  uint32_t certain = 0;
  uint32_t equal = 0;
  int values[kOfLoad];
  for (int at = begin; at < end; at += kOfLoad) {
    LoadCodes(work, codes, at, end, values);
#pragma unroll
    for (int i = 0; i < kOfLoad; ++i) {
      certain += values[i] > threshold.code ? 1 : 0;
      equal += values[i] == threshold.code ? 1 : 0;
    }
  }
  uint64_t all;
  uint64_t counts = SumBefore(Counts(certain, equal), of_warps, all);
  uint64_t* told = work.scratch.query_sums[int64_t{head} * work.group].listed;
  if (thread == 0) {
    atomicExch(reinterpret_cast<unsigned long long*>(told + lister), all | kReady);
  }
  if (thread < kWarp) {
    uint64_t before = 0;
    for (int i = thread; i < lister; i += kWarp) {
      uint64_t value;
      do {
        value = *static_cast<volatile uint64_t*>(told + i);
      } while ((value & kReady) == 0);
      before += value & ~kReady;
    }
    before = WarpSum64(before);
    if (thread == 0) before_lister = before;
  }
  __syncthreads();
  counts += before_lister;
  if (thread == 0 && lister + 1 == static_cast<int>(gridDim.x)) {
    const uint64_t total = before_lister + all;
    work.counts[head] = Certain(total) + min(Equal(total), threshold.quota);
  }

  int ties = Equal(counts);
  int32_t* to = work.listed + head * work.capacity + Certain(counts) + min(ties, threshold.quota);
  for (int at = begin; at < end; at += kOfLoad) {
    if (of_thread != kOfLoad) LoadCodes(work, codes, at, end, values);
#pragma unroll
    for (int i = 0; i < kOfLoad; ++i) {
      const bool tie = values[i] == threshold.code;
      if (values[i] > threshold.code || (tie && ties < threshold.quota)) *to++ = at + i;
      ties += tie ? 1 : 0;
    }
  }
}

__global__ void __launch_bounds__(kTileThreads)
    AllBut(const __grid_constant__ ListWork work, int32_t skip_begin, int32_t skip_end) {
  FollowPrevious();
  const int count = work.blocks - (skip_end - skip_begin);
  const int64_t head = blockIdx.y;
  const int i = static_cast<int>(blockIdx.x) * kTileThreads + static_cast<int>(threadIdx.x);
  if (i == 0) work.counts[head] = count;
  if (i < count) {
    work.listed[head * work.capacity + i] = i < skip_begin ? i : i + skip_end - skip_begin;
  }
}

}  // namespace

cudaError_t ListBest(cudaStream_t stream, ListWork work) {
  // As many tiles as feed the device, of at least as many blocks as there are threads.
  constexpr int kTileBlocks = 2 * kTileThreads;
  const auto heads = static_cast<unsigned>(work.heads);
  work.weight_tiles =
      static_cast<int32_t>(std::min<int64_t>(kTilesMax, CeilDiv(work.blocks, 2 * kTileBlocks)));
  cudaError_t error = LaunchKernel(
      Weights,
      dim3(static_cast<unsigned>(work.weight_tiles), heads * static_cast<unsigned>(work.group)),
      kTileThreads, 0, stream, work);
  if (error != cudaSuccess) return error;
  const int64_t far = work.far_end - work.far_begin;
  const auto worth_tiles =
      static_cast<unsigned>(std::min<int64_t>(kTilesMax, CeilDiv(far, kTileBlocks)));
  error = LaunchKernel(Worth, dim3(worth_tiles, heads), kTileThreads, 0, stream, work);
  if (error != cudaSuccess) return error;
  constexpr int64_t kLoads = int64_t{kListThreads} * kOfLoad;
  work.lister_blocks =
      static_cast<int32_t>(kLoads * CeilDiv(work.blocks, kLoads * SelectionScratch::kListersMax));
  const auto listers = static_cast<unsigned>(CeilDiv(work.blocks, work.lister_blocks));
  return LaunchKernel(List, dim3(listers, heads), kListThreads, 0, stream, work);
}

cudaError_t ListAllBut(cudaStream_t stream, const ListWork& work, int32_t skip_begin,
                       int32_t skip_end) {
  const int64_t most = std::max<int64_t>(1, work.blocks);
  return LaunchKernel(
      AllBut,
      dim3(static_cast<unsigned>(CeilDiv(most, kTileThreads)), static_cast<unsigned>(work.heads)),
      kTileThreads, 0, stream, work, skip_begin, skip_end);
}

}  // namespace headway::cuda
