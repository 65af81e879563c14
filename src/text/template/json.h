// Between JSON and the values of templates.
#ifndef HEADWAY_TEXT_TEMPLATE_JSON_H_
#define HEADWAY_TEXT_TEMPLATE_JSON_H_

#include <cstdint>
#include <nlohmann/json_fwd.hpp>

#include "headway/status.h"
#include "text/template/value.h"

namespace headway::jinja {

// A value of the template; fails for text that is not UTF-8, for numbers beyond 64 bits and for
// data nested too deeply, naming the path to it.
Value FromJson(Runtime& rt, const nlohmann::ordered_json& json);

// Bytes of all the strings and keys in `json`, and one for each value.
int64_t JsonBytes(const nlohmann::ordered_json& json);

}  // namespace headway::jinja

#endif  // HEADWAY_TEXT_TEMPLATE_JSON_H_
