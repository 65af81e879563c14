// Policies of selection for the small models of tests.
#ifndef HEADWAY_TESTS_SUPPORT_SELECTION_POLICIES_H_
#define HEADWAY_TESTS_SUPPORT_SELECTION_POLICIES_H_

#include <cstdint>

#include "kv/policy/selection.h"

namespace headway::testing {

inline kv::SelectionPolicy PolicyOf(int64_t keys, SummaryKind kind = SummaryKind::kMoments) {
  kv::SelectionPolicy policy;
  policy.summary = {kind, 8};
  policy.keys = keys;
  policy.sink = 6;
  policy.recent = 20;
  const bool layer = kind == SummaryKind::kMoments || kind == SummaryKind::kMasses;
  policy.share = layer ? BudgetShare::kLayer : BudgetShare::kHead;
  if (kind == SummaryKind::kStages) policy.stages = {{{64, 128}, {16, 64}}};
  return policy;
}

// The same in two looks.
inline kv::SelectionPolicy TwoLooks(int64_t keys) {
  kv::SelectionPolicy policy = PolicyOf(keys);
  policy.summary.sketch = SketchKind::kTwoBits;
  policy.breadth = 3;
  return policy;
}

// As many keys or more, so that what is left out has at most a share of the attention.
inline kv::SelectionPolicy Bounded(int64_t keys, double epsilon) {
  kv::SelectionPolicy policy = PolicyOf(keys);
  policy.share = BudgetShare::kHead;
  policy.bound = {.epsilon = epsilon, .deviations = kv::DeviationsOf(0.05)};
  return policy;
}

// One look in which a step chooses among candidates of an earlier one.
inline kv::SelectionPolicy KeepsCandidates(int64_t keys, int64_t refresh) {
  kv::SelectionPolicy policy = PolicyOf(keys);
  policy.breadth = 3;
  policy.candidates_refresh = refresh;
  return policy;
}

// The same, of candidates that are found by summaries of pages, which have 16 slots.
inline kv::SelectionPolicy SearchesPages(int64_t keys, int64_t refresh = 1) {
  kv::SelectionPolicy policy = KeepsCandidates(keys, refresh);
  policy.search_slots = 16;
  return policy;
}

// Stages that are renewed in their own time.
inline kv::SelectionPolicy KeepsSurvivors(int64_t keys, int64_t first, int64_t second,
                                          int64_t last) {
  kv::SelectionPolicy policy = PolicyOf(keys, SummaryKind::kStages);
  policy.stages[0].refresh = first;
  policy.stages[1].refresh = second;
  policy.refresh = last;
  return policy;
}

// In prompts, too, where the outer layers, which are all of the tiny model's, choose more; with a
// distance beyond the window.
inline kv::SelectionPolicy StagedInPrompts(int64_t keys, int64_t distance) {
  kv::SelectionPolicy policy = PolicyOf(keys, SummaryKind::kStages);
  policy.outer_keys = keys + 8;
  policy.prompts = kv::SelectionPolicy::Prompts::kSelected;
  policy.distance = distance;
  return policy;
}

}  // namespace headway::testing

#endif  // HEADWAY_TESTS_SUPPORT_SELECTION_POLICIES_H_
