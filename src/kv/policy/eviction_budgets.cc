#include "kv/policy/eviction_budgets.h"

#include <algorithm>
#include <bit>
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

// The policy's shares, with what all heads have alike.
std::vector<double> EvenedShares(const EvictionPolicy& policy) {
  const double even = policy.safe() ? policy.safeguard : 0.0;
  std::vector<double> shares = policy.shares;
  for (double& share : shares) share = even + (1.0 - even) * share;
  return shares;
}

// Static budgets: beside what all keep anyway, what the policy's shares say.
std::vector<int64_t> StaticBudgets(const EvictionPolicy& policy, size_t heads, int64_t tokens) {
  HEADWAY_CHECK(policy.shares.size() == heads);
  const int64_t mean = policy.MeanOf(tokens);
  const int64_t anyway = std::min(mean, policy.AnywayOf(tokens));
  const std::vector<double> shares =
      InProportion(EvenedShares(policy), static_cast<double>(mean - anyway),
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

Result<std::vector<int64_t>> BudgetsOverLayers(const EvictionPolicy& policy,
                                               std::span<const float> scores, int64_t tokens,
                                               int64_t closed, const SharingHeads& sharing) {
  const auto row = static_cast<size_t>(tokens);
  const std::vector<int>& here = sharing.here;
  HEADWAY_CHECK(scores.size() == here.size() * row);
  const auto end =
      static_cast<size_t>(std::min(closed, std::max<int64_t>(0, tokens - policy.WindowOf(tokens))));
  const size_t begin = std::min(end, static_cast<size_t>(policy.sink));
  const int64_t anyway = tokens - static_cast<int64_t>(end - begin);
  std::vector<int64_t> budgets(here.size(), anyway);
  const int64_t left = sharing.all * (policy.MeanOf(tokens) - anyway);
  if (left <= 0) return budgets;
  const auto key = [&](size_t head, size_t token) {
    const float score = std::max(0.0f, scores[head * row + token]);  // of NaN the other one
    return ChoiceKey{uint64_t{~std::bit_cast<uint32_t>(score)} << 32 | static_cast<uint32_t>(token),
                     static_cast<uint64_t>(here[head])};
  };
  const auto each = [&](const auto& visit) {
    for (size_t head = 0; head < here.size(); ++head) {
      for (size_t token = begin; token < end; ++token) visit(key(head, token));
    }
  };
  const Result<ChoiceKey> last = LastTaken(left, each, sharing);
  if (!last.ok()) return last.status();
  for (size_t head = 0; head < here.size(); ++head) {
    for (size_t token = begin; token < end; ++token) {
      budgets[head] += key(head, token) <= *last ? 1 : 0;
    }
  }
  return budgets;
}

namespace {

// What one of several ranks has of a prompt.
struct RankPart {
  const std::vector<HeadSet>& heads;  // [layers]
  int kv_heads = 0;                   // of a layer of the model
  int64_t length = 0;
  int slots = 0;

  int64_t layers() const { return std::ssize(heads); }
  int64_t own() const {
    return std::accumulate(heads.begin(), heads.end(), int64_t{0},
                           [](int64_t sum, const HeadSet& set) { return sum + set.size(); });
  }
  // Of the layer with most.
  int64_t most() const {
    int most = 0;
    for (const HeadSet& set : heads) most = std::max(most, set.size());
    return most;
  }
};

// Lengths up to a rank's at which its heads may have most together, where budgets are static. Those
// of a number of tokens are linear in the length but where one more head has all of the prompt, and
// leaves the others what it cannot take; those of a share of the prompt grow with it.
std::vector<int64_t> LengthsOfMost(const EvictionPolicy& policy, const RankPart& part) {
  std::vector<int64_t> lengths = {part.length};
  if (policy.share > 0.0 || policy.budget >= part.length) return lengths;
  const int64_t anyway = policy.AnywayOf(part.length);
  std::vector<double> shares = EvenedShares(policy);
  std::sort(shares.begin(), shares.end(), std::greater<>());
  double left = std::accumulate(shares.begin(), shares.end(), 0.0);
  const double all = static_cast<double>(policy.budget - anyway) * std::ssize(shares);
  for (size_t full = 0; full < shares.size(); ++full) {
    const double share = std::max(shares[full], kLeastShare);
    const auto length =
        anyway + static_cast<int64_t>(share * all / (left + share * static_cast<double>(full)));
    for (const int64_t near : {length, length + 1}) {
      lengths.push_back(std::clamp(near, policy.budget, part.length));
    }
    left -= shares[full];
  }
  return lengths;
}

// Tokens of the heads of a rank together, where budgets are static.
int64_t StaticTokens(const EvictionPolicy& policy, const RankPart& part) {
  int64_t most = 0;
  for (const int64_t length : LengthsOfMost(policy, part)) {
    const std::vector<int64_t> budgets =
        HeadBudgets(policy, static_cast<int>(part.layers()), part.kv_heads, length);
    int64_t sum = 0;
    for (size_t layer = 0; layer < part.heads.size(); ++layer) {
      for (const int head : part.heads[layer].heads) {
        sum += budgets[layer * static_cast<size_t>(part.kv_heads) + static_cast<size_t>(head)];
      }
    }
    most = std::max(most, sum);
  }
  return most + part.own();  // each is rounded
}

// Pages that the heads of a rank have together, at most.
int64_t PagesOfRank(const EvictionPolicy& policy, const RankPart& part) {
  const int64_t least = policy.AnywayOf(part.length);
  const int64_t mean = std::max(policy.MeanOf(part.length), least);
  const int64_t all = part.layers() * part.kv_heads, own = part.own();
  int64_t tokens = own * mean;
  if (own == all) {
    // Nobody else has what one head does not take of the others'.
  } else if (policy.spans_layers()) {
    tokens = all * mean - (all - own) * least;
  } else if (policy.uneven()) {
    // The heads of other ranks keep what is safe; where budgets fall, layers together have no less
    // of that than even ones, but for rounding.
    const int64_t others = std::max(policy.window, policy.SafeOf(mean) - 1);
    tokens = part.layers() * (part.kv_heads * mean - (part.kv_heads - part.most()) * others);
  } else if (policy.falls()) {
    tokens = part.layers() * part.most() * mean;
  } else if (policy.profiled) {
    tokens = std::max(StaticTokens(policy, part), own * least);
  }
  // Where heads keep different numbers, all of them may begin a page.
  const bool alike =
      !policy.uneven() && !policy.falls() && !policy.profiled && !policy.spans_layers();
  const int64_t pages =
      alike ? own * CeilDiv(mean, part.slots) : (tokens + own * (part.slots - 1)) / part.slots;
  return std::min(pages, own * CeilDiv(part.length, part.slots));
}

}  // namespace

KeptBounds KeptBoundsOf(const EvictionPolicy& policy, const RankHeads& heads, int64_t length,
                        int slots) {
  // A shorter prompt has no larger budget of a head and no larger mean, but that static budgets are
  // rounded otherwise. What a head keeps whatever its budget is the window, and the first tokens.
  const int64_t least = policy.AnywayOf(length);
  const int64_t mean = std::max(policy.MeanOf(length), least);
  const auto layers = static_cast<int>(heads.ranks.front().size());
  const std::vector<int64_t> budgets = HeadBudgets(policy, layers, heads.kv_heads, length);
  int64_t head = std::max(*std::max_element(budgets.begin(), budgets.end()), least);
  if (policy.profiled) ++head;
  if (policy.uneven()) {
    // The others of its layer keep what is safe, and the window.
    const int64_t safe = policy.SafeOf(head);
    head = heads.kv_heads * head - (heads.kv_heads - 1) * std::max(policy.window, safe);
  }
  const int64_t all = int64_t{layers} * heads.kv_heads;
  // The others keep what all keep.
  if (policy.spans_layers()) head = all * mean - (all - 1) * least;
  KeptBounds bounds;
  bounds.head_pages = CeilDiv(std::min(head, length), slots);
  for (const std::vector<HeadSet>& own : heads.ranks) {
    bounds.all_pages =
        std::max(bounds.all_pages, PagesOfRank(policy, {own, heads.kv_heads, length, slots}));
  }
  return bounds;
}

namespace {

// Tokens that the heads of a rank keep together of its longest prompt, at least.
int64_t LeastTokens(const EvictionPolicy& policy, const RankPart& part) {
  const int64_t all = part.layers() * part.kv_heads, own = part.own();
  if (own == all) return all * policy.MeanOf(part.length);
  const std::vector<int64_t> budgets =
      HeadBudgets(policy, static_cast<int>(part.layers()), part.kv_heads, part.length);
  int64_t tokens = 0;
  for (size_t layer = 0; layer < part.heads.size(); ++layer) {
    for (const int head : part.heads[layer].heads) {
      const int64_t budget =
          budgets[layer * static_cast<size_t>(part.kv_heads) + static_cast<size_t>(head)];
      // Others may have the rest of what is shared. Static budgets are rounded.
      const bool shared = policy.uneven() || policy.spans_layers();
      tokens += shared ? std::min(budget, policy.SafeOf(budget)) : std::max<int64_t>(0, budget - 1);
    }
  }
  return tokens;
}

}  // namespace

// Heads keep their budgets or more, and these are the mean on average. The longest prompt lets go
// of most.
int64_t LetGoPages(const EvictionPolicy& policy, const RankHeads& heads, int64_t length,
                   int slots) {
  int64_t pages = 0;
  for (const std::vector<HeadSet>& own : heads.ranks) {
    const RankPart part = {own, heads.kv_heads, length, slots};
    pages = std::max(pages, (part.own() * length - LeastTokens(policy, part)) / slots);
  }
  return pages;
}

}  // namespace headway::kv
