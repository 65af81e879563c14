// Measuring the machine for an engine.
#ifndef HEADWAY_ENGINE_MEASURE_H_
#define HEADWAY_ENGINE_MEASURE_H_

#include "base/env.h"
#include "base/machine_profile.h"
#include "engine/settings.h"
#include "hardware/probe.h"
#include "headway/status.h"

namespace headway {

// The profile of the device, the threads and the disk that the settings name.
Result<MachineProfile> MeasureMachine(Env& env, const Settings& settings, hardware::Depth depth);

}  // namespace headway

#endif  // HEADWAY_ENGINE_MEASURE_H_
