#include "cli/quantile.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace headway::cli {

double Quantile(std::vector<double> numbers, double share) {
  if (numbers.empty()) return 0.0;
  std::sort(numbers.begin(), numbers.end());
  const double at = share * static_cast<double>(numbers.size() - 1);
  const auto below = static_cast<size_t>(at);
  const double above = numbers[std::min(below + 1, numbers.size() - 1)];
  return std::lerp(numbers[below], above, at - static_cast<double>(below));
}

}  // namespace headway::cli
