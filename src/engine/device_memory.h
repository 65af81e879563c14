// Whether what a plan takes of a device with its own memory is there, other programs being on it.
#ifndef HEADWAY_ENGINE_DEVICE_MEMORY_H_
#define HEADWAY_ENGINE_DEVICE_MEMORY_H_

#include <cstdint>

#include "headway/status.h"

namespace headway {

struct DeviceMemory {
  int64_t planned = 0;   // by the plan in all
  int64_t taken = 0;     // of that, what this process has on the device already
  int64_t free = 0;      // on the device, now
  int64_t smallest = 0;  // budget for the device with which the workload fits; -1: none
};

// kOutOfBudget unless the plan fits what is free: says what is needed, what is free, the smallest
// budget that would do, and whether that fits.
Status CheckDeviceMemory(const DeviceMemory& memory);

// The error of a plan that does not fit a budget which the user has not set: adds that the budget
// is what is free on the device.
Status ExplainFreeMemory(const Status& error, int64_t free, int64_t total);

}  // namespace headway

#endif  // HEADWAY_ENGINE_DEVICE_MEMORY_H_
