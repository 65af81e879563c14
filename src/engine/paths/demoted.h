// The path of demoted tokens: beside what heads keep of a prompt, decode reads blocks of what they
// let go, those that score best by their summaries, where they lie. It takes no range of the cache,
// which does not have them.
#ifndef HEADWAY_ENGINE_PATHS_DEMOTED_H_
#define HEADWAY_ENGINE_PATHS_DEMOTED_H_

#include "engine/paths/path.h"

namespace headway {

extern const PathKind kDemotedPath;

}  // namespace headway

#endif  // HEADWAY_ENGINE_PATHS_DEMOTED_H_
