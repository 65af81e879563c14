#include "kernels/ref/ref_selection_bound.h"

#include <algorithm>
#include <functional>

#include "kernels/selection_bound.h"
#include "kernels/selection_key_math.h"
#include "kernels/selection_math.h"

namespace headway::ref {
namespace {

namespace math = selection;

// The least code of worth of each list that is tried, the shortest first; that of all blocks, 0, is
// left out.
std::vector<uint32_t> LeastCodes(const SelectionBudget& budget,
                                 const std::vector<uint32_t>& codes) {
  std::vector<uint32_t> sorted(codes.begin() + budget.far_begin, codes.begin() + budget.far_end);
  std::sort(sorted.begin(), sorted.end(), std::greater<>());
  const int64_t longest = math::LongestList(std::ssize(sorted));
  std::vector<uint32_t> least;
  for (int64_t blocks = budget.far_blocks; blocks <= longest; blocks = math::LongerList(blocks)) {
    const uint32_t code = sorted[static_cast<size_t>(blocks - 1)];
    const auto listed = std::count_if(sorted.begin(), sorted.end(),
                                      [code](uint32_t other) { return other >= code; });
    if (listed > longest) break;
    least.push_back(code);
  }
  return least;
}

// The core and the sampled tail of a KV head.
struct Sampled {
  std::vector<int64_t> core;
  std::vector<int64_t> tail;
  std::vector<int64_t> strata;  // that each of the tail stands for
};

Sampled SampleHead(const SelectionBudget& budget, int64_t head, const std::vector<uint32_t>& codes,
                   uint32_t least) {
  const auto in_core = [&](int64_t block) {
    return block < budget.far_begin || block >= budget.far_end ||
           codes[static_cast<size_t>(block)] >= least;
  };
  Sampled sampled;
  for (int64_t block = 0; block < std::ssize(codes); ++block) {
    if (in_core(block)) sampled.core.push_back(block);
  }
  const int64_t far = budget.far_end - budget.far_begin;
  for (int i = 0; i < math::SamplesOf(far); ++i) {
    const math::SampledBlock sample =
        math::SampleOf(budget.bound.seed, static_cast<int>(head), i, far);
    const int64_t block = budget.far_begin + sample.block;
    if (in_core(block)) continue;
    sampled.tail.push_back(block);
    sampled.strata.push_back(sample.stratum);
  }
  return sampled;
}

// Whether the bound holds for a query head where far blocks of lesser codes than `least` are left
// out. `scores` are the logarithms of all blocks' masses.
bool HoldsFor(const SelectionBudget& budget, const Sampled& sampled,
              const std::vector<float>& scores, const std::vector<uint32_t>& codes,
              uint32_t least) {
  float top = math::kLeastLogit;
  for (const std::vector<int64_t>* some : {&sampled.core, &sampled.tail}) {
    for (const int64_t block : *some) top = std::max(top, scores[static_cast<size_t>(block)]);
  }
  const auto weight = [&](int64_t block) {
    return math::ShareWeight(top, scores[static_cast<size_t>(block)]);
  };
  uint64_t core = 0;
  for (const int64_t block : sampled.core) core += weight(block);
  math::SampledSum tail, unread;
  for (size_t i = 0; i < sampled.tail.size(); ++i) {
    const int64_t block = sampled.tail[i];
    const uint64_t mass = math::SampledMass(weight(block), sampled.strata[i]);
    tail.Add(mass);
    if (codes[static_cast<size_t>(block)] < least) unread.Add(mass);
  }
  return math::BoundHolds(budget.bound, budget.far_end - budget.far_begin, core, tail, unread);
}

// The least code of the far blocks that a KV head lists: the shortest list for which the bound
// holds, as it does for all that are longer.
uint32_t LeastListed(const KeyScoring& scoring, int64_t head, const std::vector<uint32_t>& codes) {
  const SelectionBudget& budget = scoring.item.budget;
  const std::vector<uint32_t> lists = LeastCodes(budget, codes);
  if (lists.empty()) return 0;
  const Sampled sampled = SampleHead(budget, head, codes, lists.front());
  std::vector<std::vector<float>> scores;
  for (int64_t member = 0; member < scoring.group; ++member) {
    scores.push_back(MassScores(scoring, head * scoring.group + member));
  }
  uint32_t listed = 0;
  for (auto least = lists.rbegin(); least != lists.rend(); ++least) {
    for (const std::vector<float>& of_query : scores) {
      if (!HoldsFor(budget, sampled, of_query, codes, *least)) return listed;
    }
    listed = *least;
  }
  return listed;
}

}  // namespace

Lists ListBounded(const KeyScoring& scoring, const Codes& codes) {
  const SelectionBudget& budget = scoring.item.budget;
  Lists lists;
  for (size_t head = 0; head < codes.size(); ++head) {
    const uint32_t least = LeastListed(scoring, static_cast<int64_t>(head), codes[head]);
    std::vector<int32_t>& list = lists.emplace_back();
    for (int64_t block = 0; block < std::ssize(codes[head]); ++block) {
      const bool far = block >= budget.far_begin && block < budget.far_end;
      if (!far || codes[head][static_cast<size_t>(block)] >= least) {
        list.push_back(static_cast<int32_t>(block));
      }
    }
  }
  return lists;
}

}  // namespace headway::ref
