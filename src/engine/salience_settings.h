// HGCA as options ask for it, and what a context makes of it.
#ifndef HEADWAY_ENGINE_SALIENCE_SETTINGS_H_
#define HEADWAY_ENGINE_SALIENCE_SETTINGS_H_

#include <cstdint>
#include <vector>

#include "engine/settings.h"
#include "headway/options.h"
#include "headway/refusal.h"
#include "headway/status.h"
#include "kv/policy/salience.h"
#include "plan/plan.h"

namespace headway {

// Fills in the settings' salience, whose policy and placement are there.
// kInvalidArgument for what makes no sense.
Status ReadSalience(const EngineOptions& options, Settings* settings);

// The option that had the policy choose.
Option AskedForBy(const kv::SaliencePolicy& policy);

// What decode reads at most of sequences that will reach these lengths.
plan::KeptTokens KeptOf(const kv::SaliencePolicy& policy, const std::vector<int64_t>& lengths,
                        bool on_host);

}  // namespace headway

#endif  // HEADWAY_ENGINE_SALIENCE_SETTINGS_H_
