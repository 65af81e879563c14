// The path `skip`, of decodes whose heads attend to salient tokens before a dense window (HGCA).
#ifndef HEADWAY_ENGINE_PATHS_SALIENT_H_
#define HEADWAY_ENGINE_PATHS_SALIENT_H_

#include "engine/paths/path.h"

namespace headway {

// Leaves the window to other paths, and what is before it to nobody: salient tokens lie elsewhere.
extern const PathKind kSalientPath;

}  // namespace headway

#endif  // HEADWAY_ENGINE_PATHS_SALIENT_H_
