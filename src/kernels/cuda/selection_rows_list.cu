// From the scores of blocks of rows to their lists: weights and their sums, worth and its
// histograms, lists. All of it in integers, or in one order.
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/bytes.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/selection_rows.h"
#include "kernels/cuda/selection_weight.h"
#include "kernels/cuda/warp.h"
#include "kernels/cuda/workspace.h"

// Compiled without contraction of products and sums, as the definition is.
namespace headway::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr int kTileBlocks = 1024;              // of a block of threads
constexpr int kNone = selection::kWorthCodes;  // the code of a block that is not far: above all
static_assert(kPools == 8);

// The words of the pooled queries of a query head for a block.
struct PoolWords {
  uint32_t of[kPools];

  __device__ static PoolWords Load(const float* at) {
    const uint4 low = __ldcg(reinterpret_cast<const uint4*>(at));
    const uint4 high = __ldcg(reinterpret_cast<const uint4*>(at) + 1);
    return {{low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w}};
  }
  __device__ void Store(float* at) const {
    auto* const to = reinterpret_cast<uint4*>(at);
    to[0] = make_uint4(of[0], of[1], of[2], of[3]);
    to[1] = make_uint4(of[4], of[5], of[6], of[7]);
  }
};

// Scores become weights, which are added up. Grid: tiles of blocks, query heads of blocks of rows.
__global__ void __launch_bounds__(kThreads) Weigh(const __grid_constant__ RowsWork work) {
  FollowPrevious();
  __shared__ uint64_t of_warps[kWarps][kPools];
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t query_head = blockIdx.y;
  const int tile = static_cast<int>(blockIdx.x) * kTileBlocks;
  const int end = min(work.blocks, tile + kTileBlocks);
  float* const scores = work.scratch.scores + query_head * work.blocks * kPools;
  float tops[kPools];
#pragma unroll
  for (int i = 0; i < kPools; ++i) {
    tops[i] = __uint_as_float(OfOrderedBits(__ldcg(work.scratch.tops + query_head * kPools + i)));
  }
  uint64_t sums[kPools] = {};
  for (int block = tile + thread; block < end; block += kThreads) {
    PoolWords words = PoolWords::Load(scores + int64_t{block} * kPools);
#pragma unroll
    for (int i = 0; i < kPools; ++i) {
      words.of[i] = ShareWeightOf(tops[i], __uint_as_float(words.of[i]));
      sums[i] += words.of[i];
    }
    words.Store(scores + int64_t{block} * kPools);
  }
#pragma unroll
  for (int i = 0; i < kPools; ++i) {
#pragma unroll
    for (int apart = kWarp / 2; apart > 0; apart /= 2) {
      sums[i] += __shfl_xor_sync(kAllLanes, sums[i], apart);
    }
    if (thread % kWarp == 0) of_warps[thread / kWarp][i] = sums[i];
  }
  __syncthreads();
  if (thread >= kPools) return;
  uint64_t sum = 0;
  for (int i = 0; i < kWarps; ++i) sum += of_warps[i][thread];
  atomicAdd(reinterpret_cast<unsigned long long*>(work.scratch.sums + query_head * kPools + thread),
            static_cast<unsigned long long>(sum));
}

// The largest share of a block for the pooled queries of a query head.
__device__ float LargestShare(const PoolWords& weights, const float (&sums)[kPools], int pools) {
  float largest = 0.0f;
#pragma unroll
  for (int i = 0; i < kPools; ++i) {
    if (i < pools && weights.of[i] != 0) {
      largest = fmaxf(largest, static_cast<float>(weights.of[i]) / sums[i]);
    }
  }
  return largest;
}

// Worth of far blocks, its codes, and how often each code is there. Grid: tiles of blocks, lists.
__global__ void __launch_bounds__(kThreads) Value(const __grid_constant__ RowsWork work) {
  FollowPrevious();
  __shared__ uint32_t histogram[selection::kWorthCodes];
  __shared__ float sums[kSelectGroupMax][kPools];
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t list = blockIdx.y;
  const int tile = static_cast<int>(blockIdx.x) * kTileBlocks;
  const int end = min(work.blocks, tile + kTileBlocks);
  const int pools = work.Pools(static_cast<int>(list / work.heads));
  for (int i = thread; i < selection::kWorthCodes; i += kThreads) histogram[i] = 0;
  for (int i = thread; i < work.group * kPools; i += kThreads) {
    // As ShareOf rounds it.
    sums[i / kPools][i % kPools] =
        static_cast<float>(__ldcg(work.scratch.sums + list * work.group * kPools + i));
  }
  __syncthreads();
  uint16_t* const worths = work.scratch.worths + list * work.blocks;
  const float* const weights = work.scratch.scores + list * work.group * work.blocks * kPools;
  uint32_t zeros = 0;  // most codes may be 0
  for (int block = tile + thread; block < end; block += kThreads) {
    if (block < work.far_begin || block >= work.far_end) {
      worths[block] = kNone;
      continue;
    }
    float worth = 0.0f;
    for (int member = 0; member < work.group; ++member) {
      const auto of_block =
          PoolWords::Load(weights + (int64_t{member} * work.blocks + block) * kPools);
      worth += LargestShare(of_block, sums[member], pools);
    }
    const uint32_t code = selection::WorthCode(worth);
    worths[block] = static_cast<uint16_t>(code);
    if (code == 0) {
      ++zeros;
    } else {
      atomicAdd(&histogram[code], 1u);
    }
  }
  zeros = __reduce_add_sync(kAllLanes, zeros);
  if (thread % kWarp == 0 && zeros != 0) atomicAdd(&histogram[0], zeros);
  __syncthreads();
  uint32_t* const all = work.scratch.histograms + list * selection::kWorthCodes;
  for (int i = thread; i < selection::kWorthCodes; i += kThreads) {
    if (histogram[i] != 0) atomicAdd(all + i, histogram[i]);
  }
}

// --- Lists: a block of threads makes one.

constexpr int kListThreads = 512;
constexpr int kListWarps = kListThreads / kWarp;
constexpr int kOfThread = 8;  // codes that a thread lists at once
constexpr int kOfRound = kListThreads * kOfThread;

// Two counts in one number: blocks that are listed for certain, and those whose code is the
// threshold.
struct Counts {
  uint64_t both;

  __device__ static Counts Of(uint32_t certain, uint32_t equal) {
    return {uint64_t{certain} | uint64_t{equal} << 32};
  }
  __device__ int certain() const { return static_cast<int>(both & 0xFFFFFFFFu); }
  __device__ int equal() const { return static_cast<int>(both >> 32); }
};

// The sum of the values of the threads before; `all` is that of all threads. Has barriers.
__device__ uint64_t SumBefore(uint64_t value, uint64_t (&of_warps)[kListWarps], uint64_t& all) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  uint64_t sum = value;
#pragma unroll
  for (int apart = 1; apart < kWarp; apart *= 2) {
    const uint64_t before = __shfl_up_sync(kAllLanes, sum, apart);
    if (lane >= apart) sum += before;
  }
  if (lane == kWarp - 1) of_warps[warp] = sum;
  __syncthreads();
  uint64_t before = 0;
  all = 0;
#pragma unroll
  for (int i = 0; i < kListWarps; ++i) {
    if (i < warp) before += of_warps[i];
    all += of_warps[i];
  }
  __syncthreads();
  return before + sum - value;
}

struct Threshold {
  int code;   // blocks of greater ones are listed
  int quota;  // of the list's blocks with this one that are listed, the first ones
};

// How many blocks of `lists` lists have the share of all worth that is asked for; `before` are
// blocks of greater codes than these. Has barriers.
__device__ uint64_t BlocksOfTopP(const RowsWork& work, const FourCodes& codes, uint64_t before,
                                 uint64_t lists, uint64_t (&of_warps)[kListWarps]) {
  __shared__ uint64_t found;
  if (threadIdx.x == 0) found = 0;
  uint64_t all;
  const uint64_t worth = SumBefore(codes.Worth(), of_warps, all);
  codes.Find(selection::WorthWanted(all, work.top_p.share, kTopPBits), worth, before, &found);
  __syncthreads();
  const uint64_t least = static_cast<uint64_t>(work.top_p.least_blocks) * lists;
  return min(max(found, least), static_cast<uint64_t>(work.far_blocks) * lists);
}

// A thread looks at four codes; the first threads have the greatest. Has barriers.
__device__ Threshold FindThreshold(const RowsWork& work, int64_t list, int head,
                                   uint64_t (&of_warps)[kListWarps]) {
  __shared__ uint32_t found[2];
  constexpr int kCodes = selection::kWorthCodes;
  static_assert(kCodes == 4 * kListThreads);
  const int four = kListThreads - 1 - static_cast<int>(threadIdx.x);
  const bool layer = work.layer != 0;
  const int64_t first = layer ? list - head : list;  // the lists that share a budget
  const int lists = layer ? work.heads : 1;
  FourCodes codes = {4 * four + 3, {}};
  for (int i = 0; i < lists; ++i) {
    const uint4 some = __ldcg(
        reinterpret_cast<const uint4*>(work.scratch.histograms + (first + i) * kCodes) + four);
    codes.counts[0] += some.w;
    codes.counts[1] += some.z;
    codes.counts[2] += some.y;
    codes.counts[3] += some.x;
  }
  uint64_t all;
  uint64_t before =
      SumBefore(uint64_t{codes.counts[0]} + codes.counts[1] + codes.counts[2] + codes.counts[3],
                of_warps, all);
  const auto sharing = static_cast<uint64_t>(lists);
  const uint64_t wanted = work.top_p.share != 0
                              ? BlocksOfTopP(work, codes, before, sharing, of_warps)
                              : static_cast<uint64_t>(work.far_blocks) * sharing;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (before < wanted && wanted <= before + codes.counts[i]) {
      found[0] = static_cast<uint32_t>(codes.highest - i);
      found[1] = static_cast<uint32_t>(wanted - before);
    }
    before += codes.counts[i];
  }
  __syncthreads();
  const auto code = static_cast<int>(found[0]);
  int64_t quota = found[1];
  for (int64_t i = first; i < list; ++i) {  // equal ones of the heads before are taken first
    quota -= __ldcg(work.scratch.histograms + i * kCodes + code);
  }
  return {code, static_cast<int>(max(int64_t{0}, quota))};
}

// Grid: lists.
__global__ void __launch_bounds__(kListThreads) List(const __grid_constant__ ListRowsWork work) {
  FollowPrevious();
  __shared__ uint64_t of_warps[kListWarps];
  const RowsWork& rows = work.rows;
  const int64_t list = blockIdx.x;
  const Threshold threshold =
      FindThreshold(rows, list, static_cast<int>(list % rows.heads), of_warps);
  const uint16_t* const worths = rows.scratch.worths + list * rows.blocks;
  int32_t* const listed = work.listed + list * work.capacity;
  Counts done = {0};  // before this round
  for (int first = 0; first < rows.blocks; first += kOfRound) {
    const int begin = first + static_cast<int>(threadIdx.x) * kOfThread;
    int codes[kOfThread];
    uint32_t certain = 0;
    uint32_t equal = 0;
#pragma unroll
    for (int i = 0; i < kOfThread; ++i) {
      codes[i] = begin + i < rows.blocks ? int{__ldcg(worths + begin + i)} : -1;
      certain += codes[i] > threshold.code ? 1 : 0;
      equal += codes[i] == threshold.code ? 1 : 0;
    }
    uint64_t all;
    const Counts before = {done.both + SumBefore(Counts::Of(certain, equal).both, of_warps, all)};
    int ties = before.equal();
    int32_t* to = listed + before.certain() + min(ties, threshold.quota);
#pragma unroll
    for (int i = 0; i < kOfThread; ++i) {
      const bool tie = codes[i] == threshold.code;
      if (codes[i] > threshold.code || (tie && ties < threshold.quota)) *to++ = begin + i;
      ties += tie ? 1 : 0;
    }
    done.both += all;
  }
  if (threadIdx.x == 0) {
    work.counts[list] = done.certain() + min(done.equal(), threshold.quota);
  }
}

}  // namespace

cudaError_t ListRows(cudaStream_t stream, const ListRowsWork& work) {
  const RowsWork& rows = work.rows;
  const auto tiles = static_cast<unsigned>(CeilDiv(rows.blocks, kTileBlocks));
  const auto lists = static_cast<unsigned>(rows.row_blocks * rows.heads);
  cudaError_t error = LaunchKernel(Weigh, dim3(tiles, lists * static_cast<unsigned>(rows.group)),
                                   kThreads, 0, stream, rows);
  if (error != cudaSuccess) return error;
  error = LaunchKernel(Value, dim3(tiles, lists), kThreads, 0, stream, rows);
  if (error != cudaSuccess) return error;
  return LaunchKernel(List, dim3(lists), kListThreads, 0, stream, work);
}

}  // namespace headway::cuda
