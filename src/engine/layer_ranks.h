// Ranks that have a run of a model's layers each, one behind the other: how layers and settings are
// shared out, and what is told of all of them.
#ifndef HEADWAY_ENGINE_LAYER_RANKS_H_
#define HEADWAY_ENGINE_LAYER_RANKS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "engine/blueprint.h"
#include "engine/settings.h"
#include "headway/plan.h"
#include "headway/status.h"
#include "kv/policy/head_pattern.h"
#include "model/config.h"
#include "model/weights/shard.h"
#include "plan/plan.h"

namespace headway {

// Refuses by name what such ranks do not do yet.
Status CheckLayerRanks(const Settings& settings);

// A rank's model: its layers and its rows of the vocabulary.
struct LayerRun {
  ModelConfig config;
  Shard shard;
};

// For ranks with so much memory each; where all have as much, runs are as long, the first ones by
// one longer where they must differ. kInvalidArgument for more ranks than there are layers.
Result<std::vector<LayerRun>> CutLayers(const ModelConfig& whole, std::span<const int64_t> memory);

// The settings of a rank with this run, where those of all name layers.
void TakeRun(const ModelConfig& whole, const ModelConfig& run, Settings* settings);
// The same, with the cut of the first rank's plan, and the blocks that it chooses from: all take
// the same chunks, sums are in the order of one device, and lists are of like blocks.
Settings SettingsOfRun(const Settings& settings, const Blueprint& first);

// Of a pattern of all layers those of a run.
kv::HeadPattern PatternOfRun(const kv::HeadPattern& whole, const ModelConfig& run);

// Makes the first rank's report one of all; `others` are the blueprints of those behind it.
void TellOfRuns(const Blueprint& first, std::span<const Blueprint> others, PlanReport* report);
// Of so many tokens of prompts, by what each rank takes for them.
double PrefillOfRuns(const Blueprint& first, std::span<const double> of_ranks, int64_t tokens);
// Of a report that has the first rank's prediction: steps go through all ranks.
void PredictRuns(const Blueprint& first, std::span<const Blueprint> others, PlanReport* report);

}  // namespace headway

#endif  // HEADWAY_ENGINE_LAYER_RANKS_H_
