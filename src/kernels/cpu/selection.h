// Selection for CPUs: the part of CpuKernels that summarizes, chooses and attends to blocks. The
// contracts are those of SelectionKernels; results do not depend on the number of threads, nor on
// where pages lie.
#ifndef HEADWAY_KERNELS_CPU_SELECTION_H_
#define HEADWAY_KERNELS_CPU_SELECTION_H_

#include <span>

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
void SelectBlocks(ThreadPool& pool, Isa isa, const SelectionCall& call,
                  std::span<const SelectItem> items);
void AttendBlocks(ThreadPool& pool, Isa isa, const SelectionCall& call,
                  std::span<const AttendBlocksItem> items, const AttentionScratch& scratch);

}  // namespace headway::cpu

#endif  // HEADWAY_KERNELS_CPU_SELECTION_H_
