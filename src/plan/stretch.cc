#include "plan/stretch.h"

#include "base/bytes.h"
#include "plan/fit.h"

namespace headway::plan {

std::vector<int64_t> Stretches(const PlanRequest& request, int64_t chunk) {
  std::vector<int64_t> stretches;
  const int64_t chunks = CeilDiv(TotalTokens(request), chunk);
  for (int64_t count = chunks; count * chunk >= LeastStretch(chunk); count = CeilDiv(count, 2)) {
    stretches.push_back(count * chunk);
    if (count * chunk == LeastStretch(chunk)) break;
  }
  return stretches;
}

CacheChoice WithLongestStretch(const PlanRequest& request, const CacheChoice& choice) {
  if (choice.stretch_tokens == 0) return choice;
  CacheChoice longer = choice;
  longer.stretch_tokens = 0;
  const std::vector<int64_t> stretches = Stretches(request, choice.chunk);
  if (stretches.empty()) return longer;
  for (const int64_t stretch : stretches) {
    longer.stretch_tokens = stretch;
    if (TryFit(request, longer).ok) return longer;
  }
  return choice;
}

}  // namespace headway::plan
