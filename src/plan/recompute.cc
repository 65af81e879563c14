// The share of a cache that is recomputed, in whole segments.
#include <algorithm>
#include <cmath>

#include "base/bytes.h"
#include "plan/plan.h"

namespace headway::plan {
namespace {

constexpr int64_t kGatherTokens = 2048;  // rows that a product needs to be efficient

}  // namespace

std::vector<int> XSegments(double share, const std::vector<int64_t>& lengths,
                           int64_t segment_tokens) {
  std::vector<int> segments;
  int64_t before = 0;  // segments of the sequences so far
  for (int64_t length : lengths) {
    const int64_t all = CeilDiv(length, segment_tokens);
    const auto first = std::llround(share * static_cast<double>(before));
    const auto last = std::llround(share * static_cast<double>(before + all));
    segments.push_back(static_cast<int>(std::clamp<int64_t>(last - first, 0, all)));
    before += all;
  }
  return segments;
}

int64_t GatherTokens(const CacheChoice& choice, const std::vector<int64_t>& lengths) {
  if (choice.recompute <= 0.0) return 0;
  int64_t tokens = 0;
  for (int segments : XSegments(choice.recompute, lengths, choice.segment_tokens)) {
    tokens += segments * choice.segment_tokens;
  }
  const int64_t wanted = RoundUp(kGatherTokens, choice.segment_tokens);
  return std::clamp(tokens, choice.segment_tokens, std::max(wanted, choice.segment_tokens));
}

bool XIsSmaller(const ModelShape& shape) {
  return shape.d_model < 2 * shape.kv_heads * shape.head_dim;
}

}  // namespace headway::plan
