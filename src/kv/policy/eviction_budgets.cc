#include "kv/policy/eviction_budgets.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <numeric>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"

namespace headway::kv {
namespace {

// Tokens that a head keeps on average in each layer; [layers].
std::vector<int64_t> LayerBudgets(const EvictionPolicy& policy, int layers, int64_t tokens) {
  const int64_t mean = policy.MeanOf(tokens);
  std::vector<int64_t> budgets(static_cast<size_t>(layers), mean);
  const int64_t free = std::max<int64_t>(0, mean - policy.window);
  if (!policy.falls() || layers < 2 || free == 0) return budgets;
  const auto middle = static_cast<double>(free);
  const double first = std::min(2.0 * middle - middle / policy.steepness,
                                static_cast<double>(tokens - policy.window));
  const double step = 2.0 * (first - middle) / (layers - 1);
  // Layers at the same distance from both ends have twice the mean together.
  for (int layer = 0; layer < layers / 2; ++layer) {
    const int64_t more = std::llround(first - layer * step) - free;
    budgets[static_cast<size_t>(layer)] += more;
    budgets[static_cast<size_t>(layers - 1 - layer)] -= more;
  }
  return budgets;
}

// A head without a share takes what no other can.
constexpr double kLeastShare = 1e-9;

// As much as `mean` for each in proportion to these shares, of which none gets more than `most`:
// what some cannot take the others get.
std::vector<double> InProportion(std::vector<double> shares, double mean, double most) {
  for (double& share : shares) share = std::max(share, kLeastShare);
  std::vector<double> sorted = shares;
  std::sort(sorted.begin(), sorted.end());
  std::vector<double> sums(sorted.size());  // of this one and the smaller ones
  std::partial_sum(sorted.begin(), sorted.end(), sums.begin());
  double left = mean * static_cast<double>(shares.size());
  double scale = 0.0;
  for (size_t i = sorted.size(); i-- > 0;) {
    scale = left / sums[i];
    if (sorted[i] * scale <= most) break;
    left -= most;
  }
  for (double& share : shares) share = std::min(share * scale, most);
  return shares;
}

// Static budgets: beside what all keep anyway, what the policy's shares say.
std::vector<int64_t> StaticBudgets(const EvictionPolicy& policy, size_t heads, int64_t tokens) {
  HEADWAY_CHECK(policy.shares.size() == heads);
  const int64_t mean = policy.MeanOf(tokens);
  const int64_t anyway = std::min(mean, policy.AnywayOf(tokens));
  const double even = policy.safe() ? policy.safeguard : 0.0;
  std::vector<double> shares = policy.shares;
  for (double& share : shares) share = even + (1.0 - even) * share;
  shares = InProportion(std::move(shares), static_cast<double>(mean - anyway),
                        static_cast<double>(tokens - anyway));
  // Rounding the sums so far keeps the total, and each budget within a token.
  std::vector<int64_t> budgets;
  double sum = 0.0;
  int64_t given = 0;
  for (const double share : shares) {
    sum += share;
    const int64_t so_far = std::llround(sum);
    budgets.push_back(anyway + so_far - given);
    given = so_far;
  }
  return budgets;
}

}  // namespace

std::vector<int64_t> HeadBudgets(const EvictionPolicy& policy, int layers, int kv_heads,
                                 int64_t tokens) {
  const auto heads = static_cast<size_t>(layers) * static_cast<size_t>(kv_heads);
  if (policy.profiled) return StaticBudgets(policy, heads, tokens);
  std::vector<int64_t> budgets;
  budgets.reserve(heads);
  for (const int64_t budget : LayerBudgets(policy, layers, tokens)) {
    budgets.insert(budgets.end(), static_cast<size_t>(kv_heads), budget);
  }
  return budgets;
}

std::vector<int64_t> BudgetsOverLayers(const EvictionPolicy& policy, std::span<const float> scores,
                                       int64_t tokens, int64_t closed) {
  const auto row = static_cast<size_t>(tokens);
  const size_t heads = scores.size() / row;
  const auto end =
      static_cast<size_t>(std::min(closed, std::max<int64_t>(0, tokens - policy.WindowOf(tokens))));
  const size_t begin = std::min(end, static_cast<size_t>(policy.sink));
  const int64_t anyway = tokens - static_cast<int64_t>(end - begin);
  std::vector<int64_t> budgets(heads, anyway);
  int64_t left = static_cast<int64_t>(heads) * (policy.MeanOf(tokens) - anyway);
  if (left <= 0) return budgets;
  const auto score = [&](size_t head, size_t token) {
    return std::max(0.0f, scores[head * row + token]);  // of NaN the other one
  };
  std::vector<float> all;
  all.reserve(heads * (end - begin));
  for (size_t head = 0; head < heads; ++head) {
    for (size_t token = begin; token < end; ++token) all.push_back(score(head, token));
  }
  const auto last = all.begin() + (left - 1);
  std::nth_element(all.begin(), last, all.end(), std::greater<>());
  const float least = *last;
  for (size_t head = 0; head < heads; ++head) {
    for (size_t token = begin; token < end; ++token) {
      if (score(head, token) <= least) continue;
      ++budgets[head];
      --left;
    }
  }
  for (size_t token = begin; token < end && left > 0; ++token) {
    for (size_t head = 0; head < heads && left > 0; ++head) {
      if (score(head, token) != least) continue;
      ++budgets[head];
      --left;
    }
  }
  return budgets;
}

KeptBounds KeptBoundsOf(const EvictionPolicy& policy, int layers, int kv_heads, int64_t length,
                        int slots) {
  // A shorter prompt has no larger budget of a head and no larger mean, but that static budgets are
  // rounded otherwise. What a head keeps whatever its budget is the window, and the first tokens.
  const int64_t least = policy.AnywayOf(length);
  const int64_t mean = std::max(policy.MeanOf(length), least);
  const std::vector<int64_t> budgets = HeadBudgets(policy, layers, kv_heads, length);
  int64_t head = std::max(*std::max_element(budgets.begin(), budgets.end()), least);
  if (policy.profiled) ++head;
  if (policy.uneven()) {
    // The others of its layer keep what is safe, and the window.
    const int64_t safe = policy.SafeOf(head);
    head = kv_heads * head - (kv_heads - 1) * std::max(policy.window, safe);
  }
  const int64_t all = int64_t{layers} * kv_heads;
  // The others keep what all keep.
  if (policy.spans_layers()) head = all * mean - (all - 1) * least;
  KeptBounds bounds;
  bounds.head_pages = CeilDiv(std::min(head, length), slots);
  // Where heads keep different numbers, all of them may begin a page.
  const bool alike =
      !policy.uneven() && !policy.falls() && !policy.profiled && !policy.spans_layers();
  bounds.all_pages = std::min(alike ? all * CeilDiv(mean, slots) : all * (mean + slots - 1) / slots,
                              all * CeilDiv(length, slots));
  return bounds;
}

// Heads keep their budgets or more, and these are the mean on average. The longest prompt lets go
// of most.
int64_t LetGoPages(const EvictionPolicy& policy, int layers, int kv_heads, int64_t length,
                   int slots) {
  return int64_t{layers} * kv_heads * (length - policy.MeanOf(length)) / slots;
}

}  // namespace headway::kv
