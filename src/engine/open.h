// Engine::Open over another Env, for tests that make calls fail.
#ifndef HEADWAY_ENGINE_OPEN_H_
#define HEADWAY_ENGINE_OPEN_H_

#include <memory>
#include <string>

#include "base/env.h"
#include "headway/engine.h"
#include "model/config.h"

namespace headway {

struct WeightBytes;  // of model/model.h

struct EngineOpener {
  // All files and memory of the engine and its contexts go through `env`, which outlives them.
  static Result<std::unique_ptr<Engine>> Open(Env* env, const std::string& model,
                                              const EngineOptions& options);
};

// Resident memory of the program beside what it allocates by plan: code, libraries, thread stacks,
// and the vocabulary and merges of a tokenizer of so many tokens.
int64_t ProgramBytes(int64_t tokens);

// The config.json, or the one in the folder, of a model whose weights are drawn at random.
Result<ModelConfig> ReadRandomConfig(Env& env, const std::string& path);

// What the engine says of a model.
ModelInfo DescribeModel(const ModelConfig& config, const WeightBytes& weights,
                        const std::string& folder, const EngineOptions& options);

}  // namespace headway

#endif  // HEADWAY_ENGINE_OPEN_H_
