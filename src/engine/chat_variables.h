// The variables that a caller gives to a chat template.
#ifndef HEADWAY_ENGINE_CHAT_VARIABLES_H_
#define HEADWAY_ENGINE_CHAT_VARIABLES_H_

#include <nlohmann/json_fwd.hpp>

#include "headway/engine.h"
#include "headway/status.h"

namespace headway {

// The object that a template's variables begin with. kInvalidArgument as ChatOptions::Validate.
Result<nlohmann::ordered_json> ChatVariables(const ChatOptions& options);

}  // namespace headway

#endif  // HEADWAY_ENGINE_CHAT_VARIABLES_H_
