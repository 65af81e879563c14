#include "support/plain_eviction.h"

#include <cmath>
#include <set>

#include "base/half.h"

namespace headway::testing {

using kv::EvictionMethod;
using kv::EvictionPolicy;

namespace {

constexpr double kUnit = 0x1p-24;  // half a unit in the last place of an f32

// Of all queries of a KV head together: for each token the sum of its weights, or the largest.
std::vector<Bounded> Gathered(const Queries& queries, const Cached& keys, const PageFormat& page,
                              const ModelShape& shape, int head, bool largest) {
  const int64_t width = int64_t{shape.query_heads} * shape.head_dim;
  const int64_t rows = static_cast<int64_t>(queries.q.size()) / width;
  std::vector<Bounded> gathered(static_cast<size_t>(keys.tokens()));
  for (int64_t row = 0; row < rows; ++row) {
    for (int g = 0; g < shape.group(); ++g) {
      const float* const q =
          queries.q.data() + row * width + (int64_t{head} * shape.group() + g) * shape.head_dim;
      const std::vector<Bounded> weights = WeightsOf(q, keys, queries.position + row + 1, page);
      for (size_t i = 0; i < weights.size(); ++i) {
        Bounded& all = gathered[i];
        all.value = largest ? std::max(all.value, weights[i].value) : all.value + weights[i].value;
        all.error = largest ? std::max(all.error, weights[i].error) : all.error + weights[i].error;
      }
    }
  }
  const double additions = largest ? 0.0 : static_cast<double>(rows * shape.group());
  for (Bounded& all : gathered) all.error += additions * kUnit * all.value;
  return gathered;
}

}  // namespace

// A logit is a sum of dim products of f32, then
// scaled: it is off by at most (dim + 4) units of what its products reach. The logarithm of the sum
// of exponentials is off by as much, by a unit for each key and by its own rounding; and so is a
// weight, relative to itself. What vanishes in f32 has no relative error.
std::vector<Bounded> WeightsOf(const float* q, const Cached& keys, int64_t count,
                               const PageFormat& page) {
  const double scale = 1.0 / std::sqrt(static_cast<double>(page.head_dim));
  std::vector<double> logits;
  double top = -INFINITY, off = 0.0;
  for (int64_t key = 0; key < count; ++key) {
    double logit = 0.0, reach = 0.0;
    for (int i = 0; i < page.head_dim; ++i) {
      const double product =
          double{q[i]} * LoadAsFloat(keys.k.data(), key * page.head_dim + i, page.dtype);
      logit += product;
      reach += std::abs(product);
    }
    logits.push_back(scale * logit);
    top = std::max(top, logits.back());
    off = std::max(off, (page.head_dim + 4) * kUnit * scale * reach);
  }
  double sum = 0.0;
  for (const double logit : logits) sum += std::exp(logit - top);
  const double lse = top + std::log(sum);
  const double units = static_cast<double>(count) + 32 + 4 * std::abs(lse);
  const double relative = std::expm1(2 * off + kUnit * units);
  std::vector<Bounded> weights;
  for (const double logit : logits) {
    const double weight = std::exp(logit - lse);
    weights.push_back({weight, weight * relative + 1e-37});
  }
  return weights;
}

std::vector<Bounded> PlainScores(const EvictionPolicy& policy, const Queries& queries,
                                 const Cached& keys, const PageFormat& page,
                                 const ModelShape& shape, int head) {
  const bool defensive = policy.method == EvictionMethod::kDefensive;
  const std::vector<Bounded> gathered = Gathered(queries, keys, page, shape, head, defensive);
  const int64_t count = std::ssize(gathered) - policy.window;
  const double divisor = defensive ? 1.0 : static_cast<double>(policy.window * shape.group());
  std::vector<Bounded> scores;
  Bounded mean;
  for (int64_t i = 0; i < count; ++i) {
    Bounded score;
    for (int64_t j = std::max<int64_t>(0, i - policy.pool / 2);
         j <= std::min(count - 1, i + policy.pool / 2); ++j) {
      const Bounded& one = gathered[static_cast<size_t>(j)];
      if (policy.pooling == EvictionPolicy::Pool::kMean) {
        score.value += one.value / policy.pool / divisor;
        score.error += one.error / policy.pool / divisor;
      } else {
        score.value = std::max(score.value, one.value / divisor);
        score.error = std::max(score.error, one.error / divisor);
      }
    }
    score.error += 1e-13 * score.value;  // sums in double
    mean.value += score.value / static_cast<double>(count);
    mean.error += score.error / static_cast<double>(count);
    scores.push_back(score);
  }
  if (!defensive) return scores;
  for (Bounded& score : scores) {
    score = {std::max(score.value, mean.value), std::max(score.error, mean.error)};
  }
  return scores;
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

}  // namespace headway::testing
