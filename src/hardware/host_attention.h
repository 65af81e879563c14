// Attention by cores of the host, as a seam: the room measures how fast it is, and the engine,
// which has it, says how it is done.
#ifndef HEADWAY_HARDWARE_HOST_ATTENTION_H_
#define HEADWAY_HARDWARE_HOST_ATTENTION_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "base/types.h"
#include "device/device.h"
#include "headway/status.h"
#include "kernels/kernels.h"

namespace headway::hardware {

// What is attended to: by one token, the keys of several layers of one shape.
struct HostAttentionSetup {
  ModelShape shape;  // of one layer
  PageFormat format;
  int64_t keys = 0;  // of a layer
  DType activation = DType::kF32;
  std::vector<KeyRun> layers;
  std::string isa;
  // All outlive the attention.
  ThreadPool* pool = nullptr;
  Device* device = nullptr;  // whose memory has the queries
  Budget* budget = nullptr;
};

// Attends to all layers once.
using AttendOnce = std::function<Status()>;
using HostAttentionMaker = std::function<Result<AttendOnce>(const HostAttentionSetup&)>;

}  // namespace headway::hardware

#endif  // HEADWAY_HARDWARE_HOST_ATTENTION_H_
