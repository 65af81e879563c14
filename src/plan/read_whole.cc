// Up to which length a step that reads all keys is as fast as one that chooses some, found by
// predicting both: no second model of what choosing costs.
#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "plan/plan.h"

namespace headway::plan {
namespace {

// The plan's cache while each of its sequences has so many tokens: what the device has room for
// lies there.
Plan Shorter(const Plan& plan, double share) {
  Plan shorter = plan;
  int64_t left = std::reduce(std::begin(plan.slabs), std::end(plan.slabs), int64_t{0});
  left = static_cast<int64_t>(share * static_cast<double>(left));
  for (int64_t& slabs : shorter.slabs) {
    slabs = std::min(slabs, left);
    left -= slabs;
  }
  return shorter;
}

}  // namespace

int64_t WholeUpTo(const PlanRequest& request, const Plan& plan) {
  const int64_t longest = *std::max_element(request.lengths.begin(), request.lengths.end());
  PlanRequest shorter = request;
  shorter.selection.from = 0;
  const auto chooses_faster = [&](int64_t length) {
    shorter.lengths.assign(request.lengths.size(), length);
    const double share = static_cast<double>(length) / static_cast<double>(longest);
    const Plan then = Shorter(plan, share);
    KeySelection chosen = std::exchange(shorter.selection, {});
    const double whole = DecodeAt(*request.machine, shorter, then, shorter.lengths).seconds;
    shorter.selection = std::move(chosen);
    return DecodeAt(*request.machine, shorter, then, shorter.lengths).seconds < whole;
  };
  if (!chooses_faster(longest)) return longest + 1;
  // What reading takes grows faster with a sequence than what choosing does.
  int64_t low = 0, high = longest;
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (chooses_faster(middle) ? high : low) = middle;
  }
  return low == 0 ? 0 : low + 1;
}

}  // namespace headway::plan
