// The path `host` as the room hardware measures it.
#ifndef HEADWAY_ENGINE_METERED_HOST_ATTENTION_H_
#define HEADWAY_ENGINE_METERED_HOST_ATTENTION_H_

#include "hardware/host_attention.h"
#include "headway/status.h"

namespace headway {

// A hardware::HostAttentionMaker: the engine's kernels, cuts and threads.
Result<hardware::AttendOnce> MeteredHostAttention(const hardware::HostAttentionSetup& setup);

}  // namespace headway

#endif  // HEADWAY_ENGINE_METERED_HOST_ATTENTION_H_
