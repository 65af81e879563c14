// Between JSON and the values of templates.
#ifndef HEADWAY_TEXT_TEMPLATE_JSON_H_
#define HEADWAY_TEXT_TEMPLATE_JSON_H_

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "headway/status.h"
#include "text/template/value.h"

namespace headway::jinja {

// json.dumps(value, ensure_ascii, indent, separators, sort_keys) of Python.
struct JsonStyle {
  bool ascii = false;
  bool pretty = false;  // a line for every element, `indent` at each level
  std::string indent;
  std::string item_separator = ", ";
  std::string key_separator = ": ";
  bool sort_keys = false;
};

Value DumpJson(Runtime& rt, const Value& value, const JsonStyle& style);

// A value of the template; fails for text that is not UTF-8, for numbers beyond 64 bits and for
// data nested too deeply, naming the path to it.
Value FromJson(Runtime& rt, const nlohmann::ordered_json& json);

// Bytes of all the strings and keys in `json`, and one for each value.
int64_t JsonBytes(const nlohmann::ordered_json& json);

}  // namespace headway::jinja

#endif  // HEADWAY_TEXT_TEMPLATE_JSON_H_
