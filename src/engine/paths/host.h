// The path `host` in decode steps (HGCA, §3.3, without its sparsity): what the host's cores attend
// to, in their memory, while the rest streams.
#ifndef HEADWAY_ENGINE_PATHS_HOST_H_
#define HEADWAY_ENGINE_PATHS_HOST_H_

#include "engine/paths/path.h"

namespace headway {

extern const PathKind kHostPath;

}  // namespace headway

#endif  // HEADWAY_ENGINE_PATHS_HOST_H_
