// The definition of selection: plain loops, one block and one query head at a time. RefKernels
// forwards to these; the contracts are those of SelectionKernels.
#ifndef HEADWAY_KERNELS_REF_REF_SELECTION_H_
#define HEADWAY_KERNELS_REF_REF_SELECTION_H_

#include <span>

#include "kernels/selection.h"

namespace headway::ref {

void Summarize(const PageFormat& format, const SummaryFormat& summary,
               std::span<const SummarizeItem> items);
void SelectBlocks(const PageFormat& format, const SummaryFormat& summary, int group, float scale,
                  std::span<const SelectItem> items);
void AttendBlocks(const PageFormat& format, const SummaryFormat& summary, int group, float scale,
                  std::span<const AttendBlocksItem> items);

}  // namespace headway::ref

#endif  // HEADWAY_KERNELS_REF_REF_SELECTION_H_
