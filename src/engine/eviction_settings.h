// Eviction as options ask for it, and what it does not go together with.
#ifndef HEADWAY_ENGINE_EVICTION_SETTINGS_H_
#define HEADWAY_ENGINE_EVICTION_SETTINGS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "base/env.h"
#include "engine/settings.h"
#include "headway/options.h"
#include "headway/status.h"
#include "kv/policy/eviction.h"
#include "model/config.h"
#include "plan/plan.h"

namespace headway {

// kInvalidArgument for numbers that make no sense, for options that the method does not read, and
// for others that do not go together with it.
Result<kv::EvictionPolicy> ReadEviction(const EngineOptions& options);

// Reads the profiles of heads that the settings name, if any, into their policy and their shares
// for an assignment. The error is that of the file.
Status LoadShares(Env& env, const ModelConfig& config, Settings* settings);

// The method and every parameter that it reads, as a line of text: a session goes on under policies
// of the same words alone.
std::string EvictionWords(const kv::EvictionPolicy& policy);

// kUnsupported for a model whose prompts are not attended to as a whole.
Status CheckEviction(const kv::EvictionPolicy& policy, const ModelConfig& config);

// What decode reads of sequences that will reach these lengths, on average over layers and heads;
// of demoted tokens over the bus, unless the host's memory is the device's.
plan::KeptTokens KeptOf(const kv::EvictionPolicy& policy, const std::vector<int64_t>& lengths,
                        bool host_reads_device);

}  // namespace headway

#endif  // HEADWAY_ENGINE_EVICTION_SETTINGS_H_
