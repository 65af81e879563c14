// JSON files of a model folder: read with a limit, parsed without exceptions, and named with the
// place where they are wrong.
#ifndef HEADWAY_BASE_JSON_JSON_H_
#define HEADWAY_BASE_JSON_JSON_H_

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

// Why a parser stopped after `position` bytes of `text`: "not valid JSON at line 3, column 14, near
// ...", or what the text is instead. A call of nlohmann's SAX interface has the position.
std::string DescribeJsonError(std::string_view text, size_t position);

// What git leaves in the place of a large file that was not fetched.
bool IsLfsPointer(std::string_view file);
inline constexpr char kLfsPointer[] =
    "a Git LFS pointer, not the file itself; run 'git lfs pull' in its folder";

// At most 80 bytes of `text`, without control characters: safe to print in a one-line message.
std::string Printable(std::string_view text);

}  // namespace headway

#endif  // HEADWAY_BASE_JSON_JSON_H_
