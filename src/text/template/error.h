// How every error of a template reads: one line, with the template's name and the line in it.
#ifndef HEADWAY_TEXT_TEMPLATE_ERROR_H_
#define HEADWAY_TEXT_TEMPLATE_ERROR_H_

#include <string_view>

#include "headway/status.h"

namespace headway::jinja {

// `message` may quote the template or its data: what would break the line is replaced, and what is
// too long is cut.
Status TemplateError(StatusCode code, std::string_view name, int line, std::string_view message);

}  // namespace headway::jinja

#endif  // HEADWAY_TEXT_TEMPLATE_ERROR_H_
