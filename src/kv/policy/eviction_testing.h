// Policies of eviction as tests draw them.
#ifndef HEADWAY_KV_POLICY_EVICTION_TESTING_H_
#define HEADWAY_KV_POLICY_EVICTION_TESTING_H_

#include <numeric>
#include <tuple>
#include <utility>

#include "base/random.h"
#include "kv/policy/eviction.h"

namespace headway::kv {

// `heads` are those of all layers. Some policies have static budgets.
inline EvictionPolicy RandomPolicy(EvictionMethod method, Random& random, int heads) {
  EvictionPolicy policy;
  policy.method = method;
  policy.window = 1 + random.Below(40);
  policy.budget = policy.window + random.Below(300);
  if (random.Below(3) == 0) std::tie(policy.budget, policy.share) = std::pair(0, random.Uniform());
  policy.pool = 1 + 2 * static_cast<int>(random.Below(5));
  policy.pooling = random.Below(2) == 0 ? EvictionPolicy::Pool::kMean : EvictionPolicy::Pool::kMax;
  policy.sink = random.Below(9);
  policy.safeguard = random.Uniform();
  policy.steepness = 1.0 + 30.0 * random.Uniform();
  policy.profiled = method == EvictionMethod::kHeadKv || random.Below(3) == 0;
  if (!policy.profiled) return policy;
  // Some heads have nothing of their own, some have much.
  for (int head = 0; head < heads; ++head) {
    policy.shares.push_back(head > 0 && random.Below(4) == 0 ? 0.0 : 0.01 + random.Uniform());
  }
  const double sum = std::accumulate(policy.shares.begin(), policy.shares.end(), 0.0);
  for (double& share : policy.shares) share *= heads / sum;
  return policy;
}

}  // namespace headway::kv

#endif  // HEADWAY_KV_POLICY_EVICTION_TESTING_H_
