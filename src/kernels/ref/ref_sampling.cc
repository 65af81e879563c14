#include "kernels/ref/ref_sampling.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "base/check.h"
#include "kernels/sampling.h"
#include "kernels/scoring.h"

namespace headway::ref {

Sampled Sample(const SampleItem& item) {
  for (const TokenPenalty& penalty : item.penalties) {
    if (penalty.token < 0 || penalty.token >= item.vocab) continue;
    volatile float logit = item.logits[penalty.token];  // rounded after each operation
    logit = logit > 0.0f ? logit / item.repetition_penalty : logit * item.repetition_penalty;
    item.logits[penalty.token] = logit - penalty.subtract;
  }
  std::vector<TokenId> order(static_cast<size_t>(item.vocab));
  std::iota(order.begin(), order.end(), 0);
  for (const TokenId token : order) {
    const float logit = item.logits[token];
    if (std::isnan(logit) || (std::isinf(logit) && logit > 0.0f)) return {token, logit};
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](TokenId a, TokenId b) { return item.logits[a] > item.logits[b]; });
  if (order.empty()) return {0, -INFINITY};
  const float largest = item.logits[order[0]];
  if (std::isinf(largest) || item.temperature == 0.0f) return {order[0], largest};

  std::vector<uint64_t> weights(order.size());  // by token
  uint64_t total = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    const float logit = item.logits[order[i]];
    const auto k = static_cast<size_t>(item.top_k);
    if (k > 0 && i >= k && logit < item.logits[order[k - 1]]) break;
    const auto token = static_cast<size_t>(order[i]);
    weights[token] = SampleWeight(largest - logit, WeightScale(item.temperature));
    total += weights[token];
  }
  uint64_t sum = 0;
  const uint64_t wanted = item.top_p < 1.0f ? WantedWeight(item.top_p, total) : total;
  for (const TokenId token : order) {
    uint64_t& weight = weights[static_cast<size_t>(token)];
    const bool enough = sum >= wanted;
    sum += weight;
    if (enough || weight < LeastWeight(item.min_p)) weight = 0;
  }
  total = std::accumulate(weights.begin(), weights.end(), uint64_t{0});
  __extension__ using Wide = unsigned __int128;
  const auto target = static_cast<uint64_t>(Wide{item.draw} * total >> 64);
  sum = 0;
  TokenId token = 0;
  while ((sum += weights[static_cast<size_t>(token)]) <= target) ++token;
  return {token, item.logits[token]};
}

Scored Score(const ScoreItem& item) {
  HEADWAY_CHECK(item.target >= 0 && item.target < item.vocab);
  Scored scored = {.largest = -INFINITY, .target = item.logits[item.target], .sum = 0};
  for (int64_t token = 0; token < item.vocab; ++token) {
    const float logit = item.logits[token];
    if (std::isnan(logit) || (std::isinf(logit) && logit > 0.0f)) return {};
    scored.largest = std::max(scored.largest, logit);
  }
  if (std::isinf(scored.largest)) return {};
  for (int64_t token = 0; token < item.vocab; ++token) {
    const double logit = item.logits[token];
    scored.sum += ScoreWeight(static_cast<double>(scored.largest) - logit);
  }
  return scored;
}

}  // namespace headway::ref
