#include "kv/policy/salience.h"

#include <algorithm>

namespace headway::kv {

int64_t MostSalient(const SaliencePolicy& policy, int64_t tokens) {
  return static_cast<int64_t>(policy.most * static_cast<double>(tokens));
}

std::vector<int32_t> ChooseSalient(std::span<const float> masses, double beta, int64_t most) {
  std::vector<int32_t> chosen;
  for (size_t i = 0; i < masses.size(); ++i) {
    if (double{masses[i]} > beta) chosen.push_back(static_cast<int32_t>(i));
  }
  if (std::ssize(chosen) <= most) return chosen;
  const auto end = chosen.begin() + most;
  std::nth_element(chosen.begin(), end, chosen.end(), [&](int32_t a, int32_t b) {
    const float of_a = masses[static_cast<size_t>(a)], of_b = masses[static_cast<size_t>(b)];
    return of_a != of_b ? of_a > of_b : a < b;
  });
  chosen.erase(end, chosen.end());
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}

}  // namespace headway::kv
