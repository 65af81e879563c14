// Lines of a BlockCache for what the blocks of rows of a prefill list: a block of threads has some
// neighbouring blocks of a head, counts the lists that have each, and takes a line for each that is
// listed; so no block has two threads that ask for it, however many lists have it.
#include <cstddef>
#include <cstdint>

#include "base/bytes.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/selection_attend_lines.h"
#include "kernels/cuda/selection_line_copy.h"
#include "kernels/cuda/selection_prefill.h"
#include "kernels/cuda/warp.h"

namespace headway::cuda {
namespace {

constexpr int kWarps = 16;
constexpr int kThreads = kWarps * kWarp;
constexpr int kBlocks = kThreads;  // of a head: a thread has one

struct BringShared {
  struct Missing {
    int block;
    int line;
  };
  int lists[kBlocks];  // that have a block
  Missing missing[kBlocks];
  int brought;
  int reads[BlockCache::kReads];
};

// Counts the lists of a head that have blocks [first, first + kBlocks): a warp takes a list.
__device__ void CountLists(const ListedWork& work, int head, int first, BringShared& shared) {
  constexpr int kAhead = 8;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int block_rows = static_cast<int>(kSelectRows) * work.group;
  const int lists = (work.rows + block_rows - 1) / block_rows;
  for (int i = static_cast<int>(threadIdx.x) / kWarp; i < lists; i += kWarps) {
    const RowList list = RowList::Of(work, i, head);
    for (int at = lane; at < list.count; at += kAhead * kWarp) {
      int some[kAhead];
#pragma unroll
      for (int j = 0; j < kAhead; ++j) {
        some[j] = at + j * kWarp < list.count ? __ldcg(list.blocks + at + j * kWarp) : -1;
      }
#pragma unroll
      for (int j = 0; j < kAhead; ++j) {
        if (some[j] >= first && some[j] < first + kBlocks) {
          atomicAdd(&shared.lists[some[j] - first], 1);
        }
      }
    }
  }
}

// The line of a block that `lists` lists have, or none.
template <Rows kRows>
__device__ void FindLine(const ListedWork& work, int head, int listed, int lists,
                         BringShared& shared) {
  const ListedBlock block = FindListedBlock<kRows>(work, head, listed);
  LineTaken taken;
  if (block.segment.version != 0) {
    const auto number =
        static_cast<uint32_t>(head % work.group_heads * work.segment_blocks + block.number);
    taken = TakeLine(work.cache, block_cache::Name(block.segment.version, number));
    if (taken.line < 0) {
      atomicAdd(&shared.reads[BlockCache::kPassed], lists);
    } else {
      atomicAdd(&shared.reads[BlockCache::kBrought], taken.brought ? 1 : 0);
      atomicAdd(&shared.reads[BlockCache::kFound], taken.brought ? lists - 1 : lists);
    }
  }
  const auto line = static_cast<int>(taken.line);
  work.line_of[head * work.blocks + listed] = line;
  if (taken.brought) shared.missing[atomicAdd(&shared.brought, 1)] = {listed, line};
}

// Grid: runs of kBlocks blocks, heads.
template <Rows kRows>
__global__ void __launch_bounds__(kThreads) Bring(const __grid_constant__ ListedWork work) {
  FollowPrevious();
  __shared__ BringShared shared;
  const int thread = static_cast<int>(threadIdx.x);
  const int head = static_cast<int>(blockIdx.y);
  const int first = static_cast<int>(blockIdx.x) * kBlocks;
  shared.lists[thread] = 0;
  if (thread < BlockCache::kReads) shared.reads[thread] = 0;
  if (thread == 0) shared.brought = 0;
  __syncthreads();
  CountLists(work, head, first, shared);
  __syncthreads();
  const int lists = shared.lists[thread];
  if (lists > 0) FindLine<kRows>(work, head, first + thread, lists, shared);
  __syncthreads();
  if (thread < BlockCache::kReads && shared.reads[thread] > 0) {
    atomicAdd(reinterpret_cast<unsigned long long*>(work.cache.reads + thread),
              static_cast<unsigned long long>(shared.reads[thread]));
  }
  // K and V of a block are two warps' work.
  for (int i = thread / kWarp; i < 2 * shared.brought; i += kWarps) {
    const BringShared::Missing& missing = shared.missing[i / 2];
    const ListedBlock block = FindListedBlock<kRows>(work, head, missing.block);
    CopyToLine<kRows>(work, block.at, i % 2, work.cache.lines + missing.line * work.line_bytes);
  }
}

}  // namespace

cudaError_t BringListed(cudaStream_t stream, Rows rows, const ListedWork& work) {
  const dim3 grid(static_cast<unsigned>(CeilDiv(work.blocks, int64_t{kBlocks})),
                  static_cast<unsigned>(work.heads));
  if (grid.x == 0) return cudaSuccess;
  return ForRows(rows, [&](auto tag) {
    return LaunchKernel(Bring<decltype(tag)::kRows>, grid, kThreads, 0, stream, work);
  });
}

}  // namespace headway::cuda
