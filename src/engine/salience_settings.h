// HGCA as options ask for it, and what a context makes of it.
#ifndef HEADWAY_ENGINE_SALIENCE_SETTINGS_H_
#define HEADWAY_ENGINE_SALIENCE_SETTINGS_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "base/machine_profile.h"
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

// kUnsupported where some of a cache that heads may have to read whole may lie where the host's
// cores do not read it: in memory of a device's own.
Status CheckBound(const Settings& settings, bool own_memory);

// Of salient tokens on the host, what its cores attend to while the device reads the rest over its
// bus: as asked, or as both end together on the machine, which may be unknown.
double SalientByCores(const Settings& settings, const MachineProfile* machine);

// What decode reads at most of sequences that will reach these lengths, but for what a
// bound makes it read. `by_cores` of what lies on the host, if some does.
plan::KeptTokens KeptOf(const kv::SaliencePolicy& policy, const std::vector<int64_t>& lengths,
                        std::optional<double> by_cores);

}  // namespace headway

#endif  // HEADWAY_ENGINE_SALIENCE_SETTINGS_H_
