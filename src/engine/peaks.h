// How fast the lanes that a plan balances are, measured in a moment.
#ifndef HEADWAY_ENGINE_PEAKS_H_
#define HEADWAY_ENGINE_PEAKS_H_

#include "base/env.h"
#include "base/thread_pool.h"
#include "device/budget.h"
#include "device/device.h"
#include "headway/status.h"

namespace headway {

// Bytes per second that the threads of `pool` read of host memory while copies to the device run,
// and that those reach meanwhile.
struct HostRates {
  double read = 0.0;
  double bus = 0.0;
};
// Takes some tens of milliseconds, 32 MiB of `budget` on the device and 288 MiB on the host.
Result<HostRates> MeasureHostRates(Env& env, ThreadPool& pool, Device& device, Budget& budget);

}  // namespace headway

#endif  // HEADWAY_ENGINE_PEAKS_H_
