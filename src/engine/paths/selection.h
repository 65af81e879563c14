// The path of selection: decode reads the blocks of closed pages that score best by their
// summaries, and those of the sink and of recent keys, where they lie; the rest takes no part in
// the step (DESIGN: `skip`). It takes the ranges in memory whose pages are summarised, where these
// hold more than the budget; what it leaves is attended to exactly.
#ifndef HEADWAY_ENGINE_PATHS_SELECTION_H_
#define HEADWAY_ENGINE_PATHS_SELECTION_H_

#include "engine/paths/path.h"

namespace headway {

extern const PathKind kSelectionPath;

}  // namespace headway

#endif  // HEADWAY_ENGINE_PATHS_SELECTION_H_
