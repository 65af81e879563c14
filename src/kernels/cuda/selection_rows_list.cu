// From the scores of bands of rows to their lists: weights and their sums, worth and its
// histograms, lists. All of it in integers, or in one order.
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/bytes.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/selection_keys.h"
#include "kernels/cuda/selection_rows.h"
#include "kernels/cuda/selection_weight.h"
#include "kernels/cuda/warp.h"
#include "kernels/cuda/workspace.h"

// Compiled without contraction of products and sums, as the definition is.
namespace headway::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr int kTileBlocks = 1024;              // entries that a block of threads weighs
constexpr int kValueBlocks = 512;              // and whose worth it finds
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

// Scores become weights, which are added up. Grid: tiles of entries, query heads of bands.
__global__ void __launch_bounds__(kThreads) Weigh(const __grid_constant__ RowsWork work) {
  FollowPrevious();
  __shared__ uint64_t of_warps[kWarps][kPools];
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t query_head = blockIdx.y;
  const int tile = static_cast<int>(blockIdx.x) * kTileBlocks;
  const int count = work.Entries(query_head / work.group);
  if (tile >= count) return;
  const int end = min(count, tile + kTileBlocks);
  float* const scores = work.scratch.scores + query_head * work.entries * kPools;
  float tops[kPools];
#pragma unroll
  for (int i = 0; i < kPools; ++i) {
    tops[i] = __uint_as_float(OfOrderedBits(__ldcg(work.scratch.tops + query_head * kPools + i)));
  }
  uint64_t sums[kPools] = {};
  // All of a thread's scores are under way before the first weight is written.
  PoolWords words[kTileBlocks / kThreads];
#pragma unroll
  for (int round = 0; round < kTileBlocks / kThreads; ++round) {
    const int block = min(tile + round * kThreads + thread, end - 1);
    words[round] = PoolWords::Load(scores + int64_t{block} * kPools);
  }
#pragma unroll
  for (int round = 0; round < kTileBlocks / kThreads; ++round) {
    const int block = tile + round * kThreads + thread;
    if (block >= end) break;
#pragma unroll
    for (int i = 0; i < kPools; ++i) {
      words[round].of[i] = ShareWeightOf(tops[i], __uint_as_float(words[round].of[i]));
      sums[i] += words[round].of[i];
    }
    words[round].Store(scores + int64_t{block} * kPools);
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

// The largest share of an entry for kCount pooled queries of a query head from `begin` on, of which
// there are `pools`.
template <int kCount>
__device__ float LargestShare(const PoolWords& weights, const float (&sums)[kPools], int begin,
                              int pools) {
  float largest = 0.0f;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if (begin + i < pools && weights.of[begin + i] != 0) {
      largest = fmaxf(largest, static_cast<float>(weights.of[begin + i]) / sums[begin + i]);
    }
  }
  return largest;
}

// How often each code is there among a tile's entries, two codes to a word.
static_assert(kValueBlocks < 1 << 16);
struct TileHistogram {
  uint32_t words[selection::kWorthCodes / 2];

  __device__ void Clear() {
    for (int i = static_cast<int>(threadIdx.x); i < selection::kWorthCodes / 2; i += kThreads) {
      words[i] = 0;
    }
  }
  __device__ void Add(uint32_t code, uint32_t times) {
    atomicAdd(&words[code / 2], times << (code % 2 * 16));
  }
  __device__ void AddTo(uint32_t* all) const {
    for (int i = static_cast<int>(threadIdx.x); i < selection::kWorthCodes / 2; i += kThreads) {
      if ((words[i] & 0xFFFFu) != 0) atomicAdd(all + 2 * i, words[i] & 0xFFFFu);
      if (words[i] >> 16 != 0) atomicAdd(all + 2 * i + 1, words[i] >> 16);
    }
  }
};

// Worth of far entries to each of a band's kLists lists of a head, its codes, and how often each
// code is there. Grid: tiles of entries, bands and heads.
template <int kLists>
__global__ void __launch_bounds__(kThreads) Value(const __grid_constant__ RowsWork work) {
  FollowPrevious();
  __shared__ TileHistogram histograms[kLists];
  __shared__ float sums[kSelectGroupMax][kPools];
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t band_head = blockIdx.y;
  const auto band = static_cast<int>(band_head / work.heads);
  const int64_t first = (int64_t{band} * kLists) * work.heads + band_head % work.heads;  // list
  const int tile = static_cast<int>(blockIdx.x) * kValueBlocks;
  const int count = work.Entries(first);  // of one list where there are candidates
  if (tile >= count) return;
  const int end = min(count, tile + kValueBlocks);
  const int near = work.Near(first);  // entries behind the far ones, of the first list the most
  const int pools = work.Pools(band);
#pragma unroll
  for (int i = 0; i < kLists; ++i) histograms[i].Clear();
  for (int i = thread; i < work.group * kPools; i += kThreads) {
    // As ShareOf rounds it.
    sums[i / kPools][i % kPools] =
        static_cast<float>(__ldcg(work.scratch.sums + band_head * work.group * kPools + i));
  }
  __syncthreads();
  uint16_t* const worths = work.scratch.worths + first * work.entries;
  const int64_t apart = int64_t{work.heads} * work.entries;  // of the worths of a band's lists
  const float* const weights = work.scratch.scores + band_head * work.group * work.entries * kPools;
  uint32_t zeros[kLists] = {};  // most codes may be 0
  for (int entry = tile + thread; entry < end; entry += kThreads) {
    const int left = count - entry;
    const bool far = entry >= work.far_begin && left > near - (kLists - 1) * work.far_step;
    float worth[kLists] = {};
    const int members = far ? work.group : 0;
#pragma unroll 4
    for (int member = 0; member < members; ++member) {
      const auto of_entry =
          PoolWords::Load(weights + (int64_t{member} * work.entries + entry) * kPools);
#pragma unroll
      for (int i = 0; i < kLists; ++i) {
        constexpr int kCount = kPools / kLists;
        worth[i] += LargestShare<kCount>(of_entry, sums[member], i * kCount, pools);
      }
    }
#pragma unroll
    for (int i = 0; i < kLists; ++i) {
      const bool far_of_list = far && left > near - i * work.far_step;
      const uint32_t code = far_of_list ? selection::WorthCode(worth[i]) : kNone;
      worths[i * apart + entry] = static_cast<uint16_t>(code);
      if (code == 0) {
        ++zeros[i];
      } else if (far_of_list) {
        histograms[i].Add(code, 1);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kLists; ++i) {
    zeros[i] = __reduce_add_sync(kAllLanes, zeros[i]);
    if (thread % kWarp == 0 && zeros[i] != 0) histograms[i].Add(0, zeros[i]);
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kLists; ++i) {
    histograms[i].AddTo(work.scratch.histograms +
                        (first + int64_t{i} * work.heads) * selection::kWorthCodes);
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
  const int count = rows.Entries(list);
  const Threshold threshold =
      FindThreshold(rows, list, static_cast<int>(list % rows.heads), of_warps);
  const uint16_t* const worths = rows.scratch.worths + list * rows.entries;
  int32_t* const listed = work.lists.blocks + list * work.lists.capacity;
  Counts done = {0};  // before this round
  for (int first = 0; first < count; first += kOfRound) {
    const int begin = first + static_cast<int>(threadIdx.x) * kOfThread;
    int codes[kOfThread];
    uint32_t certain = 0;
    uint32_t equal = 0;
#pragma unroll
    for (int i = 0; i < kOfThread; ++i) {
      codes[i] = begin + i < count ? int{__ldcg(worths + begin + i)} : -1;
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
      if (codes[i] > threshold.code || (tie && ties < threshold.quota)) {
        *to++ = rows.BlockAt(list, begin + i);
      }
      ties += tie ? 1 : 0;
    }
    done.both += all;
  }
  if (threadIdx.x == 0) {
    const int count = done.certain() + min(done.equal(), threshold.quota);
    work.lists.counts[list] = count;
    AddListed(work.listed_of_all, count);
  }
}

}  // namespace

cudaError_t ListRows(cudaStream_t stream, const ListRowsWork& work) {
  const RowsWork& rows = work.rows;
  const auto tiles = [&rows](int blocks) {
    return static_cast<unsigned>(CeilDiv(rows.entries, blocks));
  };
  const auto band_heads = static_cast<unsigned>(rows.bands * rows.heads);
  cudaError_t error =
      LaunchKernel(Weigh, dim3(tiles(kTileBlocks), band_heads * static_cast<unsigned>(rows.group)),
                   kThreads, 0, stream, rows);
  if (error != cudaSuccess) return error;
  const auto value = rows.band_lists == 1 ? Value<1> : Value<kSearchLists>;
  error = LaunchKernel(value, dim3(tiles(kValueBlocks), band_heads), kThreads, 0, stream, rows);
  if (error != cudaSuccess) return error;
  // The last band may have fewer lists.
  const int64_t row_blocks = CeilDiv(int64_t{rows.rows}, kSelectRows);
  const int64_t lists = std::min(row_blocks, int64_t{rows.bands} * rows.band_lists) * rows.heads;
  return LaunchKernel(List, dim3(static_cast<unsigned>(lists)), kListThreads, 0, stream, work);
}

}  // namespace headway::cuda
