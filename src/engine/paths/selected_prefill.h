// The path `selected prefill`: a chunk of a prompt attends to the blocks that matter to its rows,
// of the pages before it; to itself it attends exactly, by the paths behind this one.
#ifndef HEADWAY_ENGINE_PATHS_SELECTED_PREFILL_H_
#define HEADWAY_ENGINE_PATHS_SELECTED_PREFILL_H_

#include "engine/paths/path.h"

namespace headway {

extern const PathKind kSelectedPrefillPath;

}  // namespace headway

#endif  // HEADWAY_ENGINE_PATHS_SELECTED_PREFILL_H_
