// ListedCount: how many blocks the lists of decode steps, or of prompts, have. Where a budget says
// that beforehand, no list is looked at; else kernels add the lengths up where the lists are.
#ifndef HEADWAY_ENGINE_STEP_LISTED_COUNT_H_
#define HEADWAY_ENGINE_STEP_LISTED_COUNT_H_

#include <cstdint>

#include "base/check.h"
#include "device/device.h"
#include "headway/context.h"
#include "headway/status.h"
#include "kernels/selection.h"

namespace headway {

struct ListedCount {
  ListedBlocks known;  // but for the blocks of lists whose lengths are not
  uint64_t* by_worth =
      nullptr;  // these, in device memory that was 0; null: there are no such lists

  // What is about to be selected, which is told where to count if its budget does not say.
  void Count(SelectItem* select) {
    const int64_t lists = select->keys.heads * select->row_blocks();
    known.lists += lists;
    known.among += lists * select->keys.blocks;
    if (select->budget.lists_by_worth()) {
      HEADWAY_CHECK(by_worth != nullptr);
      select->listed = by_worth;
    } else {
      known.blocks += select->keys.heads * select->ListedBy(select->budget);
    }
  }

  // All that was selected on the stream, which is waited for where kernels count.
  Result<ListedBlocks> Read(Stream& compute) const {
    ListedBlocks all = known;
    if (by_worth == nullptr) return all;
    uint64_t more = 0;
    compute.Copy(reinterpret_cast<std::byte*>(&more), reinterpret_cast<const std::byte*>(by_worth),
                 sizeof(more));
    if (Status s = compute.Synchronize(); !s.ok()) return s;
    all.blocks += static_cast<int64_t>(more);
    return all;
  }
};

}  // namespace headway

#endif  // HEADWAY_ENGINE_STEP_LISTED_COUNT_H_
