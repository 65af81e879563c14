#include "support/plain_eviction.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <set>

namespace headway::testing {

using kv::EvictionMethod;
using kv::EvictionPolicy;

int64_t PlainWindow(const EvictionPolicy& policy, int64_t tokens) {
  if (policy.method != EvictionMethod::kHeavy) return policy.window;
  return std::min(tokens, policy.budget) / 2;
}

// The last one has 1 / steepness of the mean beside its window.
int64_t PlainLayerBudget(const EvictionPolicy& policy, int layer, int64_t tokens) {
  const int64_t share = std::llround(policy.share * static_cast<double>(tokens));
  const int64_t mean = std::min(tokens, policy.share > 0.0 ? share : policy.budget);
  const bool pyramid =
      policy.method == EvictionMethod::kPyramid || policy.method == EvictionMethod::kAdaPyramid;
  const auto free = static_cast<double>(mean - policy.window);
  if (!pyramid || free <= 0) return mean;
  const int64_t first = policy.window + std::min(std::llround(2 * free - free / policy.steepness),
                                                 static_cast<long long>(tokens - policy.window));
  return layer == 0 ? first : 2 * mean - first;
}

int64_t PlainHeadBudget(const EvictionPolicy& policy, int heads, int head, int64_t tokens) {
  if (!policy.profiled) return PlainLayerBudget(policy, head / heads, tokens);
  const int64_t sink =
      policy.method == EvictionMethod::kStreaming || policy.method == EvictionMethod::kExpected
          ? policy.sink
          : 0;
  const int64_t anyway = policy.window + sink;
  const double even = policy.method == EvictionMethod::kHeadKv ? policy.safeguard : 0.0;
  const auto up_to = [&](int end) {
    double sum = 0.0;
    for (int i = 0; i < end; ++i) {
      sum += even + (1.0 - even) * policy.shares[static_cast<size_t>(i)];
    }
    return std::llround(static_cast<double>(policy.budget - anyway) * sum);
  };
  const int64_t budget = anyway + up_to(head + 1) - up_to(head);
  EXPECT_LT(budget, tokens);
  return budget;
}

// The k-th best score of a head lies between the k-th best of the lower bounds and that of the
// upper ones.
std::vector<std::pair<int64_t, int64_t>> SharedCounts(
    const std::vector<std::vector<Bounded>>& scores, const EvictionParts& parts, int64_t safe) {
  std::vector<std::vector<double>> low, high;
  for (const std::vector<Bounded>& head : scores) {
    std::vector<double>& lower = low.emplace_back();
    std::vector<double>& upper = high.emplace_back();
    for (int64_t i = 0; i < parts.candidates; ++i) {
      lower.push_back(head[static_cast<size_t>(i)].low());
      upper.push_back(head[static_cast<size_t>(i)].high());
    }
    for (std::vector<double>* bounds : {&lower, &upper}) {
      std::sort(bounds->rbegin(), bounds->rend());
      bounds->erase(bounds->begin(), bounds->begin() + safe);
    }
  }
  const int64_t wanted = std::ssize(scores) * (parts.free - safe);
  std::vector<std::pair<int64_t, int64_t>> counts;
  for (size_t head = 0; head < scores.size(); ++head) {
    int64_t fewest = safe, most = safe;
    for (size_t k = 0; k < low[head].size(); ++k) {
      auto before = static_cast<int64_t>(k), perhaps = before;  // of this head
      for (size_t other = 0; other < scores.size(); ++other) {
        if (other == head) continue;
        for (const double bound : low[other]) before += bound > high[head][k] ? 1 : 0;
        for (const double bound : high[other]) perhaps += bound >= low[head][k] ? 1 : 0;
      }
      fewest += perhaps < wanted ? 1 : 0;
      most += before < wanted ? 1 : 0;
    }
    counts.emplace_back(fewest, most);
  }
  return counts;
}

bool AreBest(const std::vector<int64_t>& chosen, const std::vector<Bounded>& scores,
             int64_t candidates, bool* decided) {
  const std::set<int64_t> in(chosen.begin(), chosen.end());
  std::vector<int64_t> order;
  double least = INFINITY, best_left = -INFINITY;
  for (int64_t i = 0; i < candidates; ++i) {
    order.push_back(i);
    const Bounded& score = scores[static_cast<size_t>(i)];
    if (in.count(i) > 0) {
      least = std::min(least, score.high());
    } else {
      best_left = std::max(best_left, score.low());
    }
  }
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return scores[static_cast<size_t>(a)].value > scores[static_cast<size_t>(b)].value;
  });
  order.resize(chosen.size());
  *decided = std::set<int64_t>(order.begin(), order.end()) == in;
  return least >= best_left;
}

bool AreCriticalBest(const std::vector<int64_t>& chosen, const std::vector<Bounded>& scores,
                     const std::vector<Bounded>& last, const CriticalCounts& counts,
                     bool* decided) {
  const std::set<int64_t> in(chosen.begin(), chosen.end());
  const auto& [candidates, first_half] = counts;
  double least = INFINITY, best_left = -INFINITY;
  bool right = true;
  for (int64_t i = 0; i < candidates; ++i) {
    const Bounded& score = scores[static_cast<size_t>(i)];
    int64_t before = 0, perhaps = 0;  // of the others
    for (int64_t other = 0; other < candidates; ++other) {
      if (other == i) continue;
      before += scores[static_cast<size_t>(other)].low() > score.high() ? 1 : 0;
      perhaps += scores[static_cast<size_t>(other)].high() >= score.low() ? 1 : 0;
    }
    if (perhaps < first_half) {
      right = right && in.count(i) > 0;
    } else if (in.count(i) == 0) {
      best_left = std::max(best_left, last[static_cast<size_t>(i)].low());
    } else if (before >= first_half) {
      least = std::min(least, last[static_cast<size_t>(i)].high());
    }
  }
  const auto order_by = [](const std::vector<Bounded>& by) {
    return [&by](int64_t a, int64_t b) {
      return by[static_cast<size_t>(a)].value > by[static_cast<size_t>(b)].value;
    };
  };
  std::vector<int64_t> order(static_cast<size_t>(candidates));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), order_by(scores));
  std::sort(order.begin() + first_half, order.end());
  std::stable_sort(order.begin() + first_half, order.end(), order_by(last));
  order.resize(chosen.size());
  *decided = std::set<int64_t>(order.begin(), order.end()) == in;
  return right && least >= best_left;
}

}  // namespace headway::testing
