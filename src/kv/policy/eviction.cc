#include "kv/policy/eviction.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>
#include <string>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "kv/policy/eviction_scores.h"

namespace headway::kv {
namespace {

constexpr std::array<std::pair<EvictionMethod, const char*>, 10> kNames = {{
    {EvictionMethod::kStreaming, "streamingllm"},
    {EvictionMethod::kSnap, "snapkv"},
    {EvictionMethod::kPyramid, "pyramidkv"},
    {EvictionMethod::kAdaSnap, "ada-snapkv"},
    {EvictionMethod::kAdaPyramid, "ada-pyramidkv"},
    {EvictionMethod::kCriticalSnap, "critical-snapkv"},
    {EvictionMethod::kCriticalAdaSnap, "critical-ada-snapkv"},
    {EvictionMethod::kDefensive, "defensivekv"},
    {EvictionMethod::kExpected, "expectedattention"},
    {EvictionMethod::kHeavy, "h2o"},
}};

using Candidate = EvictionCandidate;

// The mean of the layers' budgets.
int64_t MeanBudget(const EvictionPolicy& policy, int64_t tokens) {
  const int64_t of_share = std::llround(policy.share * static_cast<double>(tokens));
  return std::clamp<int64_t>(policy.share > 0.0 ? of_share : policy.budget, 0, tokens);
}

// Where the closed tokens of a prompt lie. Those of the window, and the rest behind it that is not
// closed, are kept anyway; `free` ones are chosen among the candidates before.
struct Parts {
  int64_t candidates = 0;  // closed tokens in front of the window
  int64_t window = 0;      // closed tokens of the window
  int64_t free = 0;        // candidates that a head keeps on average, before pages are filled
};

Parts PartsOf(const EvictionPolicy& policy, int64_t tokens, int64_t closed, int64_t budget) {
  Parts parts;
  parts.candidates = std::min(closed, std::max<int64_t>(0, tokens - policy.WindowOf(tokens)));
  parts.window = closed - parts.candidates;
  const int64_t anyway = tokens - parts.candidates;
  parts.free = std::clamp<int64_t>(budget - anyway, 0, parts.candidates);
  return parts;
}

// What a head of a layer that shares its budget keeps anyway, the window among it.
int64_t SafeOf(const EvictionPolicy& policy, int64_t budget) {
  return policy.safe() ? static_cast<int64_t>(policy.safeguard * static_cast<double>(budget)) : 0;
}

// Of a head that keeps `free` candidates: the same with its pages full.
int64_t Filled(const Parts& parts, int64_t free, int slots) {
  const int64_t kept = RoundUp(parts.window + free, slots);
  return std::min(kept, parts.window + parts.candidates) - parts.window;
}

// The first `count` candidates in the order of taking come to the front, in any order.
void BringToFront(std::span<Candidate> candidates, int64_t count) {
  if (count >= static_cast<int64_t>(candidates.size())) return;
  std::nth_element(candidates.begin(), candidates.begin() + count, candidates.end());
}

std::vector<Candidate> CandidatesOf(const std::vector<double>& scores, const Parts& parts,
                                    int head) {
  std::vector<Candidate> candidates(static_cast<size_t>(parts.candidates));
  for (size_t i = 0; i < candidates.size(); ++i) {
    candidates[i] = {scores[i], static_cast<int32_t>(i), head};
  }
  return candidates;
}

// For each head how many of its candidates are among the best of the layer, of which a head's own
// best `safe` are some whatever they score.
std::vector<int64_t> SharedCounts(const std::vector<std::vector<Candidate>>& of_heads,
                                  const Parts& parts, int64_t safe) {
  std::vector<Candidate> all;
  all.reserve(of_heads.size() * static_cast<size_t>(parts.candidates));
  for (const std::vector<Candidate>& of_head : of_heads) {
    const auto first = static_cast<std::ptrdiff_t>(all.size());
    all.insert(all.end(), of_head.begin(), of_head.end());
    if (safe == 0) continue;
    std::nth_element(all.begin() + first, all.begin() + first + safe - 1, all.end());
    for (auto at = all.begin() + first; at != all.begin() + first + safe; ++at) {
      at->score = std::numeric_limits<double>::infinity();
    }
  }
  const int64_t total = static_cast<int64_t>(of_heads.size()) * parts.free;
  BringToFront(all, total);
  std::vector<int64_t> counts(of_heads.size());
  for (int64_t i = 0; i < total; ++i)
    ++counts[static_cast<size_t>(all[static_cast<size_t>(i)].head)];
  return counts;
}

// Those of a head that it keeps, `count` of them beside those that it keeps anyway, come to the
// front, in any order.
void Choose(const EvictionPolicy& policy, const EvictionScores& scores, int64_t count,
            int64_t anyway, std::span<Candidate> candidates) {
  if (policy.critical()) {
    const int64_t first = std::max<int64_t>(0, (anyway + count) / 2 - anyway);
    BringToFront(candidates, first);
    candidates = candidates.subspan(static_cast<size_t>(first));
    for (Candidate& left : candidates) {
      left.score = scores.AtLast(left.score, left.head, static_cast<size_t>(left.position));
    }
    count -= first;
  }
  BringToFront(candidates, count);
}

// The positions of the first `count` candidates, then the window's closed tokens.
std::vector<int32_t> KeptOf(std::span<const Candidate> candidates, int64_t count, int64_t closed) {
  std::vector<int32_t> kept;
  kept.reserve(static_cast<size_t>(closed));
  for (int64_t i = 0; i < count; ++i) {
    kept.push_back(candidates[static_cast<size_t>(i)].position);
  }
  std::sort(kept.begin(), kept.end());
  for (auto at = static_cast<int64_t>(candidates.size()); at < closed; ++at) {
    kept.push_back(static_cast<int32_t>(at));
  }
  return kept;
}

// The first tokens and the last ones, in whole pages.
std::vector<int32_t> KeptOfStream(const EvictionPolicy& policy, const Parts& parts, int slots) {
  const int64_t closed = parts.candidates + parts.window;
  const int64_t sink = std::min(policy.sink, parts.candidates);
  const int64_t count = Filled(parts, std::max(parts.free, sink), slots);
  std::vector<int32_t> kept(static_cast<size_t>(count + parts.window));
  const auto recent = kept.begin() + sink;
  std::iota(kept.begin(), recent, 0);
  std::iota(recent, kept.end(), static_cast<int32_t>(closed - (kept.end() - recent)));
  return kept;
}

}  // namespace

const char* EvictionName(EvictionMethod method) {
  for (const auto& [known, name] : kNames) {
    if (known == method) return name;
  }
  return "none";
}

Result<EvictionMethod> EvictionOf(std::string_view name) {
  std::string all;
  for (const auto& [method, known] : kNames) {
    if (name == known) return method;
    all += std::string(all.empty() ? "" : ", ") + known;
  }
  return Status(StatusCode::kInvalidArgument,
                fmt::format("unknown eviction method '{}'; there are {}", name, all));
}

int64_t EvictionPolicy::WindowOf(int64_t tokens) const {
  return adds_up() ? std::max<int64_t>(1, MeanBudget(*this, tokens) / 2) : window;
}

std::vector<int64_t> LayerBudgets(const EvictionPolicy& policy, int layers, int64_t tokens) {
  const int64_t mean = MeanBudget(policy, tokens);
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

std::vector<std::vector<int32_t>> ChooseKept(const EvictionPolicy& policy,
                                             const ObservedWeights& observed, int64_t closed,
                                             int64_t budget, int slots) {
  const Parts parts = PartsOf(policy, observed.tokens, closed, budget);
  const auto heads = static_cast<size_t>(observed.heads);
  if (!policy.scores()) {
    HEADWAY_CHECK(policy.method == EvictionMethod::kStreaming);
    return std::vector<std::vector<int32_t>>(heads, KeptOfStream(policy, parts, slots));
  }
  const EvictionScores scores(policy, observed, parts.free);
  std::vector<std::vector<Candidate>> candidates;
  for (int head = 0; head < observed.heads; ++head) {
    candidates.push_back(CandidatesOf(scores.OfHead(head), parts, head));
  }
  std::vector<int64_t> counts(heads, parts.free);
  if (policy.uneven()) {
    const auto of_budget = SafeOf(policy, budget);
    const int64_t anyway = observed.tokens - parts.candidates;
    const int64_t safe = std::clamp<int64_t>(of_budget - anyway, 0, parts.free);
    counts = SharedCounts(candidates, parts, safe);
  }
  std::vector<std::vector<int32_t>> kept;
  for (size_t head = 0; head < heads; ++head) {
    const int64_t count = Filled(parts, counts[head], slots);
    Choose(policy, scores, count, observed.tokens - parts.candidates, candidates[head]);
    kept.push_back(KeptOf(candidates[head], count, closed));
  }
  return kept;
}

KeptBounds KeptBoundsOf(const EvictionPolicy& policy, int layers, int kv_heads, int64_t length,
                        int slots) {
  // A shorter prompt has no larger first layer and no larger mean. What a head keeps whatever its
  // budget is the window, and the sink that a stream has.
  const int64_t least = policy.WindowOf(length) + (policy.keeps_sink() ? policy.sink : 0);
  const int64_t mean = std::max(MeanBudget(policy, length), least);
  int64_t head = std::max(LayerBudgets(policy, layers, length).front(), least);
  if (policy.uneven()) {
    // The others of its layer keep what is safe, and the window.
    const int64_t safe = SafeOf(policy, head);
    head = kv_heads * head - (kv_heads - 1) * std::max(policy.window, safe);
  }
  const int64_t all = int64_t{layers} * kv_heads;
  KeptBounds bounds;
  bounds.head_pages = CeilDiv(std::min(head, length), slots);
  // Where heads keep different numbers, all of them may begin a page.
  const bool alike = !policy.uneven() && !policy.falls();
  bounds.all_pages = std::min(alike ? all * CeilDiv(mean, slots) : all * (mean + slots - 1) / slots,
                              all * CeilDiv(length, slots));
  return bounds;
}

}  // namespace headway::kv
