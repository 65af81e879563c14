// How many tokens of a prompt each head keeps under an EvictionPolicy, before it chooses them: by
// the prompt's length alone.
#ifndef HEADWAY_KV_POLICY_EVICTION_BUDGETS_H_
#define HEADWAY_KV_POLICY_EVICTION_BUDGETS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "base/head_set.h"
#include "kv/policy/eviction.h"
#include "kv/policy/sharing_heads.h"

namespace headway::kv {

// Tokens that each head keeps of a prompt of `tokens`; [layers * heads]. Heads of a layer that
// share a budget have its mean. All have the policy's budget on average, but where the prompt has
// fewer.
std::vector<int64_t> HeadBudgets(const EvictionPolicy& policy, int layers, int kv_heads,
                                 int64_t tokens);

// Where the heads of all layers share their budget, what each of those that are here has of a
// prompt, of whose tokens the first `closed` are in whole pages: the first tokens, then the best by
// these scores [heads that are here, tokens] of all. Of equal ones the earlier position is kept,
// then the earlier head; what is no number is the worst. The error is that of the sums over ranks.
Result<std::vector<int64_t>> BudgetsOverLayers(const EvictionPolicy& policy,
                                               std::span<const float> scores, int64_t tokens,
                                               int64_t closed, const SharingHeads& sharing);

// Bounds of what ChooseKept gives for prompts of up to `length` tokens, in pages: of one head, and
// of all heads that one of the ranks has of all layers, whichever that is.
struct KeptBounds {
  int64_t head_pages = 0;
  int64_t all_pages = 0;
};
KeptBounds KeptBoundsOf(const EvictionPolicy& policy, const RankHeads& heads, int64_t length,
                        int slots);

// Pages of tokens that ChooseKept lets go of prompts of up to `length` tokens, of all heads of all
// layers that one of the ranks has, at most.
int64_t LetGoPages(const EvictionPolicy& policy, const RankHeads& heads, int64_t length, int slots);

}  // namespace headway::kv

#endif  // HEADWAY_KV_POLICY_EVICTION_BUDGETS_H_
