#include "engine/draft_plan.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "base/bytes.h"
#include "engine/encoding_choice.h"
#include "engine/selection_choice.h"
#include "headway/refusal.h"

namespace headway {
namespace {

// A longer one would take more memory for activations, and be no faster by much.
constexpr int64_t kChunk = 1024;

Result<Blueprint> MakeDraftBlueprint(const BlueprintInputs& inputs, const DraftBasis& draft,
                                     const Workload& workload) {
  const kv::HeadPattern pattern;
  const kv::Manifest session;
  BlueprintInputs own = inputs;
  own.settings = &draft.settings;
  own.config = &draft.config;
  own.weights = draft.weights;
  own.pattern = &pattern;
  own.rank_patterns = nullptr;
  own.session = &session;
  own.device_memory.reset();  // what it takes is counted where the other's is
  own.program_bytes = 0;
  own.weight_layers.reset();
  own.disk_layers.reset();
  Result<Blueprint> blueprint = MakeBlueprint(own, workload);
  if (!blueprint.ok()) return OfDraft(blueprint.status());
  // All of it at once: the other model fills what is left.
  blueprint->layout.store.device_slabs = blueprint->plan.slabs[0];
  return blueprint;
}

plan::ModelBeside BesideOf(const Blueprint& draft) {
  plan::ModelBeside beside;
  for (const plan::MemoryRow& row : draft.plan.memory) {
    if (row.tier != Tier::kDevice) continue;
    beside.rows.push_back({row.tier, "drafts: " + row.tag, row.bytes});
    beside.device += row.bytes;
  }
  beside.kv = draft.request.costs.cache(draft.plan.cache).fixed() +
              draft.plan.slabs[0] * draft.plan.slab_bytes;
  return beside;
}

Result<Blueprint> MakeBeside(BlueprintInputs inputs, const DraftBasis& draft,
                             const Workload& workload) {
  Result<Blueprint> drafting = MakeDraftBlueprint(inputs, draft, workload);
  if (!drafting.ok()) return drafting;
  inputs.beside = BesideOf(*drafting);
  inputs.draft_seconds = drafting->plan.decode.seconds;
  Result<Blueprint> blueprint = MakeBlueprint(inputs, workload);
  if (blueprint.ok()) {
    blueprint->draft = std::make_shared<const Blueprint>(std::move(*drafting));
    return blueprint;
  }
  if (blueprint.status().code() != StatusCode::kOutOfBudget) return blueprint;
  const plan::ModelBeside& beside = inputs.beside;
  return blueprint.status().Within(
      {}, {"; the cache of the model that drafts takes " + FormatBytes(beside.kv) +
               " of these, and of a GPU's memory its weights and steps " +
               FormatBytes(beside.device - beside.kv) + " more, by ",
           Option::kDraft});
}

}  // namespace

DraftBasis DraftBasisOf(const Settings& settings, const ModelConfig& config,
                        const WeightBytes& weights) {
  Settings own;
  own.target = settings.target;
  own.memory.host = 0;
  own.gpu_layers = config.shape.layers;
  own.cut.page_slots = settings.cut.page_slots;
  own.cut.chunk = std::min(kChunk, settings.cut.chunk.value_or(kChunk));
  own.host_share = own.recompute_share = 0.0;
  own.plans = settings.plans;
  own.drafts.tokens = settings.drafts.tokens;
  own.weights = settings.weights;
  return {std::move(own), config, weights};
}

Result<Blueprint> MakeBlueprints(const BlueprintInputs& inputs, const DraftBasis* draft,
                                 const Workload& workload) {
  return ChooseEncoding(inputs, [&](const BlueprintInputs& given) {
    return draft == nullptr ? MakeFastestBlueprint(given, workload)
                            : MakeBeside(given, *draft, workload);
  });
}

Status OfDraft(const Status& error) { return error.Within({Option::kDraft, ": "}); }

}  // namespace headway
