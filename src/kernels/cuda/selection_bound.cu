// Lists that bound what they leave out (selection_bound.h): from the masses of what a first list
// has and of a sample to lists that are as long as the bound asks for.
#include "kernels/selection_bound.h"

#include <cstdint>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/selection_attend.h"
#include "kernels/cuda/selection_by_keys.h"
#include "kernels/cuda/selection_keys.h"
#include "kernels/cuda/selection_units.h"
#include "kernels/cuda/selection_weight.h"
#include "kernels/cuda/warp.h"
#include "kernels/cuda/workspace.h"

// Compiled without contraction of products and sums, as the definition is.
namespace headway::cuda {
namespace {

constexpr int kCodes = selection::kWorthCodes;
constexpr int kSamples = selection::kBoundSamples;
// Each list is a quarter longer than the one before: from 1 block to 2^23.
constexpr int kListsMax = 96;
constexpr int kOfThread = 8;  // codes that a thread lists at once
static_assert(kSelectGroupMax <= kListWarps && kListsMax <= kListThreads);

struct BoundWork {
  ListWork list;
  MassBound bound;
};

// What a block of threads knows of its KV head.
struct HeadBound {
  uint32_t at_least[kCodes];                   // far blocks of a code, or of a greater one
  uint32_t least[kListsMax];                   // the least code of each list that is tried
  uint32_t sample_codes[kSamples];             // of sampled blocks
  uint64_t masses[kSelectGroupMax][kSamples];  // of sampled blocks of the tail, 0 of the core
  uint64_t core[kSelectGroupMax];
  int32_t failed;  // the last list for which the bound does not hold, or -1
};

// Finds the lists that are tried; returns how many there are. Has barriers.
__device__ int FindLists(const ListWork& work, int head, HeadBound& shared) {
  __shared__ uint32_t of_warps[kListWarps];
  const int thread = static_cast<int>(threadIdx.x);
  // Four codes a thread, the first threads have the greatest.
  const int four = kListThreads - 1 - thread;
  const uint4 there = __ldcg(
      reinterpret_cast<const uint4*>(work.scratch.histograms + int64_t{head} * kCodes) + four);
  const uint32_t counts[4] = {there.w, there.z, there.y, there.x};
  uint32_t far;
  uint32_t sum = SumBefore(there.x + there.y + there.z + there.w, of_warps, far);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    sum += counts[i];
    shared.at_least[4 * four + 3 - i] = sum;
  }
  __syncthreads();
  bool tried = false;
  if (thread < kListsMax) {
    int64_t blocks = work.far_blocks;
    for (int i = 0; i < thread; ++i) blocks = selection::LongerList(blocks);
    const int64_t longest = selection::LongestList(far);
    int code = 0;  // the greatest that so many blocks have, or a greater one
    for (int step = kCodes / 2; step > 0; step /= 2) {
      if (shared.at_least[code + step] >= blocks) code += step;
    }
    tried = blocks <= longest && shared.at_least[code] <= longest;
    shared.least[thread] = static_cast<uint32_t>(code);
  }
  return __syncthreads_count(tried ? 1 : 0);
}

// Masses of the core and of the sampled tail, a warp a query head.
__device__ void Weigh(const BoundWork& work, int head, HeadBound& shared) {
  const ListWork& list = work.list;
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % kWarp;
  const int64_t far = list.far_end - list.far_begin;
  const int samples = selection::SamplesOf(far);
  if (thread < samples) {
    const int64_t block =
        list.far_begin + selection::SampleOf(work.bound.seed, head, thread, far).block;
    shared.sample_codes[thread] = list.scratch.codes[int64_t{head} * list.stride + block];
  }
  __syncthreads();
  const int member = thread / kWarp;
  if (member >= list.group) return;
  const int64_t query = int64_t{head} * list.group + member;
  const float* core = list.scratch.scores + query * list.stride;
  const float* sampled = list.scratch.maxima + query * SelectionScratch::kTilesMax;
  const int listed = list.counts[head];
  const auto in_tail = [&](int i) { return shared.sample_codes[i] < shared.least[0]; };
  float top = selection::kLeastLogit;
  for (int i = lane; i < listed; i += kWarp) top = fmaxf(top, core[i]);
  for (int i = lane; i < samples; i += kWarp) {
    if (in_tail(i)) top = fmaxf(top, sampled[i]);
  }
#pragma unroll
  for (int apart = kWarp / 2; apart > 0; apart /= 2) {
    top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, apart));
  }
  uint64_t sum = 0;
  for (int i = lane; i < listed; i += kWarp) sum += ShareWeightOf(top, core[i]);
  sum = WarpSum64(sum);
  if (lane == 0) shared.core[member] = sum;
  for (int i = lane; i < samples; i += kWarp) {
    const int64_t stratum = selection::SampleOf(work.bound.seed, head, i, far).stratum;
    shared.masses[member][i] =
        in_tail(i) ? selection::SampledMass(ShareWeightOf(top, sampled[i]), stratum) : 0;
  }
}

// Notes the last of `lists` lists for which the bound does not hold, a thread a list and query
// head. Blocks of the core, whose masses are 0 here, change no sum.
__device__ void TryLists(const BoundWork& work, int lists, HeadBound& shared) {
  const int64_t far = work.list.far_end - work.list.far_begin;
  const int samples = selection::SamplesOf(far);
  for (int i = static_cast<int>(threadIdx.x); i < lists * work.list.group; i += kListThreads) {
    const int tried = i / work.list.group;
    const int member = i % work.list.group;
    selection::SampledSum tail, unread;
    for (int sample = 0; sample < samples; ++sample) {
      const uint64_t mass = shared.masses[member][sample];
      tail.Add(mass);
      if (shared.sample_codes[sample] < shared.least[tried]) unread.Add(mass);
    }
    if (!selection::BoundHolds(work.bound, far, shared.core[member], tail, unread)) {
      atomicMax(&shared.failed, tried);
    }
  }
}

// Lists the blocks of at least this code, near ones among them. Has barriers.
__device__ void ListFrom(const ListWork& work, int head, uint32_t least) {
  __shared__ uint32_t of_warps[kListWarps];
  const uint16_t* codes = work.scratch.codes + int64_t{head} * work.stride;
  int32_t* list = work.listed + int64_t{head} * work.capacity;
  uint32_t before = 0;
  for (int begin = 0; begin < work.blocks; begin += kListThreads * kOfThread) {
    const int first = begin + static_cast<int>(threadIdx.x) * kOfThread;
    uint32_t listed = 0;  // a bit of each
#pragma unroll
    for (int i = 0; i < kOfThread; ++i) {
      if (first + i < work.blocks && codes[first + i] >= least) listed |= 1u << i;
    }
    uint32_t all;
    uint32_t at = before + SumBefore(static_cast<uint32_t>(__popc(listed)), of_warps, all);
#pragma unroll
    for (int i = 0; i < kOfThread; ++i) {
      if ((listed >> i & 1u) != 0) list[at++] = first + i;
    }
    before += all;
  }
  if (threadIdx.x != 0) return;
  // The shorter list has been counted.
  AddListed(work.listed_of_all, static_cast<int>(before) - work.counts[head]);
  work.counts[head] = static_cast<int32_t>(before);
}

// A block of threads takes a KV head.
__global__ void __launch_bounds__(kListThreads) Lengthen(const __grid_constant__ BoundWork work) {
  __shared__ HeadBound shared;
  FollowPrevious();
  const int head = static_cast<int>(blockIdx.x);
  if (threadIdx.x == 0) shared.failed = -1;
  const int lists = FindLists(work.list, head, shared);
  if (lists > 0) {
    Weigh(work, head, shared);
    __syncthreads();
    TryLists(work, lists, shared);
    __syncthreads();
    if (shared.failed < 0) return;  // the first list is long enough
  }
  const int next = lists > 0 ? shared.failed + 1 : 0;
  ListFrom(work.list, head, next < lists ? shared.least[next] : 0);
}

}  // namespace

cudaError_t LengthenLists(cudaStream_t stream, const SelectionShape& shape, const SelectItem& item,
                          const ListWork& list) {
  SampleWork sample = {};
  cudaError_t error = MakeKeyWork(stream, shape, item, list.scratch, sample.keys);
  if (error != cudaSuccess) return error;
  sample.bound = item.budget.bound;
  sample.listed = list.listed;
  sample.capacity = list.capacity;
  sample.counts = list.counts;
  sample.far_begin = list.far_begin;
  sample.far_end = list.far_end;
  const int64_t near = list.blocks - (list.far_end - list.far_begin);
  error = ScoreSample(stream, RowsOf(shape.format), sample, near + list.far_blocks);
  if (error != cudaSuccess) return error;
  return LaunchKernel(Lengthen, dim3(static_cast<unsigned>(list.heads)), kListThreads, 0, stream,
                      BoundWork{list, item.budget.bound});
}

}  // namespace headway::cuda
