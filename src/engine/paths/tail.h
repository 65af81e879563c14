// The newest keys of the heads that have slabs: what lies in the append buffer or the open page,
// the step's own keys included.
#ifndef HEADWAY_ENGINE_PATHS_TAIL_H_
#define HEADWAY_ENGINE_PATHS_TAIL_H_

#include "engine/paths/path.h"

namespace headway {

extern const PathKind kTailPath;

}  // namespace headway

#endif  // HEADWAY_ENGINE_PATHS_TAIL_H_
