#include "hardware/links.h"

#include <algorithm>

namespace headway::hardware {

double SumLatency(const LinkRates& rates) {
  return rates.sums.empty() ? 0.0 : rates.sums.front().second;
}

double LinkRate(const LinkRates& rates) {
  if (rates.sums.size() < 2) return rates.gather;
  const auto& [bytes, seconds] = rates.sums.back();
  const double sent = 2.0 * (rates.gpus - 1.0) / rates.gpus * static_cast<double>(bytes);
  // A sum that takes no longer than the smallest says nothing of the rate.
  const double moving = seconds - SumLatency(rates);
  return moving > 0.0 ? sent / moving : rates.gather;
}

}  // namespace headway::hardware
