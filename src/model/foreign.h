// Folders and files that hold a model in a form that Headway does not read: what to say of them.
#ifndef HEADWAY_MODEL_FOREIGN_H_
#define HEADWAY_MODEL_FOREIGN_H_

#include <string>

#include "base/env.h"
#include "headway/status.h"

namespace headway {

// kUnsupported, with the way out, for a file of such a form, which its name shows.
Status RefuseForeignFile(const std::string& path);

// For a folder that lacks what a model has: the same for the first such file in it; kNotFound with
// `missing` where it has none.
Status RefuseFolder(Env& env, const std::string& folder, const std::string& missing);

}  // namespace headway

#endif  // HEADWAY_MODEL_FOREIGN_H_
