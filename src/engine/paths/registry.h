// The paths that executors are made with.
#ifndef HEADWAY_ENGINE_PATHS_REGISTRY_H_
#define HEADWAY_ENGINE_PATHS_REGISTRY_H_

#include <span>

#include "engine/paths/path.h"

namespace headway {

// All kinds, in their order: those of this folder, and what was registered since.
std::span<const PathKind> RegisteredPaths();

// Adds a kind for executors made from then on. Not thread-safe: for the time before main, or a
// test's set-up. Returns true, so that a variable of namespace scope can call it.
bool RegisterPath(const PathKind& kind);

}  // namespace headway

#endif  // HEADWAY_ENGINE_PATHS_REGISTRY_H_
