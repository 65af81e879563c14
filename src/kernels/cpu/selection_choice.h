// From codes of worth to lists, as each of two looks at blocks ends: a histogram finds the
// threshold, and blocks are listed in their order. Internal to the selection files.
#ifndef HEADWAY_KERNELS_CPU_SELECTION_CHOICE_H_
#define HEADWAY_KERNELS_CPU_SELECTION_CHOICE_H_

#include <cstdint>
#include <vector>

#include "kernels/selection.h"

namespace headway::cpu {

// The blocks of a head that a look chooses among, ascending. All but [far_begin, far_end) of them
// are listed whatever they are worth.
struct Entries {
  const int32_t* blocks = nullptr;  // null: entry i is block i
  int64_t count = 0;
  int64_t far_begin = 0;
  int64_t far_end = 0;
  int64_t run = 1;  // entries of one of `blocks`, as CandidateLists has them

  int64_t BlockAt(int64_t entry) const {
    if (blocks == nullptr) return entry;
    return run == 1 ? blocks[entry] : blocks[entry / run] * run + entry % run;
  }
  // How many entries from `entry` on are neighbouring blocks, of the next `most`.
  int64_t Neighbours(int64_t entry, int64_t most) const {
    if (blocks == nullptr) return most;
    const int64_t first = BlockAt(entry);
    int64_t neighbours = 1;
    while (neighbours < most && BlockAt(entry + neighbours) == first + neighbours) ++neighbours;
    return neighbours;
  }
};
// The candidates of a head: the first look lists all blocks that are not far.
inline Entries EntriesAmong(const CandidateLists& candidates, int64_t head, int64_t blocks,
                            const SelectionBudget& budget) {
  const int64_t count = int64_t{candidates.counts[head]} * candidates.run;
  return {candidates.blocks + head * candidates.capacity, count, budget.far_begin,
          count - (blocks - budget.far_end), candidates.run};
}

// How often each code is there among the far entries.
void CountCodes(const Entries& entries, const uint16_t* codes, uint32_t* histogram);

// What far entries of a head are taken: those of a code above `least`, and the first `equal` of it.
struct Cut {
  uint32_t least = 0;
  int64_t equal = 0;
};
// The cut of each head by the histograms [heads, kWorthCodes].
std::vector<Cut> CutsOf(const SelectionBudget& budget, int64_t heads, const uint32_t* histograms);

// Lists the entries that a cut takes; returns how many they are.
int32_t ListEntries(const Entries& entries, const uint16_t* codes, Cut cut, int32_t* list);

}  // namespace headway::cpu

#endif  // HEADWAY_KERNELS_CPU_SELECTION_CHOICE_H_
