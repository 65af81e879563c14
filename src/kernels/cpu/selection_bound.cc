// The file is compiled without contraction of products and sums.
#include "kernels/cpu/selection_bound.h"

#include <algorithm>
#include <vector>

#include "kernels/selection_bound.h"
#include "kernels/selection_key_math.h"
#include "kernels/selection_math.h"

namespace headway::cpu {
namespace {

// The least code of each list that is tried but that of all blocks, the shortest first.
std::vector<uint32_t> LeastCodes(const SelectionBudget& budget, const uint32_t* histogram) {
  const int64_t longest = selection::LongestList(budget.far_end - budget.far_begin);
  std::vector<uint32_t> least;
  uint32_t code = selection::kWorthCodes;
  int64_t listed = 0;  // of `code` or more
  for (int64_t blocks = budget.far_blocks; blocks <= longest;
       blocks = selection::LongerList(blocks)) {
    while (listed < blocks) listed += histogram[--code];
    if (listed > longest) break;
    least.push_back(code);
  }
  return least;
}

// What is read of a KV head to find how much it has to list.
class Sample {
 public:
  Sample(const KeyScores& keys, int group, const SelectItem& item, const HeadCodes& head)
      : keys_(keys),
        group_(group),
        budget_(item.budget),
        head_(head),
        far_(budget_.far_end - budget_.far_begin),
        top_(static_cast<size_t>(group), selection::kLeastLogit) {}

  void Read(int64_t blocks, uint32_t core_least) {
    for (int64_t block = 0; block < blocks; ++block) {
      if (InCore(block, core_least)) Score(block, core_);
    }
    for (int i = 0; i < selection::SamplesOf(far_); ++i) {
      const selection::SampledBlock sample =
          selection::SampleOf(budget_.bound.seed, static_cast<int>(head_.head), i, far_);
      const int64_t block = budget_.far_begin + sample.block;
      if (InCore(block, core_least)) continue;
      tail_codes_.push_back(head_.codes[block]);
      strata_.push_back(sample.stratum);
      Score(block, tail_);
    }
    core_masses_.assign(static_cast<size_t>(group_), 0);
    const auto group = static_cast<size_t>(group_);
    for (size_t i = 0; i < core_.size(); ++i) {
      core_masses_[i % group] += selection::ShareWeight(top_[i % group], core_[i]);
    }
    for (size_t i = 0; i < tail_.size(); ++i) {
      const uint32_t weight = selection::ShareWeight(top_[i % group], tail_[i]);
      tail_masses_.push_back(selection::SampledMass(weight, strata_[i / group]));
    }
  }

  // Whether the bound holds where far blocks of lesser codes are left out.
  bool Holds(uint32_t least) const {
    const auto group = static_cast<size_t>(group_);
    for (size_t member = 0; member < group; ++member) {
      selection::SampledSum tail, unread;
      for (size_t i = 0; i < strata_.size(); ++i) {
        const uint64_t mass = tail_masses_[i * group + member];
        tail.Add(mass);
        if (tail_codes_[i] < least) unread.Add(mass);
      }
      if (!selection::BoundHolds(budget_.bound, far_, core_masses_[member], tail, unread)) {
        return false;
      }
    }
    return true;
  }

 private:
  bool InCore(int64_t block, uint32_t least) const {
    return block < budget_.far_begin || block >= budget_.far_end || head_.codes[block] >= least;
  }
  void Score(int64_t block, std::vector<float>& scores) {
    scores.resize(scores.size() + static_cast<size_t>(group_));
    keys_.Masses(head_.head, block, block + 1, &scores[scores.size() - static_cast<size_t>(group_)],
                 1, top_.data());
  }

  const KeyScores& keys_;
  const int group_;
  const SelectionBudget& budget_;
  const HeadCodes& head_;
  const int64_t far_;
  std::vector<float> top_;             // [group]
  std::vector<float> core_;            // scores [blocks, group]
  std::vector<float> tail_;            // of the sampled tail, likewise
  std::vector<uint16_t> tail_codes_;   // of its blocks
  std::vector<int64_t> strata_;        // that they stand for
  std::vector<uint64_t> tail_masses_;  // [blocks, group]
  std::vector<uint64_t> core_masses_;  // [group]
};

}  // namespace

uint32_t LeastListed(const KeyScores& keys, int group, const SelectItem& item,
                     const HeadCodes& head) {
  const std::vector<uint32_t> lists = LeastCodes(item.budget, head.histogram);
  if (lists.empty()) return 0;
  Sample sample(keys, group, item, head);
  sample.Read(item.keys.blocks, lists.front());
  uint32_t listed = 0;
  for (auto least = lists.rbegin(); least != lists.rend() && sample.Holds(*least); ++least) {
    listed = *least;
  }
  return listed;
}

}  // namespace headway::cpu
