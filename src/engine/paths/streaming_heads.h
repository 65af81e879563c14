// Streaming heads (DuoAttention; HeadInfer's extension): they see the keys of the sink and recent
// ones only, all of them on the device.
#ifndef HEADWAY_ENGINE_PATHS_STREAMING_HEADS_H_
#define HEADWAY_ENGINE_PATHS_STREAMING_HEADS_H_

#include "engine/paths/path.h"

namespace headway {

extern const PathKind kStreamingHeadsPath;

}  // namespace headway

#endif  // HEADWAY_ENGINE_PATHS_STREAMING_HEADS_H_
