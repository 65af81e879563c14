// Values as text: str() and repr() of Python, and json.dumps().
#ifndef HEADWAY_TEXT_TEMPLATE_PRINT_H_
#define HEADWAY_TEXT_TEMPLATE_PRINT_H_

#include <optional>
#include <string>

#include "text/template/value.h"

namespace headway::jinja {

std::string TypeName(const Value& value);  // "str", "NoneType" ...

// str(): nothing for an undefined value, text as it is, repr() of the rest.
Value ToStr(Runtime& rt, const Value& value);
// The same, appended; for output, where no value is needed.
void AppendStr(Runtime& rt, const Value& value, std::string* out);
void AppendRepr(Runtime& rt, const Value& value, std::string* out);
// {key: value, ...}
void AppendRepr(Runtime& rt, const Dict& dict, std::string* out);

// The arguments of json.dumps().
struct JsonStyle {
  bool ascii = false;
  bool sort_keys = false;
  std::optional<std::string> indent = std::nullopt;  // of one level; without one, all on one line
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};
void AppendJson(Runtime& rt, const Value& value, const JsonStyle& style, std::string* out);

}  // namespace headway::jinja

#endif  // HEADWAY_TEXT_TEMPLATE_PRINT_H_
