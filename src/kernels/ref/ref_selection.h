// The definition of selection: plain loops, one block and one query head at a time. RefKernels
// forwards to these; the contracts are those of SelectionKernels. ref_selection.cc has summaries
// and lists, ref_listed_attention.cc attention to what is listed.
#ifndef HEADWAY_KERNELS_REF_REF_SELECTION_H_
#define HEADWAY_KERNELS_REF_REF_SELECTION_H_

#include <span>

#include "kernels/selection.h"

namespace headway::ref {

// Where block `block` of head `head` of one sequence and layer lies.
struct BlockPlace {
  const SegmentPlace* segment = nullptr;
  int64_t head = 0;   // in its group
  int64_t block = 0;  // in its segment
};
BlockPlace PlaceOf(const BlockedKeys& keys, int64_t head, int64_t block);

void Summarize(const PageFormat& format, const SummaryFormat& summary,
               std::span<const SummarizeItem> items);
void SelectBlocks(const PageFormat& format, const SummaryFormat& summary, int group, float scale,
                  std::span<const SelectItem> items);
void AttendBlocks(const PageFormat& format, const SummaryFormat& summary, int group, float scale,
                  std::span<const AttendBlocksItem> items);

}  // namespace headway::ref

#endif  // HEADWAY_KERNELS_REF_REF_SELECTION_H_
