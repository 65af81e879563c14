// Files of JSON values, one a line, as users write them: what is wrong names the line and the key.
#ifndef HEADWAY_ENGINE_EVAL_JSON_LINES_H_
#define HEADWAY_ENGINE_EVAL_JSON_LINES_H_

#include <functional>
#include <initializer_list>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "headway/status.h"

namespace headway::eval {

// Calls `take` with the value of each line that is not blank, discarded where it is no JSON, and
// with "NAME, line 3", up to the first error. kInvalidArgument for an object with a key twice, and
// for what is nested more than a hundred levels deep.
Status ForEachJsonLine(std::string_view text, const std::string& name,
                       const std::function<Status(const nlohmann::ordered_json& value,
                                                  const std::string& where)>& take);

// The same for the items of a text that is one JSON list, with "NAME, item 3".
Status ForEachJsonItem(std::string_view text, const std::string& name,
                       const std::function<Status(const nlohmann::ordered_json& value,
                                                  const std::string& where)>& take);

// Keys of an object that `known` lacks, in their order, each in quotes and short enough for a
// message.
std::vector<std::string> OtherKeys(const nlohmann::ordered_json& object,
                                   std::initializer_list<std::string_view> known);

}  // namespace headway::eval

#endif  // HEADWAY_ENGINE_EVAL_JSON_LINES_H_
