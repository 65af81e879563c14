// Self-Extend (model/self_extend.h), exact attention at other positions: segments that hold keys
// farther back than the window are attended to twice, by queries and keys at true distances within
// the window, and by copies of both that are rotated on to grouped positions. The states of both
// merge as any do. Segments without far keys are other paths'.
#ifndef HEADWAY_ENGINE_PATHS_SELF_EXTEND_H_
#define HEADWAY_ENGINE_PATHS_SELF_EXTEND_H_

#include "engine/paths/path.h"

namespace headway {

extern const PathKind kSelfExtendPath;

}  // namespace headway

#endif  // HEADWAY_ENGINE_PATHS_SELF_EXTEND_H_
