// The CPU as a device: its memory is an arena in RAM, its compute stream runs kernels at once on
// the caller's thread (and the pool behind it), its copy and disk streams have a thread each.
#ifndef HEADWAY_DEVICE_CPU_CPU_DEVICE_H_
#define HEADWAY_DEVICE_CPU_CPU_DEVICE_H_

#include <memory>

#include "base/env.h"
#include "device/device.h"
#include "device/trace.h"

namespace headway {

// `env` gives memory and time, `trace` (may be null) learns what each lane did; both outlive the
// device.
std::unique_ptr<Device> NewCpuDevice(Env* env, Trace* trace);

}  // namespace headway

#endif  // HEADWAY_DEVICE_CPU_CPU_DEVICE_H_
