#include "kernels/cpu/selection_choice.h"

#include <algorithm>

#include "kernels/selection_math.h"

namespace headway::cpu {
namespace {

// The cut that takes `count` of the blocks in these histograms, the heads' in their order.
void CutHeads(const uint32_t* histograms, int64_t count, std::vector<Cut>::iterator first,
              std::vector<Cut>::iterator last) {
  const auto heads = last - first;
  const auto of = [&](int64_t head, uint32_t code) {
    return histograms[head * selection::kWorthCodes + code];
  };
  uint32_t least = selection::kWorthCodes;
  int64_t at_least = 0;
  int64_t above = 0;
  while (least > 0 && at_least < count) {
    --least;
    above = at_least;
    for (int64_t head = 0; head < heads; ++head) at_least += of(head, least);
  }
  int64_t equal = std::min(count, at_least) - above;
  for (int64_t head = 0; head < heads; ++head) {
    const int64_t own = count > 0 ? std::min<int64_t>(equal, of(head, least)) : 0;
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
  if (budget.share == BudgetShare::kLayer) {
    CutHeads(histograms, heads * budget.far_blocks, cuts.begin(), cuts.end());
    return cuts;
  }
  for (int64_t head = 0; head < heads; ++head) {
    CutHeads(histograms + head * selection::kWorthCodes, budget.far_blocks, cuts.begin() + head,
             cuts.begin() + head + 1);
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
