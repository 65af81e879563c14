// The functions that every template finds: range, dict, namespace, and Transformers'
// raise_exception and strftime_now.
#ifndef HEADWAY_TEXT_TEMPLATE_GLOBALS_H_
#define HEADWAY_TEXT_TEMPLATE_GLOBALS_H_

#include <string_view>

#include "text/template/value.h"

namespace headway::jinja {

// False when there is none of that name.
bool FindGlobal(std::string_view name, Value* value);

}  // namespace headway::jinja

#endif  // HEADWAY_TEXT_TEMPLATE_GLOBALS_H_
