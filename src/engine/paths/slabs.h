// The paths `resident` and `stream`: slabs as the store hands them out, where they lie on the
// device, or in a staging buffer that they were copied into ahead of use (HeadInfer, Alg. 1).
#ifndef HEADWAY_ENGINE_PATHS_SLABS_H_
#define HEADWAY_ENGINE_PATHS_SLABS_H_

#include "engine/paths/path.h"

namespace headway {

extern const PathKind kSlabsPath;

}  // namespace headway

#endif  // HEADWAY_ENGINE_PATHS_SLABS_H_
