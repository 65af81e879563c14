// Eviction's choices written down a second time, in double precision and without care for speed,
// and how far the kernels' scores may be from these.
#ifndef HEADWAY_TESTS_SUPPORT_PLAIN_EVICTION_H_
#define HEADWAY_TESTS_SUPPORT_PLAIN_EVICTION_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "kernels/pages.h"
#include "kernels/weight_view.h"
#include "kv/policy/eviction.h"
#include "model/config.h"
#include "model/rope.h"

namespace headway::testing {

// K and V of one head's tokens, in the order of the store.
struct Cached {
  std::vector<std::byte> k, v;
  size_t row_bytes = 0;
  // Where the store says that tokens are: of the first of each range its number and its position.
  std::vector<std::pair<int64_t, int64_t>> starts;

  int64_t tokens() const { return static_cast<int64_t>(k.size() / row_bytes); }
  std::string Row(int64_t token) const {
    std::string row;
    for (const std::vector<std::byte>* plane : {&k, &v}) {
      const auto* const begin = reinterpret_cast<const char*>(plane->data());
      row.append(begin + static_cast<size_t>(token) * row_bytes, row_bytes);
    }
    return row;
  }
};

// A prompt's queries in a layer: the last ones, or all, or all as they were before their rotation.
struct Queries {
  int64_t position = 0;  // of the first
  std::vector<float> q;  // [rows, query_heads, head_dim]
};

// A number, and how far kernels may be from it.
struct Bounded {
  double value = 0.0;
  double error = 0.0;

  double low() const { return value - error; }
  double high() const { return value + error; }
};

// The weights that one query gives the first keys.
std::vector<Bounded> WeightsOf(const float* q, const Cached& keys, int64_t count,
                               const PageFormat& page);

// The weights that one query gives the first keys.
std::vector<Bounded> WeightsOf(const float* q, const Cached& keys, int64_t count,
                               const PageFormat& page);

// What a layer's choices depend on.
struct PlainLayer {
  const kv::EvictionPolicy& policy;
  const ModelShape& shape;
  const PageFormat& page;
  const RopeFrequencies& rope;
  WeightView projection;             // of attention's output
  const std::vector<Cached>& heads;  // [kv_heads], all tokens of the prompt
  const Queries* queries = nullptr;  // null where the policy asks for none
};

// The scores of the tokens in front of the window [kv_heads][tokens]. `free` is what a head chooses
// on average.
std::vector<std::vector<Bounded>> PlainScores(const PlainLayer& layer, int64_t free);
// Those of CriticalKV's second half, of a head with these scores.
std::vector<Bounded> PlainLastScores(const PlainLayer& layer, size_t head,
                                     const std::vector<Bounded>& scores);

// The budget of one of two layers, as PyramidKV has them.
int64_t PlainLayerBudget(const kv::EvictionPolicy& policy, int layer, int64_t tokens);

// The budget of a head, counted over two layers or, where budgets are static, over all of them; in
// that case no head's is as long as the prompt.
int64_t PlainHeadBudget(const kv::EvictionPolicy& policy, int heads, int head, int64_t tokens);

// The last tokens that are kept whatever they score: of H2O half of the budget.
int64_t PlainWindow(const kv::EvictionPolicy& policy, int64_t tokens);

// Of a layer's prompt: what is kept anyway, and of how many candidates heads choose how many.
struct EvictionParts {
  int64_t closed = 0;      // tokens in whole pages
  int64_t candidates = 0;  // those of them that the window leaves
  int64_t free = 0;        // candidates of a head on average

  EvictionParts(const kv::EvictionPolicy& policy, int64_t tokens, int64_t budget, int slots)
      : closed(tokens / slots * slots),
        candidates(std::min(closed, tokens - PlainWindow(policy, tokens))) {
    free = std::clamp<int64_t>(budget - (tokens - candidates), 0, candidates);
  }
  // As many candidates as fill the pages of a head that has `count`.
  int64_t Filled(int64_t count, int slots) const {
    const int64_t window = closed - candidates;
    return std::min(RoundUp(window + count, int64_t{slots}), closed) - window;
  }
};

// The fewest and the most candidates that each head of a layer may have, if its heads share their
// budget: of each head its best `safe`, then the best of all.
std::vector<std::pair<int64_t, int64_t>> SharedCounts(
    const std::vector<std::vector<Bounded>>& scores, const EvictionParts& parts, int64_t safe);

// Whether the candidates at these positions may be the best; `decided` becomes false where they are
// not those that the plain scores say, of equal ones the earlier.
bool AreBest(const std::vector<int64_t>& chosen, const std::vector<Bounded>& scores,
             int64_t candidates, bool* decided);
// The same where so many are the best by `scores`, of `candidates`, and the others by `last`.
struct CriticalCounts {
  int64_t candidates = 0, first = 0;
};
bool AreCriticalBest(const std::vector<int64_t>& chosen, const std::vector<Bounded>& scores,
                     const std::vector<Bounded>& last, const CriticalCounts& counts, bool* decided);

}  // namespace headway::testing

#endif  // HEADWAY_TESTS_SUPPORT_PLAIN_EVICTION_H_
