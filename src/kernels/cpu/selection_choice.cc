#include "kernels/cpu/selection_choice.h"

#include <algorithm>

#include "kernels/selection_math.h"

namespace headway::cpu {
namespace {

// Histograms of heads that share a budget.
struct Histograms {
  const uint32_t* at;
  int64_t heads;

  uint32_t Of(int64_t head, uint32_t code) const {
    return at[head * selection::kWorthCodes + code];
  }
  uint64_t Of(uint32_t code) const {
    uint64_t sum = 0;
    for (int64_t head = 0; head < heads; ++head) sum += Of(head, code);
    return sum;
  }
};

// How many blocks of all heads are taken.
int64_t CountOf(const SelectionBudget& budget, const Histograms& histograms) {
  const int64_t most = budget.far_blocks * histograms.heads;
  if (!budget.takes_top_p()) return most;
  uint64_t all = 0;
  for (uint32_t code = 0; code < selection::kWorthCodes; ++code) {
    all += histograms.Of(code) * selection::CodeWorth(code);
  }
  uint64_t wanted = selection::WorthWanted(all, budget.top_p, kTopPBits);
  uint64_t count = 0;
  for (uint32_t code = selection::kWorthCodes; wanted > 0;) {
    const uint64_t worth = selection::CodeWorth(--code);
    const uint64_t there = histograms.Of(code);
    const uint64_t taken = there * worth < wanted ? there : (wanted + worth - 1) / worth;
    count += taken;
    wanted -= std::min(wanted, taken * worth);
  }
  return std::clamp(static_cast<int64_t>(count),
                    std::min(budget.least_blocks * histograms.heads, most), most);
}

// The cut that takes `count` of the blocks in these histograms, the heads' in their order.
void CutHeads(const Histograms& histograms, int64_t count, std::vector<Cut>::iterator first) {
  uint32_t least = selection::kWorthCodes;
  int64_t at_least = 0;
  int64_t above = 0;
  while (least > 0 && at_least < count) {
    --least;
    above = at_least;
    at_least += static_cast<int64_t>(histograms.Of(least));
  }
  int64_t equal = std::min(count, at_least) - above;
  for (int64_t head = 0; head < histograms.heads; ++head) {
    const int64_t own = count > 0 ? std::min<int64_t>(equal, histograms.Of(head, least)) : 0;
    first[head] = {least, own};
    equal -= own;
  }
}

}  // namespace

void CountCodes(const Entries& entries, const uint16_t* codes, uint32_t* histogram) {
  std::fill_n(histogram, selection::kWorthCodes, 0u);
  for (int64_t i = entries.far_begin; i < entries.far_end; ++i) ++histogram[codes[i]];
}

std::vector<Cut> CutsOf(const SelectionBudget& budget, int64_t heads, const uint32_t* histograms) {
  std::vector<Cut> cuts(static_cast<size_t>(heads));
  const int64_t sharing = budget.share == BudgetShare::kLayer ? heads : 1;
  for (int64_t head = 0; head < heads; head += sharing) {
    const Histograms own = {histograms + head * selection::kWorthCodes, sharing};
    CutHeads(own, CountOf(budget, own), cuts.begin() + head);
  }
  return cuts;
}

int32_t ListEntries(const Entries& entries, const uint16_t* codes, Cut cut, int32_t* list) {
  int32_t* to = list;
  const auto take = [&](int64_t i) { *to++ = static_cast<int32_t>(entries.BlockAt(i)); };
  for (int64_t i = 0; i < entries.far_begin; ++i) take(i);
  for (int64_t i = entries.far_begin; i < entries.far_end; ++i) {
    if (codes[i] > cut.least || (codes[i] == cut.least && cut.equal-- > 0)) take(i);
  }
  for (int64_t i = entries.far_end; i < entries.count; ++i) take(i);
  return static_cast<int32_t>(to - list);
}

}  // namespace headway::cpu
