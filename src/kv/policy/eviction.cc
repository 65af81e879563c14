#include "kv/policy/eviction.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
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

constexpr std::array<std::pair<EvictionMethod, const char*>, 12> kNames = {{
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
    {EvictionMethod::kHeadKv, "headkv"},
    {EvictionMethod::kZip, "kvzip"},
}};

using Candidate = EvictionCandidate;

// Where the closed tokens of a prompt lie. Those of the window, and the rest behind it that is not
// closed, are kept anyway; `free` ones are chosen among the candidates before.
struct Parts {
  int64_t candidates = 0;     // closed tokens in front of the window
  int64_t window = 0;         // closed tokens of the window
  int64_t anyway = 0;         // tokens that are no candidates
  std::vector<int64_t> free;  // [heads]: candidates that each has, before pages are filled

  int64_t FreeOf(int64_t budget) const {
    return std::clamp<int64_t>(budget - anyway, 0, candidates);
  }
};

// Of the heads that are `here`.
Parts PartsOf(const EvictionPolicy& policy, int64_t tokens, int64_t closed,
              std::span<const int64_t> budgets, std::span<const int> here) {
  Parts parts;
  parts.candidates = std::min(closed, std::max<int64_t>(0, tokens - policy.WindowOf(tokens)));
  parts.window = closed - parts.candidates;
  parts.anyway = tokens - parts.candidates;
  for (const int head : here) {
    parts.free.push_back(parts.FreeOf(budgets[static_cast<size_t>(head)]));
  }
  return parts;
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

// Of candidates in the order of taking; of no two of them the same.
ChoiceKey KeyOf(const Candidate& candidate, int head) {
  const double score = candidate.score > 0.0 ? candidate.score : 0.0;
  return {~std::bit_cast<uint64_t>(score),
          uint64_t{static_cast<uint32_t>(candidate.position)} << 32 | static_cast<uint32_t>(head)};
}

// For each head that is here how many of its candidates are among the best `total` of the layer, of
// which a head's own best `safe` are some whatever they score.
Result<std::vector<int64_t>> SharedCounts(std::vector<std::vector<Candidate>> of_heads,
                                          int64_t total, int64_t safe,
                                          const SharingHeads& sharing) {
  std::vector<int64_t> counts(of_heads.size(), 0);
  if (total == 0) return counts;
  for (std::vector<Candidate>& candidates : of_heads) {
    if (safe == 0) break;
    const auto last = candidates.begin() + safe;
    std::nth_element(candidates.begin(), last - 1, candidates.end());
    for (auto at = candidates.begin(); at != last; ++at) {
      at->score = std::numeric_limits<double>::infinity();
    }
  }
  const auto each = [&](const auto& visit) {
    for (size_t i = 0; i < of_heads.size(); ++i) {
      for (const Candidate& candidate : of_heads[i]) visit(KeyOf(candidate, sharing.here[i]));
    }
  };
  const Result<ChoiceKey> last = LastTaken(total, each, sharing);
  if (!last.ok()) return last.status();
  for (size_t i = 0; i < of_heads.size(); ++i) {
    for (const Candidate& candidate : of_heads[i]) {
      counts[i] += KeyOf(candidate, sharing.here[i]) <= *last ? 1 : 0;
    }
  }
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

// The first tokens and the last ones, in whole pages, of a head that has `free` candidates.
KeptOfHead KeptOfStream(const EvictionPolicy& policy, const Parts& parts, int64_t free, int slots) {
  const int64_t closed = parts.candidates + parts.window;
  const int64_t sink = std::min(policy.sink, parts.candidates);
  const int64_t wanted = std::max(free, sink);
  KeptOfHead kept = {{}, parts.anyway + wanted};
  kept.positions.resize(static_cast<size_t>(Filled(parts, wanted, slots) + parts.window));
  const auto recent = kept.positions.begin() + sink;
  std::iota(kept.positions.begin(), recent, 0);
  std::iota(recent, kept.positions.end(),
            static_cast<int32_t>(closed - (kept.positions.end() - recent)));
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

int64_t EvictionPolicy::MeanOf(int64_t tokens) const {
  const int64_t of_share = std::llround(share * static_cast<double>(tokens));
  return std::clamp<int64_t>(share > 0.0 ? of_share : budget, 0, tokens);
}

int64_t EvictionPolicy::WindowOf(int64_t tokens) const {
  return adds_up() ? std::max<int64_t>(1, MeanOf(tokens) / 2) : window;
}

Result<std::vector<KeptOfHead>> ChooseKept(const EvictionPolicy& policy,
                                           const ObservedWeights& observed, int64_t closed,
                                           std::span<const int64_t> budgets, int slots,
                                           const SharingHeads& sharing) {
  HEADWAY_CHECK(std::ssize(sharing.here) == observed.heads && std::ssize(budgets) == sharing.all);
  const Parts parts = PartsOf(policy, observed.tokens, closed, budgets, sharing.here);
  std::vector<KeptOfHead> kept;
  if (!policy.scores()) {
    HEADWAY_CHECK(policy.method == EvictionMethod::kStreaming);
    for (const int64_t free : parts.free) kept.push_back(KeptOfStream(policy, parts, free, slots));
    return kept;
  }
  const Result<EvictionScores> scores =
      EvictionScores::Create(policy, observed, parts.free, sharing);
  if (!scores.ok()) return scores.status();
  std::vector<std::vector<Candidate>> candidates;
  for (int head = 0; head < observed.heads; ++head) {
    candidates.push_back(CandidatesOf(scores->OfHead(head), parts, head));
  }
  std::vector<int64_t> counts = parts.free;
  if (policy.uneven()) {
    const int64_t free = parts.FreeOf(budgets[0]);
    const int64_t safe = std::clamp<int64_t>(policy.SafeOf(budgets[0]) - parts.anyway, 0, free);
    Result<std::vector<int64_t>> shared =
        SharedCounts(candidates, sharing.all * free, safe, sharing);
    if (!shared.ok()) return shared.status();
    counts = std::move(*shared);
  }
  for (size_t head = 0; head < counts.size(); ++head) {
    const int64_t count = Filled(parts, counts[head], slots);
    Choose(policy, *scores, count, parts.anyway, candidates[head]);
    kept.push_back({KeptOf(candidates[head], count, closed), parts.anyway + counts[head]});
  }
  return kept;
}

}  // namespace headway::kv
