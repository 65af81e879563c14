// What the path `host` of a context is made with.
#ifndef HEADWAY_ENGINE_PATHS_HOST_OPTIONS_H_
#define HEADWAY_ENGINE_PATHS_HOST_OPTIONS_H_

#include "device/trace.h"
#include "engine/paths/host_attention.h"
#include "engine/paths/host_share.h"

namespace headway {

struct HostOptions {
  HostAttention* attention = nullptr;  // null: there is no such path; outlives the store
  // The share of what a layer reads from host memory, 0 to 1, that the host attends to.
  HostShareControl* share = nullptr;
  // Not null: the share is corrected after each decode step by what the lanes took, as the trace of
  // the device's streams says.
  const Trace* trace = nullptr;
};

}  // namespace headway

#endif  // HEADWAY_ENGINE_PATHS_HOST_OPTIONS_H_
