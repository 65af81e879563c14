// Finds the folder of a model argument: a folder as it is, or `org/name[@revision]` in the local
// Hugging Face cache. Nothing is ever downloaded.
#ifndef HEADWAY_MODEL_LOCATE_H_
#define HEADWAY_MODEL_LOCATE_H_

#include <functional>
#include <optional>
#include <string>

#include "base/env.h"
#include "headway/status.h"

namespace headway {

// The value of an environment variable; empty when it is not set.
using GetEnvironment = std::function<std::optional<std::string>(const char* name)>;
GetEnvironment ProcessEnvironment();

// Where Hugging Face's tools keep downloaded models: HF_HUB_CACHE, else HF_HOME/hub, else
// XDG_CACHE_HOME/huggingface/hub, else ~/.cache/huggingface/hub.
std::string HubCacheFolder(const GetEnvironment& environment);

// The folder that `model` names. kNotFound says where it was looked for.
Result<std::string> LocateModel(Env& env, const std::string& model,
                                const GetEnvironment& environment);

}  // namespace headway

#endif  // HEADWAY_MODEL_LOCATE_H_
