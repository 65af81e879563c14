// The parts of the heads' lists, and where their keys lie.
#ifndef HEADWAY_KERNELS_CUDA_SELECTION_ATTEND_PARTS_H_
#define HEADWAY_KERNELS_CUDA_SELECTION_ATTEND_PARTS_H_

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/attention_decode_block.h"
#include "kernels/cuda/selection_attend.h"
#include "kernels/cuda/selection_attend_rows.h"
#include "kernels/cuda/warp.h"

namespace headway::cuda {

// A part of a head's list, or the head's open page, which is the part behind all others.
struct PartOf {
  int head = -1;
  int part = 0;
  int blocks = 0;  // of the head's list
  int parts = 0;   // of it

  __device__ bool IsOpen() const { return part == parts; }
};

// The unit-th part that has keys to be attended to, over all heads. All lanes of a warp find it
// together.
__device__ inline PartOf FindPart(const AttendWork& work, int unit) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int open = work.result == nullptr ? 0 : 1;
  for (int first = 0; first < work.heads; first += kWarp) {
    const bool there = first + lane < work.heads;
    const int count = there ? __ldcg(work.counts + first + lane) : 0;
    const int listed = (count + work.split_blocks - 1) / work.split_blocks;
    const int parts = there ? (work.attended != 0 ? 0 : listed) + open : 0;
    int sum = parts;
#pragma unroll
    for (int apart = 1; apart < kWarp; apart *= 2) {
      const int before = __shfl_up_sync(kAllLanes, sum, apart);
      if (lane >= apart) sum += before;
    }
    const unsigned beyond = __ballot_sync(kAllLanes, unit < sum);
    if (beyond != 0) {
      const int at = __ffs(static_cast<int>(beyond)) - 1;
      const int before = __shfl_sync(kAllLanes, sum - parts, at);
      const int of_list = __shfl_sync(kAllLanes, listed, at);
      return {first + at, work.attended != 0 ? of_list : unit - before,
              __shfl_sync(kAllLanes, count, at), of_list};
    }
    unit -= __shfl_sync(kAllLanes, sum, kWarp - 1);
  }
  return {};
}

// Listed blocks of a part.
__device__ inline int BlocksOf(const AttendWork& work, const PartOf& part) {
  return min(work.split_blocks, part.blocks - part.part * work.split_blocks);
}

// States of parts behind the lists' ends.
__device__ inline void ClearEmptyParts(const AttendWork& work) {
  const int threads = static_cast<int>(gridDim.x * blockDim.x);
  const int states = work.heads * work.parts;
  for (int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x); i < states; i += threads) {
    const int head = i / work.parts;
    const int part = i % work.parts;
    const int count = __ldcg(work.counts + head);
    if (int64_t{part} * work.split_blocks < count) continue;
    float* lse = work.lse + part * work.lse_part_stride + int64_t{head} * work.group;
    for (int query = 0; query < work.group; ++query) lse[query] = kNoKeys;
  }
}

// Where 8 neighbouring slots of a block lie.
struct Strip {
  const std::byte* k;
  const std::byte* params;  // of the page
  int slot;                 // of its page
  int32_t v_lines;          // 16 bytes from K to V

  __device__ const std::byte* V() const { return k + int64_t{v_lines} * 16; }
  __device__ Strip From(int lane) const {
    const auto of = [lane](const std::byte* pointer) {
      return reinterpret_cast<const std::byte*>(static_cast<uintptr_t>(__shfl_sync(
          kAllLanes, static_cast<unsigned long long>(reinterpret_cast<uintptr_t>(pointer)), lane)));
    };
    return {of(k), of(params), __shfl_sync(kAllLanes, slot, lane),
            __shfl_sync(kAllLanes, v_lines, lane)};
  }
};

// Where a block of a head lies in its slab: K, and the parameters of its page.
struct BlockAt {
  const std::byte* k;
  const std::byte* params;
  int slot;  // its first, of its page
};
template <Rows kRows>
__device__ BlockAt AtBlock(const AttendWork& work, int head, const std::byte* slab, int block) {
  const int page = work.page_blocks.Divide(block);
  const int slot = work.page_blocks.Rest(block, page) * work.block_slots;
  const int in_group = work.table.InGroup(head);
  return {slab + page * work.page_stride + in_group * work.head_stride +
              int64_t{slot} * (work.head_dim / 8) * BytesOfEight(kRows),
          slab + work.params_offset + page * work.params_page_stride +
              in_group * work.params_head_stride,
          slot};
}

// Strip `index` of a part. `lines` says which lines of a cache have its blocks, null for none; it
// is null without a cache.
template <Rows kRows>
__device__ Strip FindStrip(const AttendWork& work, const PartOf& part, int index,
                           const std::byte* const* lines) {
  const int at = work.block_strips.Divide(index);
  const int listed = part.part * work.split_blocks + at;
  int block = __ldcg(work.listed + part.head * work.capacity + listed);
  const std::byte* slab = work.table.FindOfLane(part.head, block);
  const BlockAt there = AtBlock<kRows>(work, part.head, slab, block);
  const int slot = work.block_strips.Rest(index, at) * 8;
  const int64_t in_block = int64_t{slot} * (work.head_dim / 8) * BytesOfEight(kRows);
  const std::byte* line = lines == nullptr ? nullptr : lines[at];
  if (line == nullptr) {
    return {there.k + in_block, there.params, there.slot + slot,
            static_cast<int32_t>(work.v_offset / 16)};
  }
  return {line + in_block, line + 2 * work.block_bytes, there.slot + slot,
          static_cast<int32_t>(work.block_bytes / 16)};
}

}  // namespace headway::cuda

#endif  // HEADWAY_KERNELS_CUDA_SELECTION_ATTEND_PARTS_H_
