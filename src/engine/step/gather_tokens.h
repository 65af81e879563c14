// Copying tokens of a head's keys and values one behind the other.
#ifndef HEADWAY_ENGINE_STEP_GATHER_TOKENS_H_
#define HEADWAY_ENGINE_STEP_GATHER_TOKENS_H_

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "base/check.h"
#include "kernels/attention.h"
#include "kernels/eviction.h"

namespace headway {

// Appends what copies a head's tokens at `positions`, ascending, from these runs of its keys to
// `to`, from its first slot on. Their slots are appended to *slots; kernels will find them at `at`.
inline void GatherTokens(std::span<const KeyRun> keys, std::span<const int32_t> positions,
                         const int32_t* at, PageRun to, std::vector<int32_t>* slots,
                         std::vector<GatherSlotsItem>* items) {
  auto next = positions.begin();
  for (const KeyRun& range : keys) {
    const auto end = std::lower_bound(next, positions.end(), range.position + range.pages.count);
    if (next == end) continue;
    GatherSlotsItem item;
    item.from = range.pages;
    item.slots = at + (next - positions.begin());
    item.count = to.count = end - next;
    item.to = to;
    to.first_slot += item.count;
    for (; next != end; ++next) slots->push_back(static_cast<int32_t>(*next - range.position));
    items->push_back(item);
  }
  HEADWAY_CHECK(next == positions.end());
}

}  // namespace headway

#endif  // HEADWAY_ENGINE_STEP_GATHER_TOKENS_H_
