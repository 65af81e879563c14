// Small files that spare work when a program starts again, in the user's cache folder. None of them
// is needed: what is not there, or is damaged, is made again.
#ifndef HEADWAY_BASE_USER_CACHE_H_
#define HEADWAY_BASE_USER_CACHE_H_

#include <string>

#include "base/env.h"
#include "headway/status.h"

namespace headway {

// The file of that name in $XDG_CACHE_HOME/headway (or ~/.cache/headway); empty where the
// environment names neither.
std::string UserCachePath(const std::string& name);
// Writes it, with its folder, and replaces it at once, so that no reader sees half of one.
Status WriteUserCache(Env& env, const std::string& path, const std::string& text);

// Writes a file and syncs it.
Status WriteTextFile(Env& env, const std::string& path, std::string text);

}  // namespace headway

#endif  // HEADWAY_BASE_USER_CACHE_H_
