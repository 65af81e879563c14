// Lines of a BlockCache for the blocks of a part: those that are there are found, others are
// brought, before the part is attended to, by who attends to it or by a launch before.
#ifndef HEADWAY_KERNELS_CUDA_SELECTION_ATTEND_LINES_H_
#define HEADWAY_KERNELS_CUDA_SELECTION_ATTEND_LINES_H_

#include <cstddef>
#include <cstdint>

#include "kernels/block_cache.h"
#include "kernels/cuda/selection_attend.h"
#include "kernels/cuda/selection_attend_parts.h"
#include "kernels/cuda/selection_line_copy.h"
#include "kernels/cuda/warp.h"

namespace headway::cuda {

// A line for a block, taken by one thread. No other thread of the kernel asks for the same block:
// lists name it once, and one block of threads reads it.
struct LineTaken {
  int64_t line = -1;  // none: all of the set's were read in this step
  bool brought = false;
};
__device__ inline LineTaken TakeLine(const BlockCache& cache, uint64_t name) {
  constexpr int kWays = BlockCache::kWays;
  const int64_t first = int64_t{block_cache::SetOf(name, cache.sets)} * kWays;
  uint64_t* const entries = cache.entries + first;
  uint64_t seen[kWays];
#pragma unroll
  for (int way = 0; way < kWays; way += 2) {
    const ulonglong2 two = __ldcg(reinterpret_cast<const ulonglong2*>(entries + way));
    seen[way] = two.x;
    seen[way + 1] = two.y;
  }
  const uint64_t mine = block_cache::Entry(name, cache.step);
  const auto swap = [&](int way, uint64_t old) {
    return static_cast<uint64_t>(
        atomicCAS(reinterpret_cast<unsigned long long*>(entries + way), old, mine));
  };
  int found = -1;
  uint64_t old = 0;
#pragma unroll
  for (int way = 0; way < kWays; ++way) {
    if (block_cache::NameOf(seen[way]) == name) {
      found = way;
      old = seen[way];
    }
  }
  // Another thread may take the line away before this one says that it is read.
  if (found >= 0 && swap(found, old) == old) return {first + found, false};
  for (int tries = 0; tries < kWays; ++tries) {
    int oldest = -1;
    uint32_t most = 0;
#pragma unroll
    for (int way = 0; way < kWays; ++way) {
      const uint32_t age = seen[way] == 0 ? ~0u : block_cache::AgeOf(seen[way], cache.step);
      if (way != found && age > most) {
        oldest = way;
        old = seen[way];
        most = age;
      }
    }
    if (oldest < 0) break;
    const uint64_t now = swap(oldest, old);
    if (now == old) return {first + oldest, true};
#pragma unroll
    for (int way = 0; way < kWays; ++way) {
      if (way == oldest) seen[way] = now;
    }
  }
  return {};
}

// The lines of a part's blocks, in shared memory.
struct PartLines {
  const std::byte* of[kPartLinesMax];  // null: the block is read where it lies
  int missing[kPartLinesMax];          // blocks of the part that are to be brought
  int counts[BlockCache::kReads];

  // Has barriers: all threads of the block call it. Lines that are read until the kernel ends are
  // no other block's before the next step.
  template <Rows kRows, int kWarps>
  __device__ __noinline__ void Bring(const AttendWork& work, const PartOf& part, int blocks) {
    const int thread = static_cast<int>(threadIdx.x);
    if (thread < BlockCache::kReads) counts[thread] = 0;
    __syncthreads();
    for (int i = thread; i < blocks; i += kWarps * kWarp) Find(work, part, i);
    __syncthreads();
    const int brought = counts[BlockCache::kBrought];
    // K and V of a block are two warps' work.
    for (int i = thread / kWarp; i < 2 * brought; i += kWarps) {
      Copy<kRows>(work, part, missing[i / 2], i % 2);
    }
    if (thread < BlockCache::kReads && counts[thread] > 0) {
      atomicAdd(reinterpret_cast<unsigned long long*>(work.cache.reads + thread),
                static_cast<unsigned long long>(counts[thread]));
    }
    __syncthreads();
  }

  // Leaves them in work.line_of, behind Bring.
  template <int kWarps>
  __device__ void Save(const AttendWork& work, const PartOf& part, int blocks) const {
    for (int i = static_cast<int>(threadIdx.x); i < blocks; i += kWarps * kWarp) {
      const auto line = of[i] == nullptr ? -1 : (of[i] - work.cache.lines) / work.line_bytes;
      work.line_of[PlaceOf(work, part, i)] = static_cast<int32_t>(line);
    }
  }
  // Takes them from there. Has barriers.
  template <int kWarps>
  __device__ __noinline__ void Load(const AttendWork& work, const PartOf& part, int blocks) {
    __syncthreads();  // those of the part before are no longer read
    for (int i = static_cast<int>(threadIdx.x); i < blocks; i += kWarps * kWarp) {
      const int line = __ldcg(work.line_of + PlaceOf(work, part, i));
      of[i] = line < 0 ? nullptr : work.cache.lines + line * work.line_bytes;
    }
    __syncthreads();
  }

 private:
  // Of a part's block, in its list.
  __device__ static int64_t PlaceOf(const AttendWork& work, const PartOf& part, int i) {
    return part.head * work.capacity + part.part * work.split_blocks + i;
  }
  __device__ static int Listed(const AttendWork& work, const PartOf& part, int i) {
    return __ldcg(work.listed + PlaceOf(work, part, i));
  }
  __device__ void Find(const AttendWork& work, const PartOf& part, int i) {
    of[i] = nullptr;
    int block = Listed(work, part, i);
    const uint32_t version = work.table.VersionOfLane(work.table.Index(part.head, block));
    if (version == 0) return;
    const auto number = static_cast<uint32_t>(
        work.table.InGroup(part.head) * work.table.segment_blocks.Size() + block);
    const LineTaken taken = TakeLine(work.cache, block_cache::Name(version, number));
    if (taken.line >= 0) of[i] = work.cache.lines + taken.line * work.line_bytes;
    const BlockCache::Read read = taken.line < 0  ? BlockCache::kPassed
                                  : taken.brought ? BlockCache::kBrought
                                                  : BlockCache::kFound;
    const int at = atomicAdd(&counts[read], 1);
    if (taken.brought) missing[at] = i;
  }

  template <Rows kRows>
  __device__ void Copy(const AttendWork& work, const PartOf& part, int i, int values) const {
    int block = Listed(work, part, i);
    const std::byte* slab = work.table.Find(part.head, block);
    CopyToLine<kRows>(work, AtBlock<kRows>(work, part.head, slab, block), values,
                      const_cast<std::byte*>(of[i]));
  }
};

}  // namespace headway::cuda

#endif  // HEADWAY_KERNELS_CUDA_SELECTION_ATTEND_LINES_H_
