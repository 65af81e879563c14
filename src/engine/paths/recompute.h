// The path `recompute` (KVPR, Eq. 8): keys and values of a sequence's first segments, of which the
// store keeps X, the normed input of their projection, in half the bytes where every query head has
// a KV head of its own. What they are recomputed into, several slabs in one product, is attended to
// like a resident slab.
#ifndef HEADWAY_ENGINE_PATHS_RECOMPUTE_H_
#define HEADWAY_ENGINE_PATHS_RECOMPUTE_H_

#include "engine/paths/path.h"

namespace headway {

extern const PathKind kRecomputePath;

}  // namespace headway

#endif  // HEADWAY_ENGINE_PATHS_RECOMPUTE_H_
