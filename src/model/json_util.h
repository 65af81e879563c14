// JSON files of a model folder: read with a limit, parsed without exceptions.
#ifndef HEADWAY_MODEL_JSON_UTIL_H_
#define HEADWAY_MODEL_JSON_UTIL_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/env.h"
#include "headway/status.h"

namespace headway {

// An object; kCorrupt, naming `where`, for anything else or for more than 64 MiB of text.
Result<nlohmann::json> ParseJsonObject(std::string_view text, const std::string& where);

Result<nlohmann::json> ReadJsonObject(Env& env, const std::string& path);

// At most 80 bytes of `text`, without control characters: safe to print in a one-line message.
std::string Printable(std::string_view text);

}  // namespace headway

#endif  // HEADWAY_MODEL_JSON_UTIL_H_
