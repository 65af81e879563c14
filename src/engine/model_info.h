// What an engine knows of a model beside its weights.
#ifndef HEADWAY_ENGINE_MODEL_INFO_H_
#define HEADWAY_ENGINE_MODEL_INFO_H_

#include <cstdint>
#include <string>

#include "base/env.h"
#include "engine/settings.h"
#include "headway/plan.h"
#include "headway/status.h"
#include "model/model.h"

namespace headway {

// Resident memory of the program beside what it allocates by plan: code, libraries, thread stacks,
// and the vocabulary and merges of a tokenizer of so many tokens.
int64_t ProgramBytes(int64_t tokens);

// The config.json, or the one in the folder, of a model whose weights are drawn at random.
Result<ModelConfig> ReadRandomConfig(Env& env, const std::string& path);

// ModelInfo::config_hash.
std::string ConfigHash(const ModelConfig& config);

// What the engine says of a model.
ModelInfo ModelInfoOf(const ModelConfig& config, const WeightBytes& weights,
                      const std::string& folder, const Settings& settings);

}  // namespace headway

#endif  // HEADWAY_ENGINE_MODEL_INFO_H_
