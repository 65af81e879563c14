#include "engine/selection_choice.h"

#include <cmath>
#include <utility>
#include <vector>

#include "kv/policy/selection.h"

namespace headway {
namespace {

// Times as fast as blocks of half as many keys, for which coarser ones are taken.
constexpr double kWorthDoubling = 1.07;
constexpr int kCoarser[] = {32, 64};  // keys of a block

// Those that a plan may have instead of the settings' own, the finest first.
std::vector<kv::SelectionPolicy> Others(const Settings& settings) {
  const kv::SelectionPolicy& own = settings.selection;
  const int page_slots = settings.cut.page_slots;
  std::vector<kv::SelectionPolicy> blocks = {own};
  for (const int slots : kCoarser) {
    const int most = own.searches_pages() ? page_slots - 1 : page_slots;
    const bool may = settings.blocks_by_plan && own.lists_by_summaries() && slots <= most &&
                     slots > own.summary.block_slots && page_slots % slots == 0;
    if (!may) continue;
    blocks.push_back(own);
    blocks.back().summary.block_slots = slots;
  }
  std::vector<kv::SelectionPolicy> others;
  for (const kv::SelectionPolicy& policy : blocks) {
    if (policy.summary.block_slots != own.summary.block_slots) others.push_back(policy);
    const bool levels = settings.levels_by_plan && policy.lists_by_summaries() &&
                        !policy.looks_twice() && policy.refresh == 1 &&
                        policy.summary.block_slots < page_slots;
    if (!levels) continue;
    others.push_back(policy);
    others.back().breadth = kv::SelectionPolicy::kTwoLooks;
    others.back().search_slots = page_slots;
  }
  return others;
}

// Seconds of a decode step, and what coarser blocks must save.
double CostOf(const Blueprint& blueprint) {
  const int keys = blueprint.layout.executor.selection.summary.block_slots;
  return blueprint.plan.decode.seconds * std::pow(kWorthDoubling, std::log2(keys));
}

}  // namespace

Result<Blueprint> MakeFastestBlueprint(const BlueprintInputs& inputs, const Workload& workload) {
  Result<Blueprint> best = MakeBlueprint(inputs, workload);
  const bool chooses = inputs.settings->selection.approximates() && inputs.backend.own_memory &&
                       inputs.machine != nullptr && inputs.plan == nullptr;
  const bool misfit = !best.ok() && best.status().code() == StatusCode::kOutOfBudget;
  if (!chooses || (!best.ok() && !misfit)) return best;
  Settings settings = *inputs.settings;
  BlueprintInputs changed = inputs;
  changed.settings = &settings;
  for (const kv::SelectionPolicy& policy : Others(*inputs.settings)) {
    settings.selection = policy;
    Result<Blueprint> other = MakeBlueprint(changed, workload);
    if (other.ok() && (!best.ok() || CostOf(*other) < CostOf(*best))) best = std::move(other);
  }
  return best;
}

}  // namespace headway
