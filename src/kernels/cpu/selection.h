// Selection for CPUs: the part of CpuKernels that summarizes, chooses and attends to blocks. The
// contracts are those of SelectionKernels; results do not depend on the number of threads, nor on
// where pages lie. selection.cc makes summaries and lists, listed_attention.cc attends.
#ifndef HEADWAY_KERNELS_CPU_SELECTION_H_
#define HEADWAY_KERNELS_CPU_SELECTION_H_

#include <span>

#include "base/check.h"
#include "base/thread_pool.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/isa.h"
#include "kernels/selection.h"

namespace headway::cpu {

void Summarize(ThreadPool& pool, Isa isa, const PageFormat& format, const SummaryFormat& summary,
               std::span<const SummarizeItem> items);
// What all items of a call have in common.
struct SelectionCall {
  const PageFormat& format;
  const SummaryFormat& summary;
  int group;
  float scale;
};
// The segment in which a block of a head lies.
inline const SegmentPlace& SegmentOf(const BlockedKeys& keys, int64_t head, int64_t block) {
  const int64_t segment =
      head / keys.group_heads * keys.group_segments() + block / keys.segment_blocks;
  HEADWAY_CHECK(segment < std::ssize(keys.segments));
  return keys.segments[static_cast<size_t>(segment)];
}

void SelectBlocks(ThreadPool& pool, Isa isa, const SelectionCall& call,
                  std::span<const SelectItem> items);
void AttendBlocks(ThreadPool& pool, Isa isa, const SelectionCall& call,
                  std::span<const AttendBlocksItem> items, const AttentionScratch& scratch);

}  // namespace headway::cpu

#endif  // HEADWAY_KERNELS_CPU_SELECTION_H_
